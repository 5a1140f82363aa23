"""position.given, .offset-invariant, .left-padding, .ring, .evicted: what they see, let pass."""

from __future__ import annotations

import pytest
from examples import core, failing, run_clause

from candidates import given_positions
from candidates.broken import given_positions as broken
from candidates.broken._kit import DECLARED
from conformance import Mistake

SLUGS = (
    *("position.given", "position.offset-invariant", "position.left-padding"),
    *("position.ring", "position.evicted"),
)
MISTAKES = [one for one in DECLARED if one.name in vars(broken)]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_mistakes_with_given_positions_are_detected(mistake: Mistake) -> None:
    """By their primary clause."""
    assert failing(mistake.candidate, mistake.primary)


@pytest.mark.parametrize(
    "name", ["placed_neighbours", "placed_distances", "causal_by_positions", "placed_layer"]
)
def test_right_uses_of_given_positions_pass(name: str) -> None:
    """With a cache, too; and each clause that applies finds problems that bind."""
    candidate = getattr(given_positions, name)
    for slug in (*SLUGS, "cache.golden"):
        result = run_clause(candidate, slug, examples=12)
        assert result.status in ("passed", "not-applicable"), result.reason
        assert result.binding > 0 or result.status == "not-applicable"


def test_without_given_positions_none_applies() -> None:
    """The reason says so."""
    assert {run_clause(core(), slug).reason for slug in SLUGS} == {"its calls give no positions"}


def test_causality_by_positions_has_no_alignment() -> None:
    """Clauses about places in memory do not ask."""
    for slug in ("mask.causal-alignment", "window.unlimited"):
        reason = run_clause(given_positions.causal_by_positions, slug).reason
        assert reason == "its queries see keys by positions, not by places in memory"
