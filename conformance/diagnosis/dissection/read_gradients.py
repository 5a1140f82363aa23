"""Numbers read from wrong gradients: limits, lengths, and factors of the right ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...clauses.judging_gradients import described
from ...tolerance import model
from ..mistakes import NamedMistake
from ..mistakes._steps import BLOCKS
from ..mistakes.backward_pass import OF_LAYER, stages_of
from ..observed_gradients import ObservedGradients, near, room
from .backward_variants import Change, Variant
from .reading import Number, numbers, roundest

TOKENS: Final = ("query", "key", "value")
ROLES: Final = (*TOKENS, "bias")

_NO_LIMIT: Final = "return the gradients as they are: whoever trains clips them"
# Problems in which a length must recur to count as a limit of gradients.
_TWICE: Final = 2
# The relative precision of numbers in words.
_SAME: Final = model.SAME_READ

# Pairs of a wrong and the exact gradient.
Observed = Sequence[tuple[Tensor, Tensor]]


def read_variants(role: str, observed: Observed) -> Iterator[Variant]:
    """Yield variants of a role's wrong gradient, with numbers read from the observations."""
    yield from _clamped(role, observed)
    yield from _cut_to_length(role, observed)
    yield from _tokens_from(role, observed)
    yield from _not_numbers(role, observed)


def _variants(role: str, words: str, fix: str, change: Change) -> Iterator[Variant]:
    whole = (golden.Edit(f"given_{role}_gradient", change=change),)
    yield Variant(words=words, fix=fix, edits=whole, each=True)
    if role != "query":
        of_each_head = (golden.Edit(f"{role}_gradients", change=change),)
        more = f"{words} before those of a group are added up"
        yield Variant(words=more, fix=fix, edits=of_each_head)


def _said(read: float) -> float:
    """Return a number with as few digits as its precision allows."""
    return roundest(read * (1.0 - _SAME), read * (1.0 + _SAME))


def _clamped(role: str, observed: Observed) -> Iterator[Variant]:
    """Yield clamping to a limit: the largest magnitude, if several elements share it."""
    for actual, exact in observed:
        sizes = actual.abs()
        limit = float(sizes.amax()) if sizes.numel() else 0.0
        at_limit = sizes >= (1.0 - torch.finfo(torch.float32).eps) * limit
        if limit and bool(torch.isfinite(actual).all()) and int(at_limit.sum()) > 1:
            if bool((exact.abs()[at_limit] < (1.0 - _SAME) * limit).any()):
                continue
            said = _said(limit)
            words = f"each element is clamped to the range from {-said:g} to {said:g}"
            yield from _variants(role, words, _NO_LIMIT, _clamp_to(said))
            return


def _clamp_to(limit: float) -> Change:
    return lambda gradient: gradient.clamp(-limit, limit)


def _cut_to_length(role: str, observed: Observed) -> Iterator[Variant]:
    for words, length in (
        ("the whole gradient is cut to a length of {:g}", _whole_length),
        ("each token's gradient is cut to a length of {:g}", _length_of_tokens),
    ):
        cut = [float(length(actual).amax()) for actual, _ in observed if actual.numel()]
        if len(cut) < _TWICE or not all(0.0 < one < math.inf for one in cut):
            continue
        if max(cut) - min(cut) > 2.0 * _SAME * max(cut):
            continue
        said = _said(cut[0])
        yield from _variants(role, words.format(said), _NO_LIMIT, _cut(said, length))


def _whole_length(gradient: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(gradient)
    return length


def _length_of_tokens(gradient: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    return length


def _cut(limit: float, length: Callable[[Tensor], Tensor]) -> Change:
    return lambda gradient: gradient * (limit / length(gradient).clamp_min(limit))


def _tokens_from(role: str, observed: Observed) -> Iterator[Variant]:
    for actual, exact in observed:
        by_token = (actual * exact).sum((0, 1, 3)), exact.square().sum((0, 1, 3))
        if not bool((by_token[1] > 0.0).all()) or not bool(torch.isfinite(actual).all()):
            continue
        factors = by_token[0] / by_token[1]
        wrong = ((factors - 1.0).abs() > _SAME).nonzero().flatten()
        if not wrong.numel() or int(wrong[0]) == 0:
            continue
        first, factor = int(wrong[0]), float(factors[wrong].mean())
        alike = (factors[first:] - factor).abs() <= 2.0 * _SAME * max(abs(factor), _SAME)
        if bool(alike.all()):
            said = 0.0 if abs(factor) <= _SAME else float(f"{factor:.3g}")
            words = f"tokens from index {first} on are {said:g} times what they must be"
            if not said:
                words = f"tokens from index {first} on are left out"
            yield from _variants(role, words, "treat every token alike", _times_from(first, said))
            return


def _times_from(first: int, factor: float) -> Change:
    def change(gradient: Tensor) -> Tensor:
        behind = torch.arange(gradient.shape[2]) >= first
        return gradient * torch.where(behind, factor, 1.0)[:, None]

    return change


def _not_numbers(role: str, observed: Observed) -> Iterator[Variant]:
    """Yield NaN after the last whole tile, for possible tile sizes.

    If no whole tile exists, another loop may do the work.
    """
    ends: set[tuple[int, int]] = set()
    for actual, _ in observed:
        lost = actual.isnan().transpose(2, 0).flatten(1)
        if bool(lost.any()):
            ends.add((int((~lost.any(dim=-1)).sum()), len(lost)))
            if not bool(lost[-1].all()) or bool((lost.any(-1) != lost.all(-1)).any()):
                return
    for size in BLOCKS[1:] if ends else ():
        if all(0 < start == count // size * size for start, count in ends):
            words = f"tokens behind the last whole tile of {size} are NaN"
            fix = "set what a tile lacks to zero: what lies past the end may be anything"
            yield from _variants(role, words, fix, _nan_behind_tiles(size))


def _nan_behind_tiles(size: int) -> Change:
    def change(gradient: Tensor) -> Tensor:
        count = gradient.shape[2]
        whole = count // size * size
        behind = torch.arange(count) >= (whole or count)
        return gradient.masked_fill(behind[:, None], math.nan)

    return change


def clamped(limit: float) -> Variant:
    """Return the gradients of the logits clamped to a limit that was read."""
    return Variant(
        words=f"dS is clamped to the range from {-limit:.4g} to {limit:.4g}",
        fix="do not clamp within the backward pass",
        edits=(golden.Edit("logit_gradient", change=_clamp_to(limit)),),
    )


def clamped_upstream(limit: float) -> Variant:
    """Return the upstream gradient clamped to a limit that was read."""
    return Variant(
        words=f"what flows back is clamped to the range from {-limit:.4g} to {limit:.4g}",
        fix="do not clamp within the backward pass: whoever trains clips gradients",
        edits=(golden.Edit("output_gradient", change=_clamp_to(limit)),),
    )


_RIGHT: Final = "1"
_FIX_FACTORS: Final = (
    "detach nothing and multiply nothing on the way back: autograd passes a linear layer as it is"
)


def factor_statements(observed: Sequence[ObservedGradients]) -> Iterator[NamedMistake]:
    """Yield factors of the gradients of a layer's tokens, matrices and biases.

    A factor common to an operand is left to the statements about its heads.
    """
    layers = [each for each in observed if each.inputs.is_layer and each.wrong]
    if not layers:
        return
    telling = max(layers, key=lambda each: (len(each.wrong), len(each.actual.by_name)))
    read = _factors(telling)
    said = {name: numbers_of[0].words for name, numbers_of in read.items()}
    operands = [{said[n] for n in (r, r[0], f"{r[0]}_bias") if n in said} for r in TOKENS]
    behind = {said.get(name, _RIGHT) for name in ("o", "o_bias")} - {_RIGHT}
    alike = len(set().union(*operands)) == 1 and not behind
    if not behind and not alike and all(len(words) <= 1 for words in operands):
        return
    wrong = {name: each for name, each in read.items() if each[0].words != _RIGHT}
    for choice in range(max(map(len, wrong.values()), default=0)):
        yield _multiplied({n: each[min(choice, len(each) - 1)] for n, each in wrong.items()}, read)


def _factors(observed: ObservedGradients) -> dict[str, list[Number]]:
    """Return the possible factors of each gradient; {} if one is no multiple.

    Tokens of several operands get a sum with a factor per operand.
    """
    passes = observed.passes
    parts = {name: passes[stage] for name, stage in stages_of(passes).items()}
    same = model.SAME_READ + torch.finfo(observed.inputs.query.dtype).eps
    at, read = observed.inputs.geometry, list[tuple[float, str, float]]()
    for name, exact in observed.expected.gradients.items():
        roles = {"x": TOKENS, "context": TOKENS[1:]}.get(name, (name,))
        if name not in observed.actual.by_name or not set(roles) <= parts.keys():
            continue
        actual, worst = observed.actual.by_name[name].double(), float(exact.worst.amax())
        columns = torch.stack([parts[role].flatten() for role in roles], dim=-1)
        sizes = columns.abs().amax(dim=0)
        if bool((sizes <= worst).any()):
            continue  # too small for its number to be read
        solved = torch.linalg.lstsq(columns, actual.flatten()[:, None]).solution[:, 0]
        made = (columns @ solved).reshape(exact.value.shape)
        if not near(actual, made, room(made, exact.value, exact.worst)):
            return {}
        read += zip((same + worst / sizes).tolist(), roles, solved.tolist(), strict=True)
    factors: dict[str, list[Number]] = {}
    for apart, role, factor in sorted(read):  # the best-known factors identify the others
        known = next((e for e in factors.values() if _is_near(factor, e[0], apart, at)), None)
        zero = [Number("0", lambda _sizes: 0.0)] if abs(factor) <= apart else []
        factors[role] = known or zero or list(numbers(factor, at, apart))
    return factors


def _is_near(factor: float, number: Number, apart: float, at: Geometry) -> bool:
    return abs(factor - number.value(at)) <= 2.0 * apart * max(abs(factor), 1.0)


_ORDER: Final = (*TOKENS, *(name for role in "qkvo" for name in (role, f"{role}_bias")))


def _listed(some: Sequence[str], read: Collection[str]) -> str:
    if len(some) == len(read):
        return "all gradients"
    if {*some, "o", "o_bias"} == set(read):
        return "the gradients of all but the output projection"
    words = [f"the {name}'s tokens" if name in TOKENS else described(name) for name in some]
    listed = " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
    return f"the gradient{'s' * (len(some) > 1)} of {listed}"


def _multiplied(wrong: Mapping[str, Number], read: Collection[str]) -> NamedMistake:
    by_words: dict[str, list[str]] = {}
    for name in sorted(wrong, key=_ORDER.index):
        by_words.setdefault(wrong[name].words, []).append(name)
    names, texts = [], []
    for words, some in by_words.items():
        of, (verb, it) = _listed(some, read), ("are", "they") if len(some) > 1 else ("is", "it")
        made = "zero" if words == "0" else f"{words} times what {it} must be"
        names.append(f"{of.removeprefix('the ').replace('of the ', 'of ')}: {made}")
        texts.append(f"{of} {verb} {made}")

    return NamedMistake(
        name="+".join(names),
        primary="gradients.golden",
        sentence="; ".join(texts),
        fix=_FIX_FACTORS,
        backward=tuple(
            golden.Edit(OF_LAYER[name], change=_times(number)) for name, number in wrong.items()
        ),
    )


def _times(number: Number) -> Callable[..., Tensor]:
    return lambda gradient, inputs: gradient * number.value(inputs.geometry)
