"""The views of the matrix say what the record says, in every format."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from teeth_records import BAD, GOOD, record

from conformance.views.html import render_teeth as render_html
from conformance.views.teeth import (
    blocks,
    families,
    render_teeth_markdown,
    show_teeth,
    summary_lines,
    symbol,
)

VOID = {"meta", "br"}


def shown(matrix: dict[str, Any]) -> str:
    """What a log gets."""
    file = io.StringIO()
    show_teeth(matrix, file)
    return file.getvalue()


def test_columns_are_families() -> None:
    """Clauses of one family stand together, and are numbered through."""
    assert [(family.name, list(family.numbers)) for family in families(GOOD)] == [
        ("shape", [1]),
        ("mask", [2, 3]),
        ("house", [4]),
    ]


def test_cells() -> None:
    """A capital for the primary clause, a mark where it let the mistake slip."""
    grave, slight = GOOD["mistakes"]
    assert [symbol(grave, slug) for slug in grave["clauses"]] == ["X", "x", "."]
    assert symbol(slight, "shape.output") == " "
    assert symbol(BAD["mistakes"][1], "mask.golden") == "o"


def test_the_matrix_is_cut_where_the_width_ends() -> None:
    """Families go on below each other; every line fits, and every row has its name."""
    (whole,) = blocks(GOOD, 100)
    assert whole[2:] == ["grave   x X.", "slight     X", "right   . ."]
    several = list(blocks(GOOD, 12))
    assert len(several) > 1
    assert all(len(line) <= 12 for block in several for line in block)


def test_the_log_ends_with_the_sum() -> None:
    """A good run: the matrix, the clauses, one last sentence."""
    lines = shown(GOOD).splitlines()
    assert "grave   x X." in lines
    assert lines[-1] == (
        "2 of 2 mistakes caught, 2 by their primary clause, 3 of 4 clauses catch one, "
        "none of 1 correct candidates flagged (profile quick, seed 0, 1 min 5 s)"
    )
    assert any(line.split() == ["2", "mask.golden", "MUST", "1", "1"] for line in lines)


def test_the_log_names_every_finding() -> None:
    """What escaped, what its primary clause missed, what has no teeth, what is wrongly flagged."""
    out = shown(BAD)
    for sentence in (
        "not caught: escaped: escaped is <wrong>.",
        "elsewhere: caught by shape.output, but not by its primary clause mask.golden (passed)",
        "catches no mistake: house.rule",
        "correct, but flagged: accused by mask.golden: off by <1>",
    ):
        assert sentence in out


def test_first_shows_no_matrix() -> None:
    """Where each mistake ends with one clause there is no matrix to look at."""
    assert "grave   " not in shown({**GOOD, "first": True})


class Balance(HTMLParser):
    """Finds tags that are not closed, and what a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open a tag."""
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost one."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        self.texts.append(data)


@pytest.mark.parametrize("matrix", [GOOD, BAD, record()], ids=["good", "bad", "empty"])
def test_the_page_is_whole_and_alone(matrix: dict[str, Any]) -> None:
    """Every tag is closed, nothing is loaded from elsewhere, every row and clause is there."""
    page = Balance()
    page.feed(render_html(matrix))
    assert page.open == []
    text = " ".join(page.texts)
    for name in [row["name"] for row in (*matrix["mistakes"], *matrix["correct"])]:
        assert name in text
    assert all(clause["id"] in text for clause in matrix["clauses"])


def test_the_page_escapes_what_it_shows() -> None:
    """Sentences and reasons are text, in the page and in its tooltips."""
    page = render_html(BAD)
    assert "<wrong>" not in page
    assert "escaped is &lt;wrong&gt;." in page
    assert 'title="mask.golden: off by &lt;1&gt;"' in page


def test_markdown_has_the_matrix_and_the_tables() -> None:
    """The document holds the sum, a row a clause and a row a mistake, with markup escaped."""
    text = render_teeth_markdown(BAD)
    assert "| 2 | `mask.golden` | MUST | 0 | escaped, elsewhere |" in text
    assert r"| escaped | escaped is \<wrong>. | `mask.golden` | **nothing** |" in text
    assert re.search(r"^```text\n.*^elsewhere", text, re.MULTILINE | re.DOTALL)
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_an_interrupted_run_does_not_blame_clauses() -> None:
    """What did not run is counted; clauses are not said to be toothless."""
    lines = [sentence for _, sentence in summary_lines({**BAD, "interrupted": True})]
    assert lines[-1].startswith("interrupted: ")
    assert not [line for line in lines if line.startswith("catches no mistake")]


def test_page_has_no_empty_columns() -> None:
    """A clause that was run in no row is named above the matrix, and takes no column of it."""
    page = render_html(BAD)
    above, _, matrix = page.partition('<div class="frame"')
    assert "not run in every row: house.rule." in above
    assert "house.rule" not in matrix
    assert re.findall(r"<th class=.clause.*?<div>(.*?)</div>", matrix) == [
        "shape.output",
        "mask.golden",
        "mask.no-leak",
    ]
