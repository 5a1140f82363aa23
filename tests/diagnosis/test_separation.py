"""The battery tells named mistakes apart, but for those that are the same thing."""

from __future__ import annotations

import pytest
import torch
from examples import core, layer
from torch import Tensor

from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis.battery import battery
from conformance.diagnosis.mistaken_answer import act
from conformance.diagnosis.mistakes import (
    MISTAKES,
    DeclaredCall,
    NamedMistake,
    NotExpressible,
    touches,
)
from conformance.problems.inputs import Inputs
from conformance.tolerance import model

# What two names share that nothing could tell apart, and why.
EQUIVALENT: dict[frozenset[str], str] = {
    frozenset({"empty-rows-nan", "empty-row-empties-the-rest"}): (
        "behind the output projection, one head's NaN is that of the whole row"
    ),
    frozenset({"empty-rows-nan", "empty-row-empties-the-rest", "empty-rows-infinite"}): (
        "behind the output projection, infinities of both signs add up to NaN"
    ),
}
KINDS = (torch.isnan, torch.isposinf, torch.isneginf)
# Squared errors of float64.
ROUNDING = 1e-12
Group = list[NamedMistake]


def answer(subject: Subject, inputs: Inputs, mistake: NamedMistake) -> Tensor:
    """What a candidate with one mistake answers; nothing where the mistake cannot be made."""
    declared = subject.declaration.semantics
    if not touches(mistake, DeclaredCall(inputs=inputs, semantics=declared)):
        return subject.golden(inputs).output
    try:
        return act(subject.oracle, declared, [mistake], inputs).output
    except NotExpressible:
        return torch.empty(0)


def differ(one: Tensor, other: Tensor, golden: Tensor) -> bool:
    """Whether two answers are far enough apart for a search."""
    if one.shape != other.shape:
        return True
    if one.shape != golden.shape:
        return not torch.equal(one, other)
    if any(not torch.equal(kind(one), kind(other)) for kind in KINDS):
        return True
    finite = torch.isfinite(one) & torch.isfinite(golden)
    left = float((one - other)[finite].square().sum())
    apart = float((one - golden)[finite].square().sum())
    return left > model.MUCH_CLOSER**2 * apart + ROUNDING


def split(subject: Subject, inputs: Inputs, group: Group) -> list[Group]:
    """The mistakes of a group, those of nearly the same answer together."""
    golden = subject.golden(inputs).output
    parts: list[tuple[Tensor, Group]] = []
    for mistake in group:
        given = answer(subject, inputs, mistake)
        for representative, part in parts:
            if not differ(given, representative, golden):
                part.append(mistake)
                break
        else:
            parts.append((given, [mistake]))
    return [part for _, part in parts]


def says_more_than_one_thing(group: Group) -> bool:
    """Whether names in a group are neither one, nor listed as equivalent, nor special cases."""
    names = {mistake.name for mistake in group}
    general = {mistake.special_of for mistake in group if mistake.special_of}
    left = names - {m.name for m in group if m.special_of in names | general}
    return len(left) > 1 and frozenset(left) not in EQUIVALENT


WITH_CACHE = core(masks=["keep"], features=["scale", "gqa", "window", "kv_cache"])


@pytest.mark.nightly  # it takes all names to all problems of the battery
@pytest.mark.parametrize(
    "candidate", [core(), WITH_CACHE, layer()], ids=["core", "core with a cache", "layer"]
)
def test_named_mistakes_separate(candidate: Candidate) -> None:
    """No two names have the same answers to the whole battery, unless they are listed as one.

    Those that change nothing for this candidate stay together with what is right.
    """
    subject = Subject(candidate, "float32")
    point = subject.declaration.semantics
    groups = [[m for m in MISTAKES if not m.changes or m.at(point) != point]]
    problems = list(battery(subject))
    for inputs in problems:
        groups = [part for group in groups for part in split(subject, inputs, group)]
        groups = [group for group in groups if len({m.name for m in group}) > 1]
    mixed = [group for group in groups if not changes_nothing(subject, problems, group[0])]
    told = [sorted({m.name for m in group}) for group in mixed if says_more_than_one_thing(group)]
    assert told == []


def changes_nothing(subject: Subject, problems: list[Inputs], mistake: NamedMistake) -> bool:
    """Whether a mistake is none for this candidate: no problem shows it."""
    return not any(
        differ(answer(subject, inputs, mistake), right, right)
        for inputs in problems
        for right in [subject.golden(inputs).output]
    )
