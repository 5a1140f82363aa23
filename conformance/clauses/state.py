"""state.*: a call leaves no trace, and the same call gives the same answer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..calling import arguments
from ..inputs import Inputs
from ..materialise import generator_for
from ..problem import Problem
from ..recipes import LIVELY
from ..registry import Finding, clause
from ..results import Violation
from ..space import Space
from ..subject import Subject
from ._vocabulary import (
    View,
    as_given,
    identical,
    permutation,
    relate,
    same_unless_identical,
    take,
)

ANY = Space(mask="maybe", causal="maybe")
LIVELY_ANY = Space(mask="maybe", causal="maybe", values=LIVELY)


@clause(
    "state.inputs-unchanged",
    level="MUST",
    sentence="A call changes none of the tensors it is given.",
    source="PEERS: editing the inputs so that the reference sees the same edit",
    space=Space(mask="maybe", causal="maybe", patterns=("random", "empty-rows", "padding")),
    explained=False,
)
def inputs_unchanged(subject: Subject, problem: Problem) -> Finding:
    """Every tensor of the call compared with a copy, NaN equal to NaN, bit for bit."""
    asks = "weights" in subject.declaration.features and problem.seed % 2 == 1
    inputs = subject.inputs(problem).replace(return_weights=asks)
    forward = subject.forward(inputs)
    positional, keywords = arguments(inputs)
    given = dict(zip(_names(subject, positional), positional, strict=True))
    given |= {name: value for name, value in keywords.items() if isinstance(value, Tensor)}
    before = {name: tensor.clone() for name, tensor in given.items()}
    subject.ask(forward, (positional, keywords), inputs)
    changed = [name for name, tensor in given.items() if not identical(tensor, before[name])]
    if not changed:
        return Finding()
    message = f"the call changed its {' and '.join(changed)} in place"
    return Finding(violation=Violation(kind="mutated", message=message, got=changed))


def _names(subject: Subject, positional: tuple[Tensor, ...]) -> list[str]:
    return list(subject.declaration.positional)[: len(positional)]


@clause(
    "state.repeatable",
    level="MUST",
    sentence="The same call made twice gives the same answer, within the bound.",
    source="BUGS 50, 55: races, dropout left on",
    space=ANY,
    explained=False,
)
def repeatable(subject: Subject, problem: Problem) -> Finding:
    """Two calls of one forward with equal inputs."""
    inputs = subject.inputs(problem)
    forward = subject.forward(inputs)
    first = subject.call(forward, inputs).output
    second = subject.call(forward, inputs).output
    wording = "the same call made twice gives two answers"
    return same_unless_identical(subject, (inputs, first), (inputs, second), wording)


@clause(
    "state.bitwise-repeatable",
    level="SHOULD",
    sentence="The same call made twice gives the same bits.",
    source="BUGS 50: races; DESIGN: bit equality is SHOULD",
    space=ANY,
    explained=False,
)
def bitwise_repeatable(subject: Subject, problem: Problem) -> Finding:
    """Two calls of one forward, compared bit for bit (NaN equal to NaN)."""
    inputs = subject.inputs(problem)
    forward = subject.forward(inputs)
    first = subject.call(forward, inputs).output
    second = subject.call(forward, inputs).output
    if identical(first, second):
        return Finding()
    largest = float((first.double() - second.double()).abs().nan_to_num().max())
    message = f"two equal calls differ in bits (by up to {largest:.3g})"
    return Finding(violation=Violation(kind="value", message=message, got=largest, expected=0.0))


@clause(
    "state.no-memory",
    level="MUST",
    sentence="An answer depends on the values of this call alone, not on earlier calls.",
    source="PEERS: returning the previous result by data_ptr or shape",
    space=Space(mask="maybe", values=LIVELY),
    counterfactual="the answer to the call before",
    explained=False,
)
def no_memory(subject: Subject, problem: Problem) -> Finding:
    """Other values in the same storage and shape, against the same in another order."""
    earlier = subject.inputs(problem)
    later = subject.inputs(problem.replace(seed=problem.seed + 1))
    forward = subject.forward(earlier)
    later = later.replace(weights=earlier.weights, keep=earlier.keep, bias=earlier.bias)
    positional, keywords = arguments(earlier)
    subject.ask(forward, (positional, keywords), earlier)
    fresh, _ = arguments(later)
    for storage, values in zip(positional, fresh, strict=True):
        storage.copy_(values)
    _, keywords = arguments(later)
    again = subject.ask(forward, (positional, keywords), later).output
    asked_anew, view = _reordered(subject, later, problem)
    answer = subject.answer(asked_anew)
    return relate(
        subject,
        (later, again),
        (asked_anew, answer),
        "after an earlier call in the same storage the answer is another",
        view=view,
        counterfactual=lambda: view(subject.oracle.output(earlier)),
    )


def _reordered(subject: Subject, inputs: Inputs, problem: Problem) -> tuple[Inputs, View]:
    """The same question with items in another order: what was remembered by shape does not fit."""
    generator = generator_for(problem, 12)
    if inputs.geometry.batch == 1:
        if subject.declaration.position is not None:  # order matters there
            return inputs, as_given
        return _reordered_rows(inputs, generator)
    order = permutation(inputs.geometry.batch, generator)
    moved = inputs.with_tokens(
        query=inputs.query[order], key=inputs.key[order], value=inputs.value[order]
    ).replace(keep=take(inputs.keep, 0, order), bias=take(inputs.bias, 0, order))
    return moved, lambda answer: answer[order]


def _reordered_rows(inputs: Inputs, generator: torch.Generator) -> tuple[Inputs, View]:
    """For one item the queries change places; tokens that are keys too only without a mask."""
    order = permutation(inputs.geometry.query_length, generator)
    if inputs.mode == "self" and inputs.masked:
        return inputs, as_given
    moved = inputs.with_tokens(
        query=inputs.query.index_select(-2, order),
        key=inputs.key.index_select(-2, order) if inputs.mode == "self" else None,
    ).replace(keep=take(inputs.keep, 2, order), bias=take(inputs.bias, 2, order))
    return moved, lambda answer: answer.index_select(-2, order)


@clause(
    "state.answer-kept",
    level="MUST",
    sentence="An answer stays what it was when the next call is made.",
    source="PEERS: stale results; an output buffer that is used again",
    space=Space(values=LIVELY),
    explained=False,
)
def answer_kept(subject: Subject, problem: Problem) -> Finding:
    """The tensor of one call, looked at again after a call with other values."""
    inputs = subject.inputs(problem)
    other = subject.inputs(problem.replace(seed=problem.seed + 1)).replace(weights=inputs.weights)
    forward = subject.forward(inputs)
    answer = subject.call(forward, inputs).output
    before = answer.clone()
    subject.call(forward, other)
    if identical(answer, before):
        return Finding()
    message = "a later call overwrote an earlier answer: the output buffer is used again"
    return Finding(violation=Violation(kind="mutated", message=message))
