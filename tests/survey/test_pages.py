"""The pages of the survey: what they say, and what they do in a browser."""

from __future__ import annotations

import cmarkgfm
from browsing import PHONE, Opener
from surveyed import candidate, clause, record

from survey import pages, records

NASTY = "<b>|`x`|</b>"
FAILING = candidate(
    "slow",
    "fails",
    worst={"clause": "mask.golden", "margin": 0.9},
    clauses=[clause("mask.padding", decided="defect", why=NASTY, finding="015-a-finding")],
)
OPEN = candidate("other", "fails", kind="layer", clauses=[clause("mask.golden", reason=NASTY)])
FACTS = {
    "kind": {"kind": "layer"},
    "scale": {"rule": "none"},
    "hidden keys": {"threshold": 1e4, "fill": -1e4},
    "causal": {"flag": "is_causal"},
}
IDENTIFIED = candidate(
    "plain", facts=FACTS, declared={"masks": ["drop"], "empty_rows": "nan", "causal": "top-left"}
)
ABSENT = candidate("absent", "not identified", reason=NASTY, worst=None, declared={})
PROMISE = {
    "sentence": "Masks hide.",
    "link": "https://example.org",
    "held": "broken",
    "by": ["slow mask.padding"],
}
RECORDS = {
    "one": record("one", FAILING, OPEN, promises=[PROMISE]),
    "two": record("two", IDENTIFIED, ABSENT),
    "three": record("three", status="not installed", reason=NASTY),
}


def test_the_table_says_what_the_records_say() -> None:
    """Each candidate has a row with its conventions, each failure its decision and finding."""
    text = pages.markdown(RECORDS, ["one: a fails mask.padding"])
    (row,) = [line for line in text.splitlines() if line.startswith("| `two.plain`")]
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [
        *("conforms", "0.25", "drop", "top-left", "nan", "1", "\\-10000", ""),
    ]
    assert "1 failures of clauses that must hold are not decided yet." in text
    assert "[015](findings/015-a-finding.md)" in text
    assert "[Masks hide.](https://example.org) | broken" in text
    assert "- one: a fails mask.padding" in text
    assert "not installed" in text
    assert pages.markdown(RECORDS, None) == text.partition("\n## What changed")[0]


def test_nothing_of_a_record_is_obeyed() -> None:
    """What libraries and clauses say stays text, in both pages."""
    shown = cmarkgfm.github_flavored_markdown_to_html(pages.markdown(RECORDS, [NASTY]))
    assert "<b>" not in shown
    assert shown.count("<table>") == 4
    assert "<b>" not in pages.html(RECORDS, [NASTY])


def test_the_kept_records_have_pages() -> None:
    """The pages can be made of every record that is in the repository."""
    kept = records.load()
    text = pages.markdown(kept, None)
    for line in pages.lines(kept):
        assert f"`{line.library}.{line.name}`" in text


def test_it_filters_and_sorts(opener: Opener) -> None:
    """Failures first; words and choices hide rows, a click on a head sorts by it, as numbers."""
    opened = opener(pages.html(RECORDS, []))
    page = opened.page
    names = "rows => rows.filter(row => !row.hidden).map(row => row.cells[0].textContent.trim())"

    def shown() -> list[str]:
        return page.eval_on_selector_all("#clause-table tbody tr", names)

    assert shown() == ["one.slow", "one.other", "two.absent", "two.plain"]
    page.get_by_role("button", name="margin").click()
    assert shown() == ["two.absent", "one.other", "two.plain", "one.slow"]
    page.get_by_role("button", name="margin").click()
    assert shown()[0] == "one.slow"
    page.get_by_label("fails").check()
    assert sorted(shown()) == ["one.other", "one.slow"]
    page.get_by_label("Search").fill("padding")
    assert shown() == ["one.slow"]
    assert page.locator("#row-count").text_content() == "1 of 4 results"
    opened.check_quiet()


def test_it_can_be_read_by_everybody(opener: Opener) -> None:
    """Axe finds nothing, and the page fits a phone, in the dark."""
    assert opener(pages.html(RECORDS, ["one: version 1, now 2"])).violations() == []
    opened = opener(pages.html(RECORDS, None), size=PHONE, scheme="dark")
    assert opened.overflow == 0
    assert opened.violations("color-contrast") == []
