"""Runs the pages: ``tox -e pages``, apart from the tests, as commands that judge take a while."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_blocks import blocks_of, named, pages
from page_running import run

BLOCKS = {page: blocks_of(page) for page in pages()}


@pytest.mark.parametrize(
    "page",
    [page for page, blocks in BLOCKS.items() if any(not b.reason for b in blocks)],
    ids=named,
)
def test_blocks_of_page_run(page: Path, tmp_path: Path) -> None:
    """Every block that gives no reason against it runs, and prints what the page shows."""
    outcome = run(BLOCKS[page], tmp_path)
    assert not outcome.failures, "\n\n".join(outcome.failures)
    assert outcome.ran == {block.line for block in BLOCKS[page] if not block.reason}
