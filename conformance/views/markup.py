"""Texts of candidates and clauses in markdown as GitHub reads it: shown, never obeyed."""

from __future__ import annotations

import re
from typing import Final

# What markdown gives a meaning anywhere in a line, the pipe of tables and the dollar of formulas.
_SPECIAL: Final = re.compile(r"([\\`*_\[\]|~$])")
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# GitHub links these after it has read the markdown, so that no backslash helps: a space without
# width takes their meaning away. Mentions, addresses, issues, and emoji by name.
_BREAK: Final = "&#8203;"
_LINKED: Final = re.compile(
    r"(@)(?=\w)|(:)(?=//)|\b(www)(?=\.)|(#)(?=\d)|\b(GH)(?=-\d)|(:)(?=[\w+-]+:)", re.IGNORECASE
)
_MARK: Final = "\ue000"


def escaped(text: object) -> str:
    """A text that is shown as it is, on one line, also inside a table."""
    safe = _SPECIAL.sub(r"\\\1", _plain(text))
    return _at_the_start(safe).replace(_MARK, _BREAK)


def in_html(text: object) -> str:
    """A text between tags, where markdown reads no backslashes."""
    return _plain(text).replace(_MARK, _BREAK)


def _plain(text: object) -> str:
    """One line without HTML, marked where GitHub would link it."""
    line = " ".join(str(text).replace(_MARK, "").split())
    broken = _LINKED.sub(lambda found: f"{found[0]}{_MARK}", line)
    return re.sub(r"[&<>]", lambda found: _ENTITIES[found[0]], broken)


def _at_the_start(line: str) -> str:
    """A line that starts no list, no heading and no rule."""
    return re.sub(r"^(\d*)([-+=#.)])", r"\1\\\2", line)


def code(text: object, *, in_table: bool = False) -> str:
    """A text in code type on one line, whatever backticks it has, and pipes where in a table."""
    line = " ".join(str(text).split())
    if not line:
        return ""
    longest = max((len(run) for run in re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    span = f"{fence}{pad}{line}{pad}{fence}"
    return span.replace("|", "\\|") if in_table else span


def code_block(lines: list[str]) -> str:
    """Lines as they are, in a block whose fence is longer than any in them."""
    text = "\n".join(lines)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def row(*cells: str) -> str:
    """One row of a table, of cells that are escaped already."""
    return f"| {' | '.join(cells)} |"


def table(head: tuple[str, ...], rows: list[str], align: str = "") -> str:
    """A table of GitHub's markdown; ``align`` has ``l`` or ``r`` for each column."""
    rules = (":--" if sign == "l" else "--:" for sign in align or "l" * len(head))
    return "\n".join([row(*head), row(*rules), *rows])
