"""How views reach a terminal or a pipe."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO, Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH: Final = 10_000
_ANY_HEIGHT: Final = 25
_DEFAULT_WIDTH: Final = 80  # of a terminal that does not know its own


def write(parts: Iterable[Any], file: IO[str], *, plain: bool = False) -> None:
    """Print the parts: at a terminal's width and in its colours, else as plain text.

    What is no terminal gets every line whole, for a log is searched, unless COLUMNS asks for a
    width. FORCE_COLOR gives it colours all the same; NO_COLOR, TERM=dumb and ``plain`` mean no
    control sequence at all, bold type included.
    """
    console = _console(file, plain=plain)
    if _width_of_terminal(file) is not None and not plain:
        for part in parts:
            console.print(part)
        return
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    file.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _console(file: IO[str], *, plain: bool) -> Console:
    found = Console(file=file)
    unstyled = plain or found.no_color or found.is_dumb_terminal or not found.is_terminal
    asked = None if plain else _asked_width()
    return Console(
        file=file,
        width=asked or (None if plain else _width_of_terminal(file)) or _PIPE_WIDTH,
        height=_ANY_HEIGHT,  # else rich takes no width for a dumb terminal
        color_system=None if unstyled else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )


def _asked_width() -> int | None:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else None


def _width_of_terminal(file: IO[str]) -> int | None:
    """The columns of a terminal, None for what is none; rich takes 80 for a dumb one."""
    try:
        found = os.get_terminal_size(file.fileno()).columns if file.isatty() else None
    except (OSError, ValueError):  # closed, or no file of the system's
        return None
    return None if found is None else found or _DEFAULT_WIDTH


class Fitting:
    """A table where it has the width it needs, else its rows below each other.

    In a table that is squeezed slugs are cut or broken, and cannot be copied any more. A table
    needs its natural width, or ``least`` where one of its columns may be wrapped.
    """

    def __init__(self, table: Table, rows: Iterable[Any], least: int | None = None) -> None:
        self.table = table
        self.rows = list(rows)
        self.least = least

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What rich prints for it."""
        unlimited = options.update_width(_PIPE_WIDTH)
        natural = Measurement.get(console, unlimited, self.table).maximum
        if min(natural, self.least or natural) <= options.max_width:
            yield self.table
        else:
            yield from self.rows


def indented(line: str | Text, by: int) -> Padding:
    """A paragraph whose every line begins some columns to the right."""
    return Padding(Text(line) if isinstance(line, str) else line, (0, 0, 0, by), expand=False)
