"""mixed.inputs, .undeclared-inputs: query, key and value of different dtypes."""

from __future__ import annotations

from functools import reduce
from typing import Final

import torch
from torch import Tensor

from ..base.results import Violation
from ..calls.calling import CandidateFailure
from ..declare.candidate import Candidate
from ..oracle.comparison import compare
from ..oracle.oracle import Oracle
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.space import Space
from ._vocabulary import narrow_range
from .registry import Finding, clause
from .subject import Subject

# The dtypes that stand beside the working one.
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
# Keys past float16's largest number, and queries that make up for it, normal numbers still.
LARGE_KEYS: Final = 2.0**16
SMALL_QUERIES: Final = 2.0**-8
MIXED: Final = Space(values=("normal", "decisive"), least=(("key_length", 2),), share=0.25)


def takes_several(candidate: Candidate) -> str:
    """Why no call can have inputs of several dtypes, or ""."""
    declared = candidate.declaration
    if declared.inputs == "self" or declared.layout == "packed-qkv":
        return "its inputs are one tensor"
    return promotes(candidate)


def promotes(candidate: Candidate) -> str:
    """Why torch's rules for several dtypes do not hold, or ""."""
    if candidate.graph is not None:
        return "its file says which dtypes it takes"
    arrays = candidate.declaration.arrays
    return "" if arrays == "torch" else f"{arrays} has rules of its own for several dtypes"


def _declared(candidate: Candidate) -> str:
    rule = candidate.declaration.mixed
    return "" if rule is not None else "it declares nothing about mixed dtypes"


def _undeclared(candidate: Candidate) -> str:
    rule = candidate.declaration.mixed
    return "" if rule is None else f"it declares mixed={rule!r}"


@clause(
    "mixed.inputs",
    level="MUST",
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
    """Another mixture for each problem."""
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
    """The same mixtures where nothing is promised."""
    inputs = mixture(subject, problem)
    try:
        answer = subject.answer(inputs)
    except CandidateFailure as failure:
        if failure.violation.kind == "raised":
            return Finding()
        raise
    allowed = (inputs.query.dtype, promoted(inputs))
    if answer.dtype not in allowed:
        return _of_another_dtype(inputs, answer, "nothing is declared", *allowed)
    return _right(subject, inputs, answer, cast=False)


def mixture(subject: Subject, problem: Problem) -> Inputs:
    """The inputs of a problem, some of them in another dtype and with digits of their own."""
    inputs = subject.inputs(problem)
    mixtures: tuple[tuple[str, ...], ...]
    if subject.declaration.inputs == "memory" or subject.declaration.layout == "packed-kv":
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
    """In another dtype; in a wider one with digits that the narrower one has not."""
    digits = torch.linspace(-MORE_DIGITS, MORE_DIGITS, max(tensor.numel(), 1), dtype=torch.float64)
    digits = digits[: tensor.numel()].reshape(tensor.shape)
    return (tensor.double() * (1.0 + digits)).to(other)


def promoted(inputs: Inputs) -> torch.dtype:
    """The dtype that holds every input; of a layer its weights, too."""
    dtypes = [tensor.dtype for tensor in (inputs.query, inputs.key, inputs.value)]
    if inputs.weights is not None:
        dtypes.append(inputs.weights.q.dtype)
    return reduce(torch.promote_types, dtypes)


def name_of(dtype: torch.dtype) -> str:
    """How declarations write a dtype: ``float16``."""
    return str(dtype).removeprefix("torch.")


def _spoken(inputs: Inputs) -> str:
    """The dtypes of a call: ``query float16, key and value float32``."""
    tensors = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
    return ", ".join(f"{name} {name_of(tensor.dtype)}" for name, tensor in tensors.items())


def _refused(subject: Subject, inputs: Inputs) -> Finding:
    try:
        answer = subject.answer(inputs)
    except CandidateFailure as failure:
        if failure.violation.kind == "raised":
            return Finding()
        raise
    message = (
        f"it declares mixed='refuse' but answers {_spoken(inputs)} in {name_of(answer.dtype)} "
        "instead of raising"
    )
    return Finding(violation=Violation(kind="not-raised", message=message))


def _of_another_dtype(
    inputs: Inputs, answer: Tensor, declared: str, *expected: torch.dtype
) -> Finding:
    names = " or ".join(dict.fromkeys(name_of(dtype) for dtype in expected))
    message = (
        f"{_spoken(inputs)} are answered in {name_of(answer.dtype)} where {declared}: expected "
        f"{names}"
    )
    violation = Violation(kind="dtype", message=message, expected=names, got=name_of(answer.dtype))
    return Finding(violation=violation)


def _right(subject: Subject, inputs: Inputs, answer: Tensor, *, cast: bool) -> Finding:
    """Right for the inputs as they are, at the precision of the answer's dtype.

    With ``cast`` for those that are cast to the query's dtype, or for any between both.
    """
    oracle = Oracle(subject.declaration, name_of(answer.dtype))
    known = oracle.answer(inputs)
    expected, bound = known.output, known.bound
    # What the widest dtype holds is to be used, though the answer may be narrower.
    judged = Oracle(subject.declaration, name_of(promoted(inputs))).answer(inputs).judged
    if cast:
        known = oracle.answer(_cast(inputs))
        bound = known.bound + (known.output - expected).abs()
        expected, judged = known.output, known.judged
    agreement = compare(
        answer,
        expected,
        bound,
        judged=judged,
        wording=f"{_spoken(inputs)} give a wrong answer in {name_of(answer.dtype)}",
    )
    return Finding(
        binding=bool(judged.any()), margin=agreement.margin, violation=agreement.violation
    )


def _cast(inputs: Inputs) -> Inputs:
    working = inputs.query.dtype
    return inputs.with_tokens(
        key=inputs.key.to(working),
        value=None if inputs.mode == "memory" else inputs.value.to(working),
    )
