"""How wide a terminal is, and lines that are broken between words."""

from __future__ import annotations

import os
import textwrap
from typing import IO, Final

_MOST_DIGITS: Final = 6  # of COLUMNS: what is longer is no width
DEFAULT_WIDTH: Final = 80  # of a terminal that does not know its own


def chosen_columns() -> int | None:
    """The columns that the environment variable COLUMNS asks for, None without it."""
    columns = os.environ.get("COLUMNS", "")
    if not columns.isdecimal() or len(columns) > _MOST_DIGITS:
        return None
    return int(columns) or None


def width_of_terminal(file: IO[str]) -> int | None:
    """The columns of a terminal, None for any other file; rich takes 80 for a dumb terminal."""
    try:
        columns = os.get_terminal_size(file.fileno()).columns if file.isatty() else None
    except (OSError, ValueError):  # closed, or no file of the system's
        return None
    return None if columns is None else columns or DEFAULT_WIDTH


def broken_into_lines(text: str, width: int) -> list[str]:
    """A text broken between words: slugs and paths stay whole."""
    return textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False)


def fitted_to(file: IO[str], text: str) -> str:
    """A text broken to a terminal's width; for any other file, which is searched, unbroken.

    Indented lines may be meant for pasting, and stay unbroken.
    """
    width = width_of_terminal(file)
    if width is None:
        return text
    width = chosen_columns() or width
    lines = (
        [line] if line[:1].isspace() else broken_into_lines(line, width)
        for line in text.splitlines()
    )
    return "\n".join(piece for broken in lines for piece in broken)
