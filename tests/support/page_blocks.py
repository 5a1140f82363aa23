"""The blocks of code of README and of docs/, read with sybil.

What a block is, its language decides:

- ``python``: a block whose first line is ``# NAME.py`` is a file of that name. It is run where a
  command of the page names it, otherwise with the unnamed ones, in order, in one process.
- ``console`` and ``sh``: commands, a line each; with lines that begin with ``$``, those are the
  commands and the others what they print, where ``...`` stands for anything. A command must
  succeed, unless ``$ echo $?`` follows it.
- ``toml``, ``json``, ``yaml``: must parse; files where the first line names one in a comment.
- ``text``, ``html``, ``diff``, ``markdown``: nothing that could be run.

``<!-- skip: next "reason" -->`` before a block says why it is not run, ``<!-- adds: OPTIONS -->``
what is added to its commands of ``conformance``, so that they end sooner.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unittest import SkipTest

from _paths import CHECKOUT
from sybil import Document, Example, Region, Sybil
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, RawFencedCodeBlockLexer
from sybil.parsers.markdown.skip import SkipParser

NAMED: Final = re.compile(r"# (\S+\.\w+)\n")
# What begins the line of an indented block that shows a command.
COMMAND: Final = re.compile(r"^ {4,}(?:\$ )?(?:\.\S*/)?(?:conformance|python3?|pytest|pip|tox) \S")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block: its language, its text, the line it begins on.

    ``reason`` says why it is not run, "" where it is; ``adds`` is what its commands get added.
    """

    language: str
    source: str
    line: int
    reason: str = ""
    adds: str = ""

    @property
    def name(self) -> str:
        """The file that it is, or ""."""
        named = NAMED.match(self.source)
        return named[1] if named else ""

    def commands(self) -> list[tuple[str, str]]:
        """Each command with what it is shown to print, "" where nothing is shown."""
        lines = self.source.replace("\\\n", " ").splitlines()
        lines = [line for line in lines if line.strip() and not line.startswith("#")]
        if not any(line.startswith("$ ") for line in lines):
            return [(line, "") for line in lines]
        parts = re.split(r"^\$ (.*)\n?", self.source, flags=re.MULTILINE)
        return list(zip(parts[1::2], parts[2::2], strict=True))


def pages() -> list[Path]:
    """Every page of the repository that shows code: those of docs/ and of the top folder."""
    folders = ("*.md", "docs/**/*.md", "benchmarks/*.md", "candidates/**/*.md")
    return sorted({path for pattern in folders for path in CHECKOUT.glob(pattern)})


def named(page: Path) -> str:
    """A page as a test is called."""
    return page.relative_to(CHECKOUT).as_posix()


def blocks_of(path: Path) -> list[Block]:
    """The blocks of a page, in order."""
    blocks: list[Block] = []
    adds = ""
    for example in Sybil(parsers=[SkipParser(), _fences, _additions]).parse(path).examples():
        reason = _reason(example)
        if example.parsed is None or len(example.parsed) != 2 or example.region.evaluator is None:
            continue
        language, source = example.parsed
        if language == "adds":
            adds = source
        elif language in ("next", "start", "end"):
            continue
        elif not language.startswith("{"):
            blocks.append(
                Block(language=language, source=source, line=example.line, reason=reason, adds=adds)
            )
            adds = ""
    return blocks


def _reason(example: Example) -> str:
    """Why sybil would not run an example, or ""."""
    try:
        example.evaluate()
    except SkipTest as skipped:
        return str(skipped)
    return ""


def _fences(document: Document) -> Iterator[Region]:
    """Every fenced block, whatever its language."""
    lexer = RawFencedCodeBlockLexer(re.compile(r"(?P<language>[^\n]*)\n"))
    for region in lexer(document):
        parsed = (region.lexemes["language"].strip(), str(region.lexemes["source"]))
        yield Region(region.start, region.end, parsed, _nothing)


def _additions(document: Document) -> Iterator[Region]:
    """Every comment that adds options to the commands of the next block."""
    for region in DirectiveInHTMLCommentLexer("adds")(document):
        parsed = ("adds", region.lexemes["arguments"].strip())
        yield Region(region.start, region.end, parsed, _nothing)


def _nothing(_example: Example) -> None:
    """What sybil does with a block itself: the page is run as a whole."""
