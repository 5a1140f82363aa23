"""state.*: a call leaves no trace, and the same call gives the same answer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..base.results import Violation
from ..calls.calling import Arguments, CandidateFailure, arguments
from ..declare.declaration import SEQUENCES
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from ._vocabulary import (
    View,
    as_given,
    identical,
    permutation,
    relate,
    same_unless_identical,
    still_says,
    take,
)
from .registry import Finding, clause
from .subject import Subject

ANY = Space(mask="maybe", causal="maybe", share=0.5)
# What is another in the second of two calls: mostly everything.
CHANGES = ("all", "query", "key", "value", "mask", "last token", "all")
EVERYBODY = ("core", "layer", "positions")


@clause(
    "state.repeatable",
    level="MUST",
    sentence="The same call made twice gives the same answer, within the bound.",
    source="BUGS 50, 55: races, dropout left on",
    space=ANY,
    explained=False,
    of_repetition=True,
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
    of_repetition=True,
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
    space=Space(mask="maybe", values=LIVELY, share=0.5),
    counterfactual="the answer to the call before",
    explained=False,
)
def no_memory(subject: Subject, problem: Problem) -> Finding:
    """Other values in the same storage and shape, against the same in another order."""
    earlier = subject.inputs(problem)
    later = _changed(earlier, subject.inputs(problem.replace(seed=problem.seed + 1)), problem.seed)
    forward = subject.forward(earlier)
    given = arguments(earlier)
    first = subject.ask(forward, given, earlier).output.clone()
    overwrite(given, arguments(later))
    again = subject.ask(forward, given, later).output
    asked_anew, view = reordered(subject, later, problem)
    answer = subject.answer(asked_anew)
    found = relate(
        subject,
        (later, again),
        (asked_anew, answer),
        "after an earlier call in the same storage the answer is another than to the same question "
        "asked anew, its items in another order",
        view=view,
        counterfactual=lambda: view(subject.oracle.output(earlier)),
    )
    if found.violation is not None and only_order_counts(subject, later, (again, answer), first):
        return Finding(binding=False)
    return found


def only_order_counts(
    subject: Subject, later: Inputs, answers: tuple[Tensor, Tensor], first: Tensor
) -> bool:
    """Whether the order of what was asked explains two answers, so that nothing is remembered.

    Who forgets says the same when asked once more in fresh tensors. Who looks an answer up by shape
    does so, too, but returns one of the answers that it has already given.
    """
    again, reordered_answer = answers
    anew = subject.answer(later)
    steady = same_unless_identical(subject, (later, again), (later, anew), "")
    repeated = identical(again, reordered_answer) or identical(again, first)
    return steady.violation is None and not repeated


def _changed(earlier: Inputs, other: Inputs, seed: int) -> Inputs:
    """The next question: everything is another, or only one of the tensors, or the last token.

    What is remembered by a part of a question is found by changing the rest.
    """
    later = earlier.replace(generic=False)
    if earlier.masked and seed % 3 != 1:
        later = later.replace(keep=_other_keep(earlier, other), bias=other.bias)
    last = CHANGES[seed % len(CHANGES)] == "last token"
    named = {
        name: _last_changed(getattr(earlier, name), getattr(other, name)) if last else tensor
        for name, tensor in (("query", other.query), ("key", other.key), ("value", other.value))
    }
    change = CHANGES[seed % len(CHANGES)]
    if change in named and earlier.mode == "separate":
        named = {change: named[change]}
    elif change == "mask" and earlier.masked:
        keep = _other_keep(earlier, other)
        return earlier.replace(keep=keep, bias=other.bias, generic=False)
    return later.with_tokens(**named)


def _other_keep(earlier: Inputs, other: Inputs) -> Tensor | None:
    """Another mask; sequences change places, since as many tokens must fit in the storage."""
    if earlier.mask_form != SEQUENCES or earlier.keep is None:
        return other.keep
    return earlier.keep.roll(1, dims=0)


def _last_changed(earlier: Tensor, other: Tensor) -> Tensor:
    return torch.cat([earlier[..., :-1, :], other[..., -1:, :]], dim=-2)


def overwrite(given: Arguments, values: Arguments) -> None:
    """Put other values into the tensors of a call, mask included."""
    for storage, fresh in zip(given[0], values[0], strict=True):
        storage.copy_(fresh)
    for name, fresh in values[1].items():
        if isinstance(fresh, Tensor):
            given[1][name].copy_(fresh)


def reordered(subject: Subject, inputs: Inputs, problem: Problem) -> tuple[Inputs, View]:
    """The same question with items in another order: what was remembered by shape does not fit."""
    generator = generator_for(problem, 12)
    if inputs.geometry.batch == 1:
        declared = subject.declaration
        if declared.position is not None or declared.always_causal:  # order matters there
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
    space=Space(values=LIVELY, kinds=EVERYBODY, share=0.5),
    explained=False,
)
def answer_kept(subject: Subject, problem: Problem) -> Finding:
    """The tensor of one call, looked at again after a call with other values."""
    inputs = subject.inputs(problem)
    other = subject.inputs(problem.replace(seed=problem.seed + 1)).replace(weights=inputs.weights)
    forward = subject.forward(inputs)
    answer = subject.call(forward, inputs)
    subject.call(forward, other)
    if still_says(answer):
        return Finding()
    message = "a later call overwrote an earlier answer: the output buffer is used again"
    return Finding(violation=Violation(kind="mutated", message=message))


@clause(
    "state.grad-mode",
    level="MUST",
    sentence="The answer is the same whether or not gradients are recorded.",
    source="pytorch#97128, PR#190486: a fast path that is taken without gradients only",
    space=Space(mask="maybe", causal="maybe", extras="maybe", share=0.5),
    explained=False,
)
def grad_mode(subject: Subject, problem: Problem) -> Finding:
    """The same call under no_grad, with gradients recorded, and with inputs that ask for them."""
    inputs = subject.inputs(problem)
    plain, recording = subject.answer(inputs), inputs.replace(grad_mode=True)
    answers = [subject.answer(recording), _with_leaves(subject, recording)]
    wording = "with gradients recorded the answer is another"
    findings = [
        same_unless_identical(subject, (inputs, plain), (inputs, answer), wording)
        for answer in answers
        if answer is not None
    ]
    return next((found for found in findings if found.violation is not None), findings[0])


def _with_leaves(subject: Subject, inputs: Inputs) -> Tensor | None:
    """The answer for inputs that want gradients; None where such are refused.

    Whether gradients can be had is another question.
    """
    tensors, keywords = arguments(inputs)
    asking = tuple(tensor.requires_grad_() for tensor in tensors)
    try:
        return subject.ask(subject.forward(inputs), (asking, keywords), inputs).output
    except CandidateFailure as failure:
        if failure.violation.kind != "raised":
            raise
        return None
