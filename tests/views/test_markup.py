from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rendered import rendered
from view_records import NASTY

from conformance.views.markdown import code, code_block, escape_in_html, escaped, row, table

# What GitHub makes live in the text after it has read the markdown.
LIVE = re.compile(r"@\w|://|\bwww\.|#\d|\bGH-\d|:[\w+-]+:", re.IGNORECASE)
TEXTS = [
    NASTY,
    "1. list",
    "23) list",
    "- item",
    "+ item",
    "# head",
    "=====",
    "-----",
    "> quote",
    "    code",
    "trailing \\",
    "&lt; &amp; &#64;",
    "https://x.example @me #1",
]


def one_line(text: str) -> str:
    """A text as a table can hold it."""
    return " ".join(text.split())


def visible(text: str) -> str:
    """A text without the spaces that have no width, in one line."""
    return one_line(text.replace("\u200b", ""))


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_shown_as_they_are(text: str) -> None:
    """Neither markup nor HTML nor a link of a text is obeyed: a paragraph shows it."""
    text = text.replace("\x00", "").replace("\ud800", "")
    page = rendered(escaped(text))
    assert page.tags == ["p"]
    assert visible(page.text) == one_line(text)
    assert not LIVE.search(page.text)


@pytest.mark.parametrize("text", TEXTS)
def test_texts_stay_in_their_cells(text: str) -> None:
    """A table has the cells that were put into it, whatever is in them."""
    text = text.replace("\x00", "").replace("\ud800", "")
    page = rendered(table(("a", "b", "c"), [row(escaped(text), code(text, in_table=True), "z")]))
    assert [tag for tag in page.tags if tag in ("td", "th")] == ["th"] * 3 + ["td"] * 3
    assert set(page.tags) <= {"table", "thead", "tbody", "tr", "th", "td", "code"}
    assert not LIVE.search(page.prose)
    assert visible(page.text).endswith("z")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00\ue000")))
def test_any_text_stays_in_its_cell(text: str) -> None:
    """The same of any text."""
    page = rendered(table(("a", "b"), [row(escaped(text), code(text, in_table=True))]))
    assert set(page.tags) <= {"table", "thead", "tbody", "tr", "th", "td", "code"}
    assert page.tags.count("td") == 2


@pytest.mark.parametrize("text", TEXTS)
def test_texts_between_tags(text: str) -> None:
    """Between tags, where backslashes are shown, a text is escaped as HTML."""
    text = text.replace("\x00", "").replace("\ud800", "")
    page = rendered(f"<details><summary>{escape_in_html(text)}</summary>\n\nx\n\n</details>")
    assert page.tags == ["details", "summary", "p"]
    assert visible(page.text) == f"{one_line(text)} x"


@given(st.lists(st.text(st.sampled_from("`~ab \n"))))
def test_code_blocks_hold_fences(lines: list[str]) -> None:
    """A block is not ended by what is in it."""
    page = rendered(f"{code_block(lines)}\n\nafter")
    assert page.tags == ["pre", "code", "p"]
    assert page.prose.strip() == "after"


def test_figures_stay_readable() -> None:
    """What means nothing in markdown is left alone."""
    assert escaped("error 1.6e-06 (allowed 5e-08), at batch 0: -1.5") == (
        "error 1.6e-06 (allowed 5e-08), at batch 0: -1.5"
    )
