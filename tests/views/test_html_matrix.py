from __future__ import annotations

from records import result
from view_records import EVERY, candidate, record

from conformance.base.results import ClauseResult
from conformance.views.html_tables import Cell, matrix
from conformance.views.html_words import KINDS, WORST_FIRST, complete

Anchors = dict[tuple[int, int], str]


def cells(*entries: list[ClauseResult], anchors: Anchors | None = None) -> dict[str, list[Cell]]:
    """The cells of every line, by slug."""
    report = complete(record(*(candidate(results, f"c{n}") for n, results in enumerate(entries))))
    made = matrix(report, anchors or {})
    return {line.slug: line.cells for _, lines in made.families for line in lines}


def test_a_cell_is_the_worst_of_its_dtypes() -> None:
    """One failing dtype is a failing cell, which says in which dtypes it did what."""
    clauses = [result(), result("failed", dtype="float16"), result(dtype="bfloat16")]
    cell, other = cells(clauses, [result()], anchors={(0, 1): "f0-1"})["mask.golden"]
    assert (cell.kind, cell.anchor) == ("fail", "f0-1")
    assert cell.label == "passed in float32, bfloat16; failed in float16"
    assert (other.kind, other.label) == ("pass", "passed")


def test_what_a_candidate_was_not_asked_is_blank() -> None:
    """Another run may have asked for other clauses."""
    by_slug = cells([result()], [result(slug="shape.output")])
    assert [cell.kind for cell in by_slug["mask.golden"]] == ["pass", "absent"]
    assert [cell.kind for cell in by_slug["shape.output"]] == ["absent", "pass"]


def test_a_failed_should_is_told_from_a_failed_must() -> None:
    """Their signs differ, not only their colours."""
    must, should = (KINDS[name][0] for name in ("fail", "should"))
    assert must != should
    by_slug = cells([result("failed", "a.b", "SHOULD")], [result("failed", "a.b")])
    assert [KINDS[cell.kind][0] for cell in by_slug["a.b"]] == [should, must]


def test_every_kind_has_a_sign_of_its_own() -> None:
    """No two outcomes look alike without colours, and each has its rank."""
    signs = [sign for sign, _ in KINDS.values()]
    assert len(set(signs)) == len(signs)
    assert set(WORST_FIRST) == set(KINDS)


def test_a_single_candidate_has_a_column_for_each_dtype() -> None:
    """There is nobody to compare it with but itself."""
    report = complete(record(candidate([result(), result(dtype="float16")])))
    made = matrix(report, {})
    assert (made.by, made.columns) == ("dtypes", ["float32", "float16"])


def test_families_stay_together() -> None:
    """Clauses are grouped by family even where the run interleaved them."""
    clauses = [result(slug=slug) for slug in ("a.x", "b.x", "a.y")]
    made = matrix(complete(record(candidate(clauses))), {})
    assert [(name, [line.slug for line in lines]) for name, lines in made.families] == [
        ("a", ["a.x", "a.y"]),
        ("b", ["b.x"]),
    ]


def test_the_legend_explains_what_is_there() -> None:
    """Every kind in the matrix, and no other."""
    made = matrix(complete(record(candidate(EVERY))), {})
    shown = {cell.kind for _, lines in made.families for line in lines for cell in line.cells}
    assert {name for name, _, _ in made.legend} == shown
