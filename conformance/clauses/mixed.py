"""mixed.*: inputs and masks of different dtypes, and torch.autocast."""

from __future__ import annotations

import dataclasses
from functools import reduce
from typing import Any, Final

import torch
from torch import Tensor

from ..calls.calling import arguments
from ..declare.candidate import Candidate
from ..oracle.comparison import compare, moves
from ..oracle.oracle import Oracle
from ..problems.inputs import Inputs
from ..problems.materialise import TORCH_DTYPES
from ..problems.problem import Problem
from ..problems.space import Space
from ..tolerance import model
from .judging import golden_at, narrow_range
from .registry import Finding, clause, requires, violated
from .subject import Subject

# The dtypes that are mixed with the working dtype.
OTHERS: Final = {
    "float64": (torch.float32,),
    "float32": (torch.bfloat16, torch.float16),
    "float16": (torch.float32,),
    "bfloat16": (torch.float32,),
}
# Which inputs are of another dtype: first both of a cache in half precision.
MIXTURES: Final = (("key", "value"), ("query",), ("key",), ("value",), ("query", "key"))
# The weights of a layer are of the working dtype, and so is its query.
OF_LAYERS: Final = (("key", "value"), ("key",), ("value",))
# What is wider than the query has more digits than fit into the query's dtype.
MORE_DIGITS: Final = 2.0**-12
# Keys past float16's largest number, and queries small enough for ordinary logits.
LARGE_KEYS: Final = 2.0**16
SMALL_QUERIES: Final = 2.0**-8
MIXED: Final = Space(values=("normal", "decisive"), least=(("key_length", 2),), share=0.25)


def takes_several(candidate: Candidate) -> str:
    """Why no call can have inputs of several dtypes, or ""."""
    declared = candidate.declaration
    if declared.inputs == "self" or len(declared.head_layout.inputs) == 1:
        return "its inputs are one tensor"
    if declared.kv_format is not None:
        return "its keys and values come in a format of their own"
    return promotes(candidate)


def promotes(candidate: Candidate) -> str:
    """Why torch's rules for several dtypes do not hold, or ""."""
    if candidate.graph is not None:
        return "its file says which dtypes it takes"
    arrays = candidate.declaration.arrays
    return "" if arrays == "torch" else f"{arrays} has rules of its own for several dtypes"


_declared = requires(
    lambda c: c.declaration.mixed is not None, "it declares nothing about mixed dtypes"
)


def _undeclared(candidate: Candidate) -> str:
    rule = candidate.declaration.mixed
    return "" if rule is None else f"it declares mixed={rule!r}"


@clause(
    "mixed.inputs",
    sentence=(
        "Query, key and value of different dtypes are treated by the declared rule: refused, "
        "promoted without rounding, or taken in the dtype of the query."
    ),
    source="torch.promote_types; diffusers#6774, vllm#54338: a cache of another dtype",
    space=MIXED,
    needs_golden=True,
    applies=(_declared, takes_several),
    explained=False,
)
def inputs_by_rule(subject: Subject, problem: Problem) -> Finding:
    """Query, key and value have dtypes that differ from problem to problem."""
    inputs = mixture(subject, problem)
    rule = str(subject.declaration.mixed)
    if rule == "refuse":
        return _refused(subject, inputs)
    answer = subject.answer(inputs)
    expected = inputs.query.dtype if rule == "query" else promoted(inputs)
    if answer.dtype != expected:
        return _of_another_dtype(inputs, answer, f"it declares mixed={rule!r}", expected)
    return _right(subject, inputs, answer, cast=rule == "query")


@clause(
    "mixed.undeclared-inputs",
    level="SHOULD",
    sentence=(
        "Query, key and value of different dtypes are refused, or used as they are: the answer is "
        "as exact as its dtype, which is that of the query or the widest."
    ),
    source="torch.promote_types; diffusers#6774, vllm#54338: a cache of another dtype",
    space=MIXED,
    needs_golden=True,
    applies=(_undeclared, takes_several),
    explained=False,
)
def undeclared_inputs(subject: Subject, problem: Problem) -> Finding:
    """The mixtures of mixed.inputs, where nothing is promised."""
    inputs = mixture(subject, problem)
    answer = subject.answer_or_refusal(inputs)
    if answer is None:
        return Finding()
    allowed = (inputs.query.dtype, promoted(inputs))
    if answer.dtype not in allowed:
        return _of_another_dtype(inputs, answer, "nothing is declared", *allowed)
    return _right(subject, inputs, answer, cast=False)


def mixture(subject: Subject, problem: Problem) -> Inputs:
    """The inputs of a problem, some of them in another dtype and with digits of their own."""
    inputs = subject.inputs(problem)
    mixtures: tuple[tuple[str, ...], ...]
    if len(subject.declaration.positional) == len(("query", "context")):
        mixtures = MIXTURES[:1]
    else:
        mixtures = OF_LAYERS if inputs.is_layer else MIXTURES
    names: tuple[str, ...] = mixtures[problem.seed % len(mixtures)]
    others = OTHERS[subject.dtype]
    other = others[problem.seed // len(mixtures) % len(others)]
    changed = {name: _converted(getattr(inputs, name), other) for name in names}
    if inputs.mode == "memory":
        changed.pop("value")
    mixed = inputs.with_tokens(**changed)
    large = narrow_range(subject) and "key" in names and subject.declaration.mixed != "query"
    if not large or inputs.is_layer or mixed.query.dtype != torch.float16:
        return mixed
    return mixed.with_tokens(query=mixed.query * SMALL_QUERIES, key=mixed.key * LARGE_KEYS)


def _converted(tensor: Tensor, other: torch.dtype) -> Tensor:
    """Cast to another dtype, with digits beyond the reach of the narrower dtype."""
    digits = torch.linspace(-MORE_DIGITS, MORE_DIGITS, max(tensor.numel(), 1), dtype=torch.float64)
    digits = digits[: tensor.numel()].reshape(tensor.shape)
    return (tensor.double() * (1.0 + digits)).to(other)


def promoted(inputs: Inputs) -> torch.dtype:
    """The dtype that holds every input, and a layer's weights."""
    dtypes = [tensor.dtype for tensor in (inputs.query, inputs.key, inputs.value)]
    if inputs.weights is not None:
        dtypes.append(inputs.weights.q.dtype)
    return reduce(torch.promote_types, dtypes)


def name_of(dtype: torch.dtype) -> str:
    """How declarations write a dtype: ``float16``."""
    return str(dtype).removeprefix("torch.")


def _dtypes_of(inputs: Inputs) -> str:
    tensors = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
    return ", ".join(f"{name} {name_of(tensor.dtype)}" for name, tensor in tensors.items())


def _refused(subject: Subject, inputs: Inputs) -> Finding:
    answer = subject.answer_or_refusal(inputs)
    if answer is None:
        return Finding()
    message = (
        f"it declares mixed='refuse' but answers {_dtypes_of(inputs)} in {name_of(answer.dtype)} "
        "instead of raising"
    )
    return violated("not-raised", message)


def _of_another_dtype(
    inputs: Inputs, answer: Tensor, declared: str, *expected: torch.dtype
) -> Finding:
    names = " or ".join(dict.fromkeys(name_of(dtype) for dtype in expected))
    message = (
        f"{_dtypes_of(inputs)} are answered in {name_of(answer.dtype)} where {declared}: expected "
        f"{names}"
    )
    return violated("dtype", message, expected=names, got=name_of(answer.dtype))


def _right(subject: Subject, inputs: Inputs, answer: Tensor, *, cast: bool) -> Finding:
    """Compare the answer with the golden for the uncast inputs, at the precision of its dtype.

    With ``cast`` all or some of the inputs may also be cast to the query's dtype.
    """
    oracle = Oracle(subject.declaration, name_of(answer.dtype))
    golden_answer = oracle.answer(inputs)
    expected, bound = golden_answer.output, golden_answer.bound
    # Rows count that the widest dtype can represent, though the answer may be narrower.
    judged = Oracle(subject.declaration, name_of(promoted(inputs))).answer(inputs).judged
    if cast:
        golden_answer = oracle.answer(_cast(inputs))
        bound = golden_answer.bound + (golden_answer.output - expected).abs()
        expected, judged = golden_answer.output, golden_answer.judged
    wording = f"{_dtypes_of(inputs)} give a wrong answer in {name_of(answer.dtype)}"
    agreement = compare(answer, expected, bound, judged=judged, wording=wording)
    return Finding.of(agreement, binding=bool(judged.any()))


def _cast(inputs: Inputs) -> Inputs:
    working = inputs.query.dtype
    return inputs.with_tokens(
        key=inputs.key.to(working),
        value=None if inputs.mode == "memory" else inputs.value.to(working),
    )


# The dtype of the mask for each working dtype; torch has none wider than float64.
WIDER: Final = {"float16": "float32", "bfloat16": "float32", "float32": "float64"}
# Added to all keys of a row, which does not change the softmax: where numbers of the narrower dtype
# lie four apart, and beyond float16's largest.
COMMON: Final = {
    "float16": (2.0**12, 2.0**17),
    "bfloat16": (2.0**9, 2.0**9),
    "float32": (2.0**25, 2.0**25),
}
STEPS: Final = 4
STEP: Final = 0.75


@clause(
    "mixed.mask-dtype",
    level="SHOULD",
    sentence=(
        "An additive mask in a wider dtype than the query's is refused, or added with the values "
        "it has: neither rounded to the narrower dtype nor beyond its range."
    ),
    source="pytorch#99012: float32 masks under queries in half precision",
    space=Space(
        mask="always",
        forms=("bias",),
        values=("normal",),
        least=(("key_length", 2),),
        share=0.25,
    ),
    needs_golden=True,
    counterfactual="the mask rounded to the dtype of the query",
    applies=(promotes,),
    explained=False,
    subtle=True,
)
def mask_dtype(subject: Subject, problem: Problem) -> Finding:
    """Float32 under half precision, float64 under float32: a large number plus small steps."""
    reason = _without_wider(subject)
    if reason:
        return Finding(inapplicable=reason)
    inputs, common = subject.inputs(problem), COMMON[subject.dtype][problem.seed % 2]
    steps = _steps(inputs, problem.seed)
    wide = TORCH_DTYPES[WIDER[subject.dtype]]
    masked = inputs.replace(bias=(steps + common).to(wide), generic=False)
    answer = subject.answer_or_refusal(masked)
    if answer is None:
        return Finding()
    plain = inputs.replace(bias=steps, generic=False)
    expected, bound = subject.golden(plain), _bound(subject, plain, masked)
    wording = f"a {WIDER[subject.dtype]} mask is not added with its own values"
    agreement = compare(answer, expected.output, bound, judged=expected.judged, wording=wording)
    rounded = (steps + common).to(inputs.query.dtype).double() - common
    lost = subject.oracle.output(inputs.replace(bias=rounded))
    return Finding.of(agreement, binding=moves(expected.output, lost, bound, expected.judged))


def _without_wider(subject: Subject) -> str:
    if subject.dtype not in WIDER:
        return f"no mask is wider than {subject.dtype}"
    if subject.declaration.accumulate in ("native", "float16", "bfloat16"):
        return "it declares to add up in the dtype of the query"
    return ""


def _steps(inputs: Inputs, seed: int) -> Tensor:
    """Small differences between neighbouring keys, in the shape of the mask."""
    shape = (1, 1, 1, inputs.geometry.key_length) if inputs.keep is None else inputs.keep.shape
    generator = torch.Generator().manual_seed(seed)
    return STEP * torch.randint(0, STEPS, shape, generator=generator).double()


def _bound(subject: Subject, plain: Inputs, masked: Inputs) -> Tensor:
    """The errors of computing with the small steps, and with the large mask in the wide dtype.

    Their sum: scores may be stored in the narrow dtype before, not after, the mask is added.
    """
    expected = subject.golden(plain)
    wide = WIDER[subject.dtype]
    contract = dataclasses.replace(
        subject.oracle.contract(expected.core.scale),
        score_roundoff=0.0,
        accumulator_roundoff=model.UNIT_ROUNDOFF[wide],
        accumulator_underflow=model.UNDERFLOW[wide],
    )
    return expected.bound + subject.oracle.bound(masked, contract)


AUTOCAST: Final = (torch.bfloat16, torch.float16)


def _declares_autocast(candidate: Candidate) -> str:
    if "autocast" not in candidate.declaration.features:
        return "no autocast is declared"
    if "float32" not in candidate.declaration.dtypes:
        return "it does not take float32, which autocast speaks of"
    return ""


@clause(
    "mixed.autocast",
    sentence=(
        "Under torch.autocast, float32 inputs give an answer in the dtype of autocast or in "
        "float32, as exact as the dtype of autocast allows."
    ),
    source="torch.autocast; pytorch#99012: masks that stay float32 under it",
    space=Space(
        values=("normal", "integers", "decisive"),
        mask="maybe",
        causal="maybe",
        least=(("key_length", 2),),
        share=0.5,
    ),
    needs_golden=True,
    counterfactual="equal weights",
    applies=(_declares_autocast,),
    explained=False,
)
def autocast(subject: Subject, problem: Problem) -> Finding:
    """bfloat16 and float16 in turn."""
    if subject.dtype != "float32":
        return Finding(inapplicable="autocast speaks of float32 inputs")
    inputs = subject.inputs(problem)
    working = AUTOCAST[problem.seed % len(AUTOCAST)]
    forward = subject.forward(inputs)

    def within(*positional: Any, **keywords: Any) -> Any:
        with torch.autocast(torch.device(subject.device).type, dtype=working):
            return forward(*positional, **keywords)

    answer = subject.call_with(within, arguments(inputs), inputs).output
    if answer.dtype not in (working, torch.float32):
        message = f"under autocast to {name_of(working)} the answer is in {name_of(answer.dtype)}"
        got = name_of(answer.dtype)
        return violated("dtype", message, got=got)
    oracle = _oracle(subject, working)
    expected = oracle.answer(inputs)
    # Every tensor may be rounded on its way into a product.
    contract = oracle.contract(expected.core.scale)
    contract = dataclasses.replace(contract, operand_roundoff=contract.unit_roundoff)
    bound = oracle.bound(inputs, contract)
    wording = f"under autocast to {name_of(working)} the answer is wrong"
    agreement = compare(answer, expected.output, bound, judged=expected.judged, wording=wording)
    even = golden_at(subject, inputs, inputs.replace(scale=0.0))
    return Finding.of(agreement, binding=moves(expected.output, even, bound, expected.judged))


def _oracle(subject: Subject, working: torch.dtype) -> Oracle:
    """The golden at the precision of autocast: every operation stores its result."""
    declared = dataclasses.replace(subject.declaration, accumulate=None, scores="eager", tf32=False)
    return Oracle(declared, name_of(working))
