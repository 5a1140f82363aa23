"""The output of commands: terminals and pipes, files of views, and GitHub Actions."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, TypeVar

import click

from ..base.files import check_distinct, check_writable, write_text
from ..base.line_breaking import broken_into_lines, fitted_to
from ..base.printable_text import is_on_github, no_commands, printable
from ..base.record import record_text
from ..errors import UsageError
from ..views import TERMINAL, VIEWS, View
from ._options import Decorator, output_help

if TYPE_CHECKING:
    from rich.progress import Progress

# From so many seconds on, time is shown in minutes, and in hours.
_MINUTES: Final = 100
_HOURS: Final = 6000


@contextlib.contextmanager
def printing(shown: IO[str] | None = None) -> Iterator[None]:
    """Let the reader of the output leave early, as ``head`` does, without a change of exit code.

    What is written to ``shown`` meanwhile may hold a candidate's text: GitHub's log obeys no
    command in the text.
    """
    try:
        with contextlib.nullcontext() if shown is None else no_commands(shown):
            yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        msg = f"the output cannot be written: {error.strerror or error}"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise UsageError(msg) from None


class ProgressShown(Protocol):
    """Shows a command's progress and announcements on standard error."""

    def __call__(self, step: str, done: int, total: int, left: float | None = None) -> None:
        """Say how far the work is."""

    def announce(self, line: str) -> None:
        """Write a line that stays on the terminal."""


class _NoBar:
    """Announcements alone, where nobody watches a terminal."""

    def __call__(self, step: str, done: int, total: int, left: float | None = None) -> None:
        """Say nothing of the progress."""

    def announce(self, line: str) -> None:
        announce(line)


class _Bar:
    """A bar at the bottom of a terminal; announcements stand above the bar.

    Both go through the bar's console: other writes break the drawn bar.
    """

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None, left="")

    def __call__(self, step: str, done: int, total: int, left: float | None = None) -> None:
        """Draw the bar."""
        self._bar.update(
            self._task,
            description=printable(step),
            completed=done,
            total=total or None,
            left=time_left(left),
        )

    def announce(self, line: str) -> None:
        """Write a line above the bar, broken between words."""
        console = self._bar.console
        for broken in broken_into_lines(printable(line), console.width):
            console.print(broken, markup=False, highlight=False, emoji=False, overflow="fold")


@contextlib.contextmanager
def progress_bar() -> Iterator[ProgressShown]:
    """A bar on standard error if that is a terminal, else announcements alone."""
    if not sys.stderr.isatty():
        yield _NoBar()
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
        yield _Bar(bar)


def announce(line: str) -> None:
    """Write a line to standard error, with control signs, as in a candidate's name, escaped."""
    with no_commands(sys.stderr):
        click.echo(fitted_to(sys.stderr, printable(line)), err=True)


def time_left(seconds: float | None) -> str:
    """``about 4 min left``, as roughly as known; "" if unknown."""
    if seconds is None:
        return ""
    if seconds < _MINUTES:
        return f"about {max(1, round(seconds))} s left"
    if seconds < _HOURS:
        return f"about {round(seconds / 60)} min left"
    return f"about {seconds / 3600:.1f} h left"


STANDARD_OUTPUT: Final = Path("-")
# What a view raises for a record whose parts are inconsistent.
_UNFIT: Final = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
_ALL: Final = {view.option: view for view in (*VIEWS, TERMINAL)}

Files = Mapping[str, Path]
Made = TypeVar("Made")


def view_options(*views: View) -> Decorator:
    """An option a view; the command gets ``views``, a dict from used options to paths.

    Without arguments all of :data:`conformance.views.VIEWS`.
    """
    offered = views or VIEWS

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def gathered(**arguments: Any) -> Any:
            paths = {view.option: arguments.pop(view.parameter) for view in offered}
            files = {option: path for option, path in paths.items() if path is not None}
            return command(views=files, **arguments)

        made: Callable[..., Any] = gathered
        for view in reversed(offered):
            made = _option(view)(made)
        return made

    return decorate


def _option(view: View) -> Decorator:
    return click.option(
        view.option,
        view.parameter,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=output_help(view.help),
    )


def check_files(views: Files, others: Mapping[str, Path | None] | None = None) -> None:
    """Require before a run that every file can be written, and none twice; raises UsageError.

    ``others`` are further options that name output files, such as ``--json``.
    """
    files = {**(others or {}), **views}
    check_distinct(files)
    for option, path in files.items():
        if path is not None and path != STANDARD_OUTPUT:
            check_writable(path, option)


def check_not_read(
    read: Iterable[Path], files: Mapping[str, Path | None], what: str, another: str
) -> None:
    """Require that no option replaces a file that is read; raises UsageError."""
    for option, path in files.items():
        if path is None or path == STANDARD_OUTPUT or not path.exists():
            continue
        if any(source.exists() and path.samefile(source) for source in read):
            msg = f"{option} {path} is {what}: give {another}"
            raise UsageError(msg)


def write_views(record: Mapping[str, Any], views: Files, json_path: Path | None = None) -> None:
    """Write the record, and then every requested view of it: all or none.

    Raises UsageError when a file cannot be written after all.
    """
    if json_path is not None:
        write_to(record_text(record), json_path)
    texts = {option: _ALL[option].render(record) for option in views}
    for option, text in texts.items():
        write_to(text, views[option])


def keep_so_far(json_path: Path, record: Mapping[str, Any]) -> None:
    """Write the record of an unfinished run to the file of the finished record.

    An error of writing is not raised here: the end of the run reports a file that stays unwritable.
    """
    is_file = json_path.is_file() or not json_path.exists()
    if is_file and json_path != STANDARD_OUTPUT:
        with contextlib.suppress(UsageError):
            write_text(record_text(record), json_path)


def use_as_written(files: str, use: Callable[[], Made]) -> Made:
    """The result of ``use`` on records of files; raises UsageError for inconsistent parts.

    Reading a record checks the parts that all records have; tensors and the like fail in use.
    """
    from jinja2 import TemplateError  # noqa: PLC0415 (--help must not pay for it)

    try:
        return use()
    except UsageError:  # a wrong declaration is a ValueError as well
        raise
    except (*_UNFIT, TemplateError) as error:
        msg = (
            f"{files} cannot be used: something in it is not as conformance check writes it "
            f"({type(error).__name__}: {error}); if it is, please report this"
        )
        raise UsageError(msg) from None


def write_to(text: str, path: Path) -> None:
    """Write a text into a file, or to standard output for ``-``."""
    if path != STANDARD_OUTPUT:
        write_text(text, path)
        return
    with printing():  # the same bytes as in a file, whatever the terminal's encoding is
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode(errors="backslashreplace"))


def stream_for(files: Mapping[str, Path | None], json_path: Path | None = None) -> IO[str]:
    """Where a command prints for a person: standard error if standard output has a file."""
    return sys.stderr if STANDARD_OUTPUT in (json_path, *files.values()) else sys.stdout


SUMMARY: Final = "GITHUB_STEP_SUMMARY"
# GitHub drops the whole summary of a step that is larger.
SUMMARY_LIMIT: Final = 1024 * 1024
_LEAST: Final = 4096

GITHUB: Final[Decorator] = click.option(
    "--github/--no-github",
    "github",
    default=None,
    help="Write GitHub's annotations and step summary [default: where GITHUB_ACTIONS is true].",
)


VERBOSE: Final[Decorator] = click.option(
    "-v",
    "--verbose",
    "verbosity",
    count=True,
    help="Of one candidate show each clause, too, and twice each failure in full and what did not "
    "apply; of several show each failure in full.",
)


def show_run(
    record: Mapping[str, Any], file: IO[str], *, github: bool | None, verbosity: int = 0
) -> None:
    """Show the record of a run to a person, and to GitHub Actions if the run is there."""
    from ..views.terminal import show  # noqa: PLC0415 (loads rich)
    from ..views.tool_texts import show_renewed  # noqa: PLC0415

    on_github = is_on_github() if github is None else github
    with printing():
        with no_commands(file, active=on_github):
            show(record, file, verbosity)
            show_renewed(record, file)
        if on_github:
            tell_github(record, file)


def tell_github(record: Mapping[str, Any], file: IO[str]) -> None:
    """Write the annotations into the log, and the summary where the step has one.

    If the summary cannot be written, a sentence says so: it changes no verdict.
    """
    from ..views.github import render_annotations  # noqa: PLC0415 (--help must not pay for it)

    file.write(render_annotations(record))
    path = os.environ.get(SUMMARY)
    if not path:
        return
    try:
        _append_summary(record, Path(path))
    except OSError as error:
        sentence = f"the step summary {path} cannot be written: {error.strerror or error}"
        sys.stderr.write(f"conformance: {printable(sentence)}\n")


def _append_summary(record: Mapping[str, Any], path: Path) -> None:
    """Add to the step's summary, within the size that GitHub accepts; raises OSError."""
    from ..views.markdown import render_markdown  # noqa: PLC0415

    taken = path.stat().st_size if path.exists() else 0
    room = SUMMARY_LIMIT - taken - 1
    if room < _LEAST:
        msg = f"it holds {taken:,} bytes, and GitHub takes {SUMMARY_LIMIT:,} at most"
        raise OSError(msg)
    text = render_markdown(record, limit=room)
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"\n{text}" if taken else text)
