"""How views reach a terminal or a pipe."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO, Any, Final

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

_PIPE_WIDTH: Final = 10_000


def write(parts: Iterable[Any], file: IO[str]) -> None:
    """Print the parts; where the file is no terminal without colour and with every line whole.

    A log is searched: sentences are broken only at a width that COLUMNS asks for.
    """
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        for part in parts:
            console.print(part)
        return
    width = console.width if "COLUMNS" in os.environ else _PIPE_WIDTH
    plain = Console(
        file=file, width=width, highlight=False, markup=False, emoji=False, color_system=None
    )
    with plain.capture() as capture:
        for part in parts:
            plain.print(part)
    file.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def indented(line: str | Text, by: int) -> Padding:
    """A paragraph whose every line begins some columns to the right."""
    return Padding(Text(line) if isinstance(line, str) else line, (0, 0, 0, by), expand=False)
