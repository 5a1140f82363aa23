from __future__ import annotations

import pytest
from records import result
from rendered import html, rendered
from view_records import EVERY, FAILED, RECORDS, candidate, cut, of, record

from conformance.base.results import Violation
from conformance.views.markdown import COMMENT_LIMIT, render_markdown


@pytest.mark.parametrize("name", RECORDS)
def test_reports_render(name: str) -> None:
    """Every record gives headings, tables and folded details, and nothing a candidate wrote."""
    page = rendered(render_markdown(RECORDS[name]))
    assert set(page.tags) <= set(
        "h2 h3 p table thead tbody tr th td code em strong details summary pre ul li".split()
    )
    assert page.tags.count("table") >= 1
    assert "| --" not in page.prose
    assert page.tags.count("details") == page.tags.count("summary") == page.tags.count("pre")


def test_what_fails_the_run_comes_first() -> None:
    """A SHOULD that failed stands behind every MUST: of very many rows the first are shown."""
    failed = [result("failed", "mask.a", "SHOULD"), result("failed", "mask.b")]
    text = render_markdown(of(*failed))
    assert text.index("| `mask.b` | MUST |") < text.index("| `mask.a` | SHOULD |")


def test_tables_are_rectangular() -> None:
    """Every row of a table has as many cells as its head."""
    for table in html(render_markdown(RECORDS["several"])).split("<table>")[1:]:
        rows = table.partition("</table>")[0].split("<tr>")[1:]
        assert len({row.count("<td") + row.count("<th") - row.count("<thead") for row in rows}) == 1


def test_what_is_said_of_a_failure() -> None:
    """The verdict up top, one row a candidate, the clauses that need a word, the rest folded."""
    text = render_markdown(record(candidate(EVERY), candidate([result()], "yours")))
    assert text.startswith("## ❌ Attention conformance: error\n")
    assert "| mine | ❌ error |" in text
    assert "| yours | ✅ conforms |" in text
    assert (
        "| `mask.golden` | MUST | float32 | ❌ failed | off by 1 at \\[0, 0\\] | scale-missing |"
        in text
    )
    assert "| `mask.no-leak` | SHOULD | float32 | ⚠️ failed |" in text
    assert "conformance replay 'REPORT.json#mine/mask.golden'" in text
    assert "### yours" not in text


def test_what_a_limit_cut_is_told_before_anything_else() -> None:
    """The sentence on what was not run stands once, right below the verdict, and before tables."""
    for report in (cut(result("untestable")), cut(result()), cut(FAILED)):
        text = render_markdown(report)
        top = text[: text.index("profile")]
        assert top.count("7 clauses were not run, 1 not to the end") == 1
        assert "✅ Attention" not in top


@pytest.mark.one_in(3)
@pytest.mark.parametrize("limit", [COMMENT_LIMIT, 5_000, 1_048_576])
def test_long_reports_are_cut(limit: int) -> None:
    """A report stays below the limit in bytes, says what it left out, and still renders."""
    failed = FAILED.replace(violation=Violation(kind="value", message="é|`" * 3_000))
    entries = [candidate([failed] * 20, f"candidate-{number}") for number in range(60)]
    text = render_markdown(record(*entries), limit)
    assert len(text.encode()) <= limit
    assert "parts were left out here" in text
    assert text.startswith("## ❌ Attention conformance: fails\n")
    assert rendered(text).tags.count("details") == text.count("<details>")


def test_many_candidates_are_counted() -> None:
    """Tables have at most a hundred rows, and say how many there are more."""
    entries = [candidate([result()], f"candidate-{number}") for number in range(1, 251)]
    text = render_markdown(record(*entries))
    assert "candidate-100 |" in text
    assert "candidate-101 |" not in text
    assert "_and 150 more candidates_" in text


def test_causes_stand_above_their_clauses() -> None:
    """One mistake behind several clauses is told once, with its fix, before the table."""
    text = render_markdown(of(FAILED, FAILED.replace(id="mask.no-leak")))
    (cause,) = (line for line in text.splitlines() if line.startswith("- **"))
    assert cause == "- **scale-missing: no scale**"
    assert text.index(cause) < text.index("  - fix: divide by it") < text.index("| clause |")
    assert "explains `mask.golden`, `mask.no-leak` (MUST)" in text
