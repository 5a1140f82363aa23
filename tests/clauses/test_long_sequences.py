from __future__ import annotations

from typing import Any

import pytest
from examples import CLAUSES, core, layer, problem, try_on

from candidates.broken import MISTAKES

SLUG = "numerics.long-sequence"
FAR = [mistake.candidate for mistake in MISTAKES if mistake.primary == SLUG]


@pytest.mark.parametrize("candidate", [core, layer])
def test_honest_candidates_read_to_the_far_end(candidate: Any) -> None:
    """A correct core and a correct layer pass among 2,240 keys, and the end of them counts."""
    finding = try_on(candidate(), SLUG, problem(key_length=35))
    assert finding.violation is None
    assert finding.binding
    assert finding.margin is not None


@pytest.mark.parametrize("candidate", FAR, ids=lambda candidate: str(candidate.name))
def test_far_keys_that_are_lost_are_detected(candidate: Any) -> None:
    """Counters that wrap and loops that end early fail, and the message has the number of keys."""
    violation = try_on(candidate, SLUG, problem(key_length=35)).violation
    assert violation is not None
    assert violation.message.startswith("with 64 times as many keys, 2240, the answer is wrong")


def test_queries_that_are_keys_are_left_to_another_clause() -> None:
    """As many queries as keys would take minutes: the reason says which clause judges them."""
    reason = CLAUSES[SLUG].not_applicable(layer(inputs="self", without=["cross"]))
    assert "numerics.any-length" in reason
