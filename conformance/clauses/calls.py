"""state.call-order: what was asked before, in whatever sizes, leaves an answer as it is."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ..calls.calling import Forward
from ..problems.caching import draws_cache, settle_past
from ..problems.inputs import Inputs
from ..problems.problem import MaskPlan, Problem
from ..problems.recipes import LIVELY
from ..problems.settling import one_at_a_time, settle_causal
from ..problems.space import Space, admits_lengths, can_cross
from ._vocabulary import same_unless_identical
from .registry import Finding, clause
from .subject import Subject

# How often one question is asked at the end: what gives up after some calls does so by then.
REPEATS = 8
ORDER = Space(mask="maybe", causal="maybe", extras="maybe", values=LIVELY, share=0.25)


@clause(
    "state.call-order",
    level="MUST",
    sentence=(
        "Earlier calls, of other sizes, masks and options, and their number change no answer."
    ),
    source="PEERS: detecting warm-up, results by shape; masks that are cached by length",
    space=ORDER,
    explained=False,
)
def call_order(subject: Subject, problem: Problem) -> Finding:
    """Longer, shorter, more items, other masks: in one order, and in the reverse one."""
    asked = list(_asked(subject, problem))
    forwards = subject.forward(asked[0]), subject.forward(asked[0])
    _build_another(subject, problem)
    first = [subject.call(forwards[0], inputs).output for inputs in asked]
    second = [subject.call(forwards[1], inputs).output for inputs in reversed(asked)]
    for inputs, one, two in zip(asked, first, reversed(second), strict=True):
        wording = "an answer depends on which calls were made before"
        finding = same_unless_identical(subject, (inputs, one), (inputs, two), wording)
        if finding.violation is not None:
            return finding
    opening = _first_of_all(subject)
    if opening.violation is not None:
        return opening
    last = _asked_often(subject, forwards[0], asked[0])
    wording = f"after {len(asked) + REPEATS} calls the answer is another"
    return same_unless_identical(subject, (asked[0], first[0]), (asked[0], last), wording)


def _build_another(subject: Subject, problem: Problem) -> None:
    """A layer of other weights is built and called: those built before keep theirs."""
    if subject.candidate.draws_weights:
        subject.answer(subject.inputs(problem.replace(seed=problem.seed + 1)))


def _first_of_all(subject: Subject) -> Finding:
    """The very first call that a candidate got, made once more."""
    if subject.first_answer is None:
        return Finding()
    inputs, first = subject.first_answer
    again = subject.answer(inputs)
    wording = "the first call of all was answered otherwise"
    return same_unless_identical(subject, (inputs, first), (inputs, again), wording)


def _asked_often(subject: Subject, forward: Forward, inputs: Inputs) -> Tensor:
    for _ in range(REPEATS - 1):
        subject.call(forward, inputs)
    return subject.call(forward, inputs).output


def _asked(subject: Subject, problem: Problem) -> Iterator[Inputs]:
    """The problem, and others that the same built layer can be asked."""
    first = subject.inputs(problem)
    yield first
    for each in _others(subject, problem):
        other = one_at_a_time(each, subject.candidate)
        if admits_lengths(subject.candidate, other.geometry):
            yield subject.inputs(other).replace(weights=first.weights)


def _others(subject: Subject, problem: Problem) -> Iterator[Problem]:
    geometry, declared = problem.geometry, subject.declaration
    causal = settle_causal(subject.candidate, flagged=True)
    other = settle_causal(subject.candidate, flagged=not problem.causal)
    masks = ORDER.options(subject.candidate)
    form, shape = masks[problem.seed % len(masks)] if masks else ("", "")
    mask = MaskPlan(pattern="random", form=form, shape=shape) if masks else None
    other_mask = mask if problem.mask is None else None
    longer, fewer = geometry.key_length + 3, (geometry.key_length + 1) // 2
    queries = geometry.query_length + 2 if can_cross(subject.candidate) else longer
    short = (geometry.query_length + 1) // 2 if can_cross(subject.candidate) else fewer
    long_one = geometry.replace(key_length=longer, query_length=queries)
    yield problem.replace(seed=problem.seed + 1, mask=mask)
    yield problem.replace(geometry=long_one, causal=causal)
    yield problem.replace(geometry=geometry.replace(key_length=fewer, query_length=short))
    items = geometry.batch + 1 if declared.batched else 1
    yield problem.replace(geometry=long_one.replace(batch=items), mask=other_mask)
    yield problem.replace(causal=other)
    # Without the options of the others, and then behind a cache: what either leaves shows in both.
    plain = problem.replace(past=0, scale=None, softcap=None, window=None, causal=causal)
    yield plain
    if draws_cache(subject.candidate):
        half = plain.replace(past=(geometry.key_length + 1) // 2)
        yield half.replace(past=settle_past(half, subject.candidate))
