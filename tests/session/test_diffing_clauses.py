from __future__ import annotations

from typing import Any

import pytest

from conformance.session.diffing import compared, side


def told(status: str, kind: str = "value", *names: str, margin: Any = None) -> dict[str, Any]:
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
    "fails now": (told("passed"), told("failed"), "added", True),
    "fails now, as announced": (told("passed"), told("expected-failure"), "added", True),
    "fails since it was promised": (told("not-applicable"), told("failed"), "added", True),
    "the harness fails now": (told("passed"), told("error"), "added", True),
    "fixed": (told("failed"), told("passed"), "fixed", False),
    "fixed, and still announced": (
        told("expected-failure"),
        told("unexpected-pass"),
        "fixed",
        False,
    ),
    "another kind": (told("failed"), told("failed", "raised"), "changed", True),
    "another mistake": (
        told("failed", "value", "a"),
        told("failed", "value", "b"),
        "changed",
        True,
    ),
    "another kind, announced": (
        told("failed"),
        told("expected-failure", "raised"),
        "changed",
        True,
    ),
    "announced": (told("failed"), told("expected-failure"), "changed", False),
    "announced no more": (told("expected-failure"), told("failed"), "changed", True),
    "tested no more": (told("passed"), told("untestable"), "changed", True),
    "promised no more": (told("passed"), told("not-applicable"), "changed", True),
    "failed, promised no more": (told("failed"), told("not-applicable"), "changed", False),
    "tested now": (told("untestable"), told("passed"), "changed", False),
    "announced without reason": (told("passed"), told("unexpected-pass"), "changed", True),
    "as before": (told("failed", "value", "a"), told("failed", "value", "a"), "same", False),
    "passed as before": (told("passed"), told("passed"), "same", False),
    "nearer to the bound": (told("passed", margin=0.2), told("passed", margin=0.4), "drift", True),
    "a bit nearer": (told("passed", margin=0.2), told("passed", margin=0.39), "same", False),
    "farther": (told("passed", margin=0.4), told("passed", margin=0.2), "drift", False),
    "from exact": (told("passed", margin=0.0), told("passed", margin=0.02), "drift", True),
    "rounding": (told("passed", margin=1e-9), told("passed", margin=0.019), "same", False),
    "no margin before": (told("passed"), told("passed", margin=0.9), "same", False),
    "no margin now": (told("passed", margin=0.9), told("passed"), "same", False),
    "no number": (told("passed", margin="inf"), told("passed", margin=0.9), "same", False),
}


@pytest.mark.parametrize(("old", "new", "change", "worse"), CHANGES.values(), ids=CHANGES.keys())
def test_what_became_of_a_clause(
    old: dict[str, Any],
    new: dict[str, Any],
    change: str,
    worse: bool,  # noqa: FBT001 (a table)
) -> None:
    """A change has one name; it is worse when less is known to hold, or a failure is another."""
    found, is_worse, how = compared(old, new, ratio=2.0)
    assert (found, is_worse) == (change, worse)
    assert bool(how) == (change != "same")


def test_how_a_failure_changed_is_told() -> None:
    """Kinds and diagnoses are told with what they were."""
    old, new = told("expected-failure", "value", "a"), told("failed", "raised", "b", "c")
    assert compared(old, new, ratio=2.0)[2] == (
        "status expected-failure, now failed; kind value, now raised; diagnosed as a, now b or c"
    )


@pytest.mark.parametrize("more", [{"same_problems": False}, {"examples": 60}])
def test_margins_of_other_problems_are_no_worse(more: dict[str, Any]) -> None:
    """Where other problems were drawn, or more of them, a margin that moved is told only."""
    old = told("passed", margin=0.2)
    new = told("passed", margin=0.8) | {"examples": more.pop("examples", 40)}
    change, worse, how = compared(old, new, ratio=2.0, **more)
    assert (change, worse) == ("drift", False)
    assert how == "margin 0.2, now 0.8 (4.0 times as near to the bound)"


def test_the_ratio_is_given() -> None:
    """Who wants to hear of smaller drifts gives a smaller ratio."""
    sides = told("passed", margin=0.2), told("passed", margin=0.3)
    assert compared(*sides, ratio=1.2)[0] == "drift"
    assert compared(*sides, ratio=2.0)[0] == "same"
