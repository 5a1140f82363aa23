"""What commands write to: output that may be cut short, progress where somebody looks."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ..base.printable import printable
from ..errors import UsageError

if TYPE_CHECKING:
    from ..session.spreading import Progress


# From so many seconds on, time is told in minutes, and in hours.
_MINUTES: Final = 100
_HOURS: Final = 6000


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
        yield lambda _doing, _done, _total, _left=None: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None, left="")

        def tell(doing: str, done: int, total: int, left: float | None = None) -> None:
            bar.update(
                task,
                description=printable(doing),
                completed=done,
                total=total or None,
                left=time_left(left),
            )

        yield tell


def time_left(seconds: float | None) -> str:
    """``about 4 min left``, as roughly as it is known; "" where it is not."""
    if seconds is None:
        return ""
    if seconds < _MINUTES:
        return f"about {max(1, round(seconds))} s left"
    if seconds < _HOURS:
        return f"about {round(seconds / 60)} min left"
    return f"about {seconds / 3600:.1f} h left"
