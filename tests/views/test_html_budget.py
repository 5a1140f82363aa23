from __future__ import annotations

from typing import Any

from failing_records import failing
from records import result
from view_records import candidate, record

from conformance.base.results import Violation
from conformance.views.html_failures import NOTHING, FailurePieces, anchors, pieces, size
from conformance.views.html_words import complete

LONG = "x" * 40_000


def budgeted(report: dict[str, Any], room: int) -> FailurePieces:
    """The failures of a record in so many bytes."""
    whole = complete(report)
    return pieces(whole, anchors(whole), room)


def many(names: str, number: int) -> dict[str, Any]:
    """A record whose candidates each have so many failures of 40 kB."""
    failed = [
        result("failed", f"mask.a{n}", violation=Violation(kind="value", message=LONG))
        for n in range(number)
    ]
    return record(*(candidate(failed, name) for name in names))


def test_a_failure_is_told_in_full_where_there_is_room() -> None:
    """With its tensors, under the anchor that links to it, and nothing is said to be left out."""
    shown = budgeted(failing(), 2_000_000)
    (piece,) = shown.pieces[0]
    assert "Smallest input" in piece
    assert shown.left_out == []
    assert shown.anchors == frozenset(anchors(complete(failing())).values())


def test_what_is_left_out_is_counted() -> None:
    """Every failure is told in full, in brief or in the table alone; the page says how many."""
    shown = budgeted(many("ab", 100), 400_000)
    pieces = [piece for own in shown.pieces.values() for piece in own]
    assert sum(map(size, pieces)) <= 400_000
    assert len(pieces) == len(shown.anchors) < 200
    assert shown.left_out[-1] == (
        f"{200 - len(pieces)} failures shown in the table of clauses alone"
    )


def test_candidates_take_turns() -> None:
    """No candidate's failures crowd out those of another."""
    shown = budgeted(many("abc", 80), 400_000)
    numbers = [len(shown.pieces[number]) for number in range(3)]
    assert max(numbers) - min(numbers) <= 1


def test_some_failures_are_told_whatever_else_fills_the_page() -> None:
    """A table of clauses that takes all the room leaves some for what failed."""
    assert budgeted(many("a", 2), -1).pieces[0]


def test_a_record_without_failures_needs_nothing() -> None:
    """No pieces, no anchors, nothing left out."""
    assert budgeted(record(candidate([result()])), 2_000_000) == NOTHING


def test_sizes_are_bytes() -> None:
    """A page is counted as it is written, half of a surrogate pair included."""
    assert [size(text) for text in ("a", "é", "→", "\ud800")] == [1, 2, 3, 6]
