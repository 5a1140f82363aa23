"""Probes of dtypes, returned weights, repeated calls, empty batches and the order of tokens."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..adapters.answers import parts_of
from ..base.profile import DTYPES
from ..calls.calling import CandidateFailure, arguments, guarded
from ..declare.promises import declare
from ..oracle.oracle import Oracle
from ..problems.inputs import Inputs
from ..problems.materialise import TORCH_DTYPES
from .agreement import Probed
from .caller import FREE, Caller, ProbeAnswer, Refusal, masked, random_keep
from .convention import MaskUse, compiled
from .signature import Parameters

_FOUR: Final = len("BHQK")
_SHUFFLED: Final = 1


@dataclass(frozen=True)
class DtypeResult:
    """Whether the answers in a dtype are right; if not, ``why`` gives the reason."""

    dtype: str
    right: bool
    why: str = ""


def find_dtypes(case: Probed) -> list[DtypeResult]:
    """Try each dtype of the contract, plain and with the first mask of each form."""
    judges = (case.judge.in_dtype(case.caller.kind, dtype) for dtype in DTYPES)
    return [_dtype(dataclasses.replace(case, judge=judge)) for judge in judges]


def _dtype(case: Probed) -> DtypeResult:
    dtype = case.judge.oracle.dtype
    first = {use.form: use for use in reversed(case.caller.convention.masks)}
    for use in (None, *first.values()):
        try:
            inputs = case.caller.draw(seed=11, dtype=dtype)
        except (RuntimeError, TypeError) as error:
            return DtypeResult(dtype, right=False, why=f"{type(error).__name__} while building")
        called = case.caller
        what = ""
        if use is not None:
            inputs = masked(inputs, use.form, use.shape)
            called, what = case.caller.under(masks=(use,)), f" with a mask ({use.form})"
        answer = called.call(inputs)
        if isinstance(answer, Refusal):
            return DtypeResult(dtype, right=False, why=f"{answer.why}{what}")
        if answer.dtype != TORCH_DTYPES[dtype]:
            name = str(answer.dtype).removeprefix("torch.")
            return DtypeResult(dtype, right=False, why=f"answers in {name}{what}")
        if not case.fits(answer):
            return DtypeResult(dtype, right=False, why=f"beyond the rounding of {dtype}{what}")
    return DtypeResult(dtype, right=True)


@dataclass(frozen=True)
class ReturnedWeights:
    """How to request weights; ``averaged``: the call returns a mean over the heads."""

    options: tuple[tuple[str, str], ...]
    averaged: bool
    words: str
    output: str = "answer[0]"
    weights: str = "answer[1]"


def find_weights(case: Probed, parameters: Parameters) -> ReturnedWeights | None:
    """Attention weights returned with the output, by default or on request."""
    named = [
        (entry.name, "True")
        for entry in parameters.meaning("weights")
        if entry.by_keyword and not entry.guessed
    ]
    guessed = [(entry.name, "True") for entry in parameters.meaning("weights") if entry.guessed]
    average = [(entry.name, "False") for entry in parameters.meaning("average")]
    inputs = case.caller.draw(seed=12).replace(return_weights=True)
    beside = case.caller.convention.output if case.caller.convention.output != "answer" else ""
    for options in (tuple(named[:1] + average), tuple(average), (), tuple(guessed[:1])):
        caller = case.caller.under(weights=options)
        parts = list(parts_of(caller.returned(inputs)))
        shown = beside or next((name for name, part in parts if part.is_floating_point()), "")
        for name, part in parts if len(parts) > 1 else ():
            kind = _weights_kind(case, case.judge.read(inputs), part) if name != shown else ""
            if kind:
                words = ", ".join(f"{key}={value}" for key, value in options) or "always returned"
                return ReturnedWeights(options, kind == "averaged", words, shown, name)
    return None


def _weights_kind(case: Probed, inputs: Any, weights: Tensor) -> str:
    oracle = Oracle(declare(case.caller.kind, semantics=case.point), "float32")
    expected, bound = oracle.answer(inputs).weights, oracle.weights_bound(inputs)
    returned = weights.detach().double()
    if not inputs.batched:
        returned = returned.unsqueeze(0)
    if returned.shape == expected.shape and bool(((returned - expected).abs() <= bound).all()):
        return "heads"
    mean, wide = expected.mean(dim=1), bound.amax(dim=1) * expected.shape[1]
    same = returned.shape == mean.shape and expected.dim() == _FOUR
    return "averaged" if same and bool(((returned - mean).abs() <= wide).all()) else ""


def learned_besides(caller: Caller) -> list[str]:
    """The names of a module's parameters, other than projections, on which the answer depends.

    At present values they may do nothing: a gain of one, heads that are not mixed yet.
    """
    inputs, other = (caller.draw(seed=seed) for seed in (17, 18))
    plain = caller.call(inputs)
    built = caller.prepare(inputs.geometry, inputs.weights)
    if not isinstance(built, nn.Module) or not isinstance(plain, ProbeAnswer) or not caller.draws:
        return []
    before = {name: own.detach().clone() for name, own in built.named_parameters()}
    anew: Any = caller.prepare(inputs.geometry, other.weights)
    drawn_anew = dict(anew.named_parameters())
    projections = {
        name for name, own in before.items() if not torch.equal(own, drawn_anew[name].detach())
    }

    def changes(name: str) -> bool:
        module: Any = caller.prepare(inputs.geometry, inputs.weights)
        own = dict(module.named_parameters())[name]
        generator = torch.Generator().manual_seed(len(name))
        with torch.no_grad():
            own += torch.rand(own.shape, generator=generator, dtype=torch.float64).to(own.dtype)
        changed = copy.copy(caller)
        changed.prepare = lambda _geometry, _weights: module
        answer = changed.call(inputs)
        return isinstance(answer, Refusal) or not torch.equal(
            answer.output.nan_to_num(), plain.output.nan_to_num()
        )

    free = (name for name, own in before.items() if own.is_floating_point())
    return [name for name in free if name not in projections and changes(name)]


def repeats(caller: Caller) -> bool | None:
    """Whether two calls with equal inputs agree bit for bit; None if a call fails."""
    inputs = caller.draw(seed=13)
    first, second = caller.call(inputs), caller.call(inputs)
    if isinstance(first, Refusal) or isinstance(second, Refusal):
        return None
    return torch.equal(first.output.nan_to_num(), second.output.nan_to_num())


def changed_inputs(caller: Caller) -> list[str]:
    """The names of the inputs that a call changes in place."""
    inputs = caller.draw(seed=13)
    tensors, keywords = arguments(inputs)
    before = [tensor.clone() for tensor in tensors]
    try:
        forward = compiled(caller.convention)
        guarded(forward, (caller.prepare(inputs.geometry, inputs.weights), *tensors), keywords)
    except CandidateFailure:
        return []
    names = caller.convention.inputs_names
    return [
        name
        for name, old, new in zip(names, before, tensors, strict=True)
        if not torch.equal(old, new)
    ]


def accepted_mismatches(caller: Caller) -> list[str]:
    """The mismatched shapes that a call accepts: see the clause ``shape.rejects-mismatch``.

    Kernels differ by size: values are tried as wide as keys and of another width.
    """
    accepted: dict[str, None] = {}
    for sizes in ({}, {"value_head_size": FREE.head_size}, {"value_head_size": 8, "head_size": 8}):
        inputs = caller.draw(sizes, seed=16)
        changes: dict[str, Inputs] = {}
        if inputs.mode == "separate":
            changes["fewer values than keys"] = inputs.replace(value=inputs.value[..., :-1, :])
            if inputs.query.dim() == _FOUR:
                changes["keys of another head size than queries"] = inputs.replace(
                    key=inputs.key[..., :-1]
                )
        for what, changed in changes.items():
            if not isinstance(caller.call(changed), Refusal):
                accepted[what] = None
        use = next((use for use in caller.convention.masks if use.shape in _WITH_KEYS), None)
        if use is not None and not isinstance(_with_short_mask(caller, use, inputs), Refusal):
            accepted["a mask for fewer keys than there are"] = None
    return list(accepted)


_WITH_KEYS: Final = ("BHQK", "B1QK", "HQK", "BQK", "QK", "BK", "B11K")


def _with_short_mask(caller: Caller, use: MaskUse, inputs: Inputs) -> ProbeAnswer | Refusal:
    fewer = inputs.geometry.replace(key_length=inputs.geometry.key_length - 1)
    keep = random_keep(use.shape, fewer)
    short = inputs.replace(geometry=fewer, keep=keep, mask_form=use.form, mask_shape=use.shape)
    return caller.under(masks=(use,)).call(short)


def empty_batch(caller: Caller) -> str | None:
    """The outcome with an empty batch: ``answers`` or a complaint; None without a batch axis."""
    if not caller.convention.layout.batched:
        return None
    inputs = caller.draw({"batch": 0}, seed=14)
    answer = caller.call(inputs)
    if isinstance(answer, Refusal):
        return answer.why
    shape = tuple(answer.output.shape)
    return "answers" if shape == inputs.output_shape else f"returns the shape {list(shape)}"


def order_matters(
    caller: Caller, bound_of: Callable[[Inputs], Tensor] | None = None
) -> bool | None:
    """Whether the order of the keys changes the answer beyond rounding; None if a call fails.

    Self-attention permutes all tokens, and the answer's rows with them. ``bound_of`` gives the
    bound of a float32 answer; without ``bound_of``, half of the digits count as rounding.
    """
    inputs = caller.draw(seed=15)
    answer = caller.answer(inputs)
    if answer is None:
        return None
    # Not the reverse order: a bias by distance would not change.
    shuffled = torch.Generator().manual_seed(_SHUFFLED)
    order = torch.randperm(inputs.geometry.key_length, generator=shuffled)
    moved = inputs.with_tokens(key=inputs.key[..., order, :], value=inputs.value[..., order, :])
    other = caller.answer(moved)
    if other is None:
        return None
    apart = _in_order(answer.output, order, inputs) - other.output
    if bound_of is None:
        digits = torch.finfo(inputs.query.dtype).eps ** 0.5
        return bool(apart.abs().max() > answer.output.abs().max() * digits)
    bound = _in_order(bound_of(inputs), order, inputs) + bound_of(moved)
    return not bool((apart.abs() <= bound).all())


def _in_order(rows: Tensor, order: Tensor, inputs: Inputs) -> Tensor:
    return rows[..., order, :] if inputs.mode == "self" else rows
