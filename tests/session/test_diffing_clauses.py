from __future__ import annotations

from typing import Any

import pytest

from conformance.session.diffing import compared, side


def clause(status: str, kind: str = "value", *names: str, margin: Any = None) -> dict[str, Any]:
    """One side of a comparison, from a record's clause."""
    fails = status in ("failed", "expected-failure")
    return side(
        {
            "id": "mask.golden",
            "status": status,
            "violation": {"kind": kind, "message": "off by 1"} if fails else None,
            "diagnosis": [{"name": name} for name in names],
            "margin": margin,
            "examples": 40,
        }
    )


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str, bool]] = {
    "fails now": (clause("passed"), clause("failed"), "added", True),
    "fails now, as announced": (clause("passed"), clause("expected-failure"), "added", True),
    "fails since it was promised": (clause("not-applicable"), clause("failed"), "added", True),
    "the harness fails now": (clause("passed"), clause("error"), "added", True),
    "fixed": (clause("failed"), clause("passed"), "fixed", False),
    "fixed, and still announced": (
        clause("expected-failure"),
        clause("unexpected-pass"),
        "fixed",
        False,
    ),
    "another kind": (clause("failed"), clause("failed", "raised"), "changed", True),
    "another mistake": (
        clause("failed", "value", "a"),
        clause("failed", "value", "b"),
        "changed",
        True,
    ),
    "another kind, announced": (
        clause("failed"),
        clause("expected-failure", "raised"),
        "changed",
        True,
    ),
    "announced": (clause("failed"), clause("expected-failure"), "changed", False),
    "announced no more": (clause("expected-failure"), clause("failed"), "changed", True),
    "tested no more": (clause("passed"), clause("untestable"), "changed", True),
    "promised no more": (clause("passed"), clause("not-applicable"), "changed", True),
    "failed, promised no more": (clause("failed"), clause("not-applicable"), "changed", False),
    "tested now": (clause("untestable"), clause("passed"), "changed", False),
    "announced without reason": (clause("passed"), clause("unexpected-pass"), "changed", True),
    "as before": (clause("failed", "value", "a"), clause("failed", "value", "a"), "same", False),
    "passed as before": (clause("passed"), clause("passed"), "same", False),
    "nearer to the bound": (
        clause("passed", margin=0.2),
        clause("passed", margin=0.4),
        "drift",
        True,
    ),
    "a bit nearer": (clause("passed", margin=0.2), clause("passed", margin=0.39), "same", False),
    "farther": (clause("passed", margin=0.4), clause("passed", margin=0.2), "drift", False),
    "from exact": (clause("passed", margin=0.0), clause("passed", margin=0.02), "drift", True),
    "rounding": (clause("passed", margin=1e-9), clause("passed", margin=0.019), "same", False),
    "no margin before": (clause("passed"), clause("passed", margin=0.9), "same", False),
    "no margin now": (clause("passed", margin=0.9), clause("passed"), "same", False),
    "no number": (clause("passed", margin="inf"), clause("passed", margin=0.9), "same", False),
}


@pytest.mark.parametrize(("old", "new", "change", "worse"), CHANGES.values(), ids=CHANGES.keys())
def test_what_became_of_a_clause(
    old: dict[str, Any],
    new: dict[str, Any],
    change: str,
    worse: bool,  # noqa: FBT001 (a table)
) -> None:
    """A change has one name; it is worse when less is known to hold, or a failure is another."""
    found_change, is_worse, how = compared(old, new, ratio=2.0)
    assert (found_change, is_worse) == (change, worse)
    assert bool(how) == (change != "same")


def test_how_a_failure_changed_is_reported() -> None:
    """Kinds and diagnoses are reported with the earlier ones."""
    old, new = clause("expected-failure", "value", "a"), clause("failed", "raised", "b", "c")
    assert compared(old, new, ratio=2.0)[2] == (
        "status expected-failure, now failed; kind value, now raised; diagnosed as a, now b or c"
    )


@pytest.mark.parametrize("more", [{"same_problems": False}, {"examples": 60}])
def test_margins_of_other_problems_are_no_worse(more: dict[str, Any]) -> None:
    """Where other problems were drawn, or more of them, a margin that moved is reported only."""
    old = clause("passed", margin=0.2)
    new = clause("passed", margin=0.8) | {"examples": more.pop("examples", 40)}
    change, worse, how = compared(old, new, ratio=2.0, **more)
    assert (change, worse) == ("drift", False)
    assert how == "margin 0.2, now 0.8 (4.0 times as near to the bound)"


def test_the_ratio_is_given() -> None:
    """Who wants to hear of smaller drifts gives a smaller ratio."""
    sides = clause("passed", margin=0.2), clause("passed", margin=0.3)
    assert compared(*sides, ratio=1.2)[0] == "drift"
    assert compared(*sides, ratio=2.0)[0] == "same"
