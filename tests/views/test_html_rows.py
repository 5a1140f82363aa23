from __future__ import annotations

from records import result
from view_records import EVERY, candidate, record

from conformance.views.html_tables import MOST_ROWS, by_candidate, filters, rows
from conformance.views.html_words import complete


def test_dtypes_that_fare_alike_share_a_row() -> None:
    """Examples are added up and the worst margin is shown; another status is another row."""
    clauses = [
        result(examples=10, binding=4, margin=0.1),
        result(examples=20, binding=5, margin=0.3, dtype="float64"),
        result("failed", dtype="float16"),
    ]
    shown = rows(complete(record(candidate(clauses))), {(0, 2): "f0-2"}).shown
    assert [row.dtypes for row in shown] == [("float32", "float64"), ("float16",)]
    assert (shown[0].examples, shown[0].binding, shown[0].margin) == (30, 9, 0.3)
    assert [row.anchor for row in shown] == ["", "f0-2"]


def test_a_failure_says_why_in_its_row() -> None:
    """The reason, or what the violation says where there is none."""
    (row,) = rows(complete(record(candidate([result("failed")]))), {}).shown
    assert row.reason == "off by 1"


def test_very_many_rows_leave_the_good_ones_out() -> None:
    """Failures stay; what passed is counted and left to the matrix."""
    clauses = [result(slug=f"mask.c{n}") for n in range(99)]
    entries = (candidate([*clauses, result("failed")], f"c{n}") for n in range(40))
    listed = rows(complete(record(*entries)), {})
    assert {row.status for row in listed.shown} == {"failed"}
    assert len(listed.shown) == 40
    assert listed.left_out.startswith("3,960 rows left out")
    assert MOST_ROWS < 99 * 40


def test_too_many_failures_are_said_to_be_left_out() -> None:
    """Where even failures are left out, the sentence does not say that all of it passed."""
    failures = [result("failed", f"mask.c{n}") for n in range(99)]
    entries = (candidate([*failures, result("passed")], f"c{n}") for n in range(40))
    listed = rows(complete(record(*entries)), {})
    others = 99 * 40 - MOST_ROWS
    assert f"passed or are not applicable, and {others:,} others" in listed.left_out


def test_rows_are_grouped_by_candidate() -> None:
    """Candidates without a row have no group."""
    shown = rows(complete(record(candidate([result()]), candidate([], "b"))), {}).shown
    assert [number for number, _ in by_candidate(shown)] == [0]


def test_filters_offer_what_is_there_with_numbers() -> None:
    """Statuses, levels, families and dtypes, each with its number of rows; single ones are none."""
    report = complete(record(candidate(EVERY)))
    shown = rows(report, {}).shown
    offered = dict(filters(report, shown))
    assert set(offered) == {"status", "level", "family", "dtype"}
    assert ("fail", "failed", 1) in offered["status"]
    assert ("SHOULD", "SHOULD", 2) in offered["level"]
    for name in ("status", "level", "family"):
        assert sum(number for _, _, number in offered[name]) == len(shown)
