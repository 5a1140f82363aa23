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


def write(parts: Iterable[Any], file: IO[str], *, plain: bool = False) -> None:
    """Print the parts; where the file is no terminal without colour and with every line whole.

    rich decides what is a terminal: FORCE_COLOR makes any file one, NO_COLOR takes the colours and
    TERM=dumb takes all control sequences away. With ``plain`` nothing is taken for a terminal.

    A log is searched: sentences are broken only at a width that COLUMNS asks for.
    """
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    if console.is_terminal and not plain:
        for part in parts:
            console.print(part)
        return
    width = console.width if "COLUMNS" in os.environ and not plain else _PIPE_WIDTH
    whole = Console(
        file=file,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None,
        force_terminal=False,
    )
    with whole.capture() as capture:
        for part in parts:
            whole.print(part)
    file.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())


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
