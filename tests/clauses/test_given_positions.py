"""position.given, .offset-invariant, .left-padding, .ring, .evicted: what they see, let pass."""

from __future__ import annotations

from examples import core, run_clause

from candidates import given_positions

SLUGS = (
    *("position.given", "position.offset-invariant", "position.left-padding"),
    *("position.ring", "position.evicted"),
)


def test_without_given_positions_none_applies() -> None:
    """The reason says so."""
    assert {run_clause(core(), slug).reason for slug in SLUGS} == {"its calls give no positions"}


def test_causality_by_positions_has_no_alignment() -> None:
    """Clauses about places in memory do not ask."""
    for slug in ("mask.causal-alignment", "window.unlimited"):
        reason = run_clause(given_positions.causal_by_positions, slug).reason
        assert reason == "its queries see keys by positions, not by places in memory"
