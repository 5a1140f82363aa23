"""The first table of findings of docs/identification.md is what ``identify`` says today."""

from __future__ import annotations

import pytest
from _paths import CHECKOUT

from benchmarks.identification import names, record_of, row

PAGE = (CHECKOUT / "docs" / "identification.md").read_text(encoding="utf-8")


@pytest.mark.one_in(8)
@pytest.mark.filterwarnings("ignore:The use of `x.T`")  # document B1 is called with a batch, too
@pytest.mark.parametrize("name", names())
def test_row_is_current(name: str) -> None:
    """A row of the page is the row that is made anew."""
    assert row(name, record_of(name)) in PAGE.splitlines()


def test_page_holds_no_other_rows() -> None:
    """The table of the benchmark has a row for each of its things and for nothing else."""
    # Another table follows, of layers of libraries that the tests do without.
    shown = PAGE.partition("## What it finds")[2].partition("\n| layer |")[0]
    first = [line.split("|")[1].strip() for line in shown.splitlines() if line.startswith("| ")]
    assert first[1:] == names()
