"""How views reach a terminal or a pipe, and their tables there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO, Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from ..base.line_breaking import DEFAULT_WIDTH, chosen_columns, width_of_terminal

_PIPE_WIDTH: Final = 10_000
_ANY_HEIGHT: Final = 25
_LOG_WIDTH: Final = 100  # of what is no terminal, and is read like one


def write(parts: Iterable[Any], file: IO[str], *, plain: bool = False) -> None:
    """Print the parts: at a terminal's width and in colours, else as plain text.

    A file that is no terminal gets every line whole, since logs are searched, unless COLUMNS sets a
    width. FORCE_COLOR enforces colours; NO_COLOR, TERM=dumb and ``plain`` mean no control sequence
    at all, bold type included.
    """
    console = _console(file, plain=plain)
    if width_of_terminal(file) is not None and not plain:
        for part in parts:
            console.print(part)
        return
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    file.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _console(file: IO[str], *, plain: bool) -> Console:
    # With sizes given, since rich reads the environment's otherwise.
    default = Console(file=file, width=DEFAULT_WIDTH, height=_ANY_HEIGHT)
    unstyled = plain or default.no_color or default.is_dumb_terminal or not default.is_terminal
    width = None if plain else chosen_columns() or width_of_terminal(file)
    return Console(
        file=file,
        width=width or _PIPE_WIDTH,
        height=_ANY_HEIGHT,  # else rich takes no width for a dumb terminal
        color_system=None if unstyled else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )


def columns_of(file: IO[str]) -> int:
    """The columns that lines are broken at: those of COLUMNS, of the terminal, or 100."""
    return chosen_columns() or width_of_terminal(file) or _LOG_WIDTH


# The cells of a row, and the lines that replace it where the table does not fit.
Row = tuple[Sequence[str | Text], Iterable[Any]]


class Fitting:
    """A table if the width suffices, else the rows below one another.

    A squeezed table cuts or breaks slugs, which then cannot be copied. A table needs its natural
    width, or ``least`` where a column may be wrapped.
    """

    def __init__(self, table: Table, rows: Iterable[Any], least: int | None = None) -> None:
        self.table = table
        self.rows = list(rows)
        self.least = least

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table or the rows for rich."""
        unlimited = options.update_width(_PIPE_WIDTH)
        natural = Measurement.get(console, unlimited, self.table).maximum
        if min(natural, self.least or natural) <= options.max_width:
            yield self.table
        else:
            yield from self.rows


def fitting(
    columns: Iterable[Column | str],
    rows: Iterable[Row],
    least: int | None = None,
) -> Fitting:
    """Make a table of rows, given as cells and as the lines replacing a squeezed row."""
    table = Table(*columns, box=None, pad_edge=False)
    below: list[Any] = []
    for cells, lines in rows:
        table.add_row(*cells)
        below.extend(lines)
    return Fitting(table, below, least)


def numeric(*names: str) -> list[Column | str]:
    """Columns that are aligned at the right."""
    return [Column(name, justify="right") for name in names]


def indented(line: str | Text, by: int) -> Padding:
    """A paragraph whose every line begins some columns to the right."""
    return Padding(Text(line) if isinstance(line, str) else line, (0, 0, 0, by), expand=False)
