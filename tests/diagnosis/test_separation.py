"""The battery tells named mistakes apart, but for those that are the same thing."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from examples import core, layer
from torch import Tensor

from conformance.candidate import Candidate
from conformance.diagnosis.acting import act
from conformance.diagnosis.battery import battery
from conformance.diagnosis.search import touches
from conformance.inputs import Inputs
from conformance.mistakes import MISTAKES, Asked, NamedMistake, NotExpressible
from conformance.subject import Subject
from conformance.tolerance import model

Answers = list[Tensor | None]
# What two names share that nothing could tell apart, and why.
EQUIVALENT: dict[frozenset[str], str] = {}


def answers(subject: Subject, problems: list[Inputs], mistake: NamedMistake) -> Answers:
    """What a candidate with one mistake answers; None where the mistake changes nothing."""
    declared = subject.declaration.semantics
    found: Answers = []
    for inputs in problems:
        if not touches(mistake, Asked(inputs=inputs, semantics=declared)):
            found.append(None)
            continue
        try:
            found.append(act(subject.oracle, declared, [mistake], inputs).output)
        except NotExpressible:
            found.append(torch.empty(0))
    return found


def differ(one: Tensor | None, other: Tensor | None, golden: Tensor) -> bool:
    """Whether two answers are far enough apart for a search."""
    one = golden if one is None else one
    other = golden if other is None else other
    if one.shape != other.shape:
        return True
    if one.shape != golden.shape:
        return not torch.equal(one, other)
    if not torch.equal(torch.isfinite(one), torch.isfinite(other)):
        return True
    finite = torch.isfinite(one) & torch.isfinite(golden)
    left = (one - other)[finite].square().sum()
    return bool(left > model.MUCH_CLOSER**2 * (one - golden)[finite].square().sum() + 1e-6)


@pytest.mark.parametrize("candidate", [core(), layer()], ids=["core", "layer"])
def test_named_mistakes_separate(candidate: Candidate) -> None:
    """No two names have the same answers to the whole battery, unless they are listed as one."""
    subject = Subject(candidate, "float32")
    problems = list(battery(subject))
    golden = [subject.golden(inputs).output for inputs in problems]
    point = subject.declaration.semantics
    known = {
        (mistake.name, index): answers(subject, problems, mistake)
        for index, mistake in enumerate(MISTAKES)
        if not mistake.changes or mistake.at(point) != point
    }
    shown = {
        key: found
        for key, found in known.items()
        if any(differ(given, None, right) for given, right in zip(found, golden, strict=True))
    }
    same = {
        frozenset({one[0], two[0]})
        for one, two in combinations(shown, 2)
        if one[0] != two[0]
        and not any(
            differ(first, second, right)
            for first, second, right in zip(shown[one], shown[two], golden, strict=True)
        )
    }
    specials = {frozenset({m.name, m.special_of}) for m in MISTAKES if m.special_of}
    assert sorted(map(sorted, same - set(EQUIVALENT) - specials)) == []
