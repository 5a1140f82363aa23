"""What commands write to: output that may be cut short, progress where somebody looks."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..printable import printable

if TYPE_CHECKING:
    from ..checking import Progress


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Let the reader of our output leave early, as ``head`` does: the exit code stays ours."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        msg = f"the output cannot be written: {error.strerror or error}"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise UsageError(msg) from None


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on standard error where that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda _doing, _done, _total: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def tell(doing: str, done: int, total: int) -> None:
            bar.update(task, description=printable(doing), completed=done, total=total or None)

        yield tell
