"""What README and docs/ show can be typed as it stands: each block runs, or says why not.

The blocks themselves are run by ``run_pages.py``, in ``tox -e pages``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _paths import CHECKOUT
from page_blocks import COMMAND, Block, blocks_of, named, pages
from page_running import DATA, PROSE, run

LANGUAGES = {"python", "console", "sh", *DATA, *PROSE}
# Where a reason says that a block is run after all.
ELSEWHERE = re.compile(r"(?:tests|docs|\.ci)/[\w/-]+(?:\.\w+)?")
PAGES = pages()
BLOCKS = {page: blocks_of(page) for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_fence_of_page_is_a_block(page: Path) -> None:
    """No fence is overlooked, its language is known, and no command is indented text."""
    text = page.read_text(encoding="utf-8")
    fences = [line for line in re.findall(r"^```(.*)$", text, re.MULTILINE) if line]
    languages = [line for line in fences if not line.startswith("{")]
    assert [block.language for block in BLOCKS[page]] == languages
    assert {block.language for block in BLOCKS[page]} <= LANGUAGES
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not [line for line in prose.splitlines() if COMMAND.match(line)]


def test_most_blocks_run() -> None:
    """What nothing runs is the exception, gives its reason, and names no file that is not there."""
    every = [block for page in PAGES for block in BLOCKS[page]]
    skipped = [block for block in every if block.reason]
    elsewhere = {block: ELSEWHERE.findall(block.reason) for block in skipped}
    assert all(len(block.reason.split()) > 2 for block in skipped)
    assert [name for names in elsewhere.values() for name in names if not file(name)] == []
    nowhere = [block for block, names in elsewhere.items() if not names]
    assert len(every) > 5 * len(nowhere)
    assert len(every) - len(skipped) > len(skipped)
    assert len(every) > 50


def file(name: str) -> bool:
    """Whether the repository has a file or folder that a reason names."""
    return (CHECKOUT / name).exists()


def test_block_that_fails_is_told(tmp_path: Path) -> None:
    """A command that fails, output that differs and Python that raises are three failures."""
    wrong = [
        Block(language="console", source="false\n", line=1),
        Block(language="console", source="$ echo one\ntwo\n", line=2),
        Block(language="python", source="assert False\n", line=3),
    ]
    assert len(run(wrong, tmp_path).failures) == len(wrong)


def test_exit_status_that_is_shown_is_compared(tmp_path: Path) -> None:
    """A command may fail where the page shows its exit status, and only with that one."""
    right = Block(language="console", source="$ (exit 3)\n$ echo $?\n3\n", line=1)
    wrong = Block(language="console", source="$ (exit 3)\n$ echo $?\n4\n", line=1)
    assert not run([right], tmp_path).failures
    (tmp_path / "again").mkdir()
    assert len(run([wrong], tmp_path / "again").failures) == 1


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_of_page_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names a file of the repository."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    local = [link for link in links if not re.match(r"https?://|mailto:", link)]
    assert [link for link in local if not (page.parent / link).exists()] == []
