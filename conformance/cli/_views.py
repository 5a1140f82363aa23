"""The options ``--html FILE``, ``--sarif FILE`` … of commands, and the files they ask for."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final

import click

from ..errors import UsageError
from ..views.views import TERMINAL, VIEWS, View
from ._options import Decorator
from ._output import printing

STANDARD_OUTPUT: Final = Path("-")
# What a view raises of a record whose inner parts do not fit together.
_UNFIT: Final = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
_ALL: Final = {view.option: view for view in (*VIEWS, TERMINAL)}

Files = Mapping[str, Path]


def view_options(*views: View) -> Decorator:
    """An option a view; the command gets ``views``, a dict of option to path of those given.

    Without arguments all of :data:`conformance.views.views.VIEWS`.
    """
    offered = views or VIEWS

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def gathered(**arguments: Any) -> Any:
            given = {view.option: arguments.pop(view.parameter) for view in offered}
            files = {option: path for option, path in given.items() if path is not None}
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
        help=f"{view.said.removesuffix('.')} (- for standard output).",
    )


def check_files(views: Files, others: Mapping[str, Path | None] | None = None) -> None:
    """Require before a run that every file can be written, and none twice; raises UsageError.

    ``others`` are further options that name files to be written, such as ``--json``.
    """
    from ..session.report import check_apart, check_writable  # noqa: PLC0415 (--help must not pay for it)

    files = {**(others or {}), **views}
    check_apart(files)
    for option, path in files.items():
        if path is not None and path != STANDARD_OUTPUT:
            check_writable(path, option)


def write_views(record: Mapping[str, Any], views: Files, json_path: Path | None = None) -> None:
    """Write the record, and then every view of it that is asked for: all or none.

    Raises UsageError when a file cannot be written after all.
    """
    from ..session.report import report_text  # noqa: PLC0415

    if json_path is not None:
        write_to(report_text(record), json_path)
    texts = {option: _ALL[option].render(record) for option in views}
    for option, text in texts.items():
        write_to(text, views[option])


def as_written(files: str, tell: Callable[[], None]) -> None:
    """Show records of files; one whose inner parts do not fit together is bad input, too.

    What every record needs has been looked at; tensors and the like are left to the views.
    """
    try:
        tell()
    except _UNFIT as error:
        msg = (
            f"{files} cannot be shown: something in it is not as conformance check writes it "
            f"({type(error).__name__}: {error}); if it is, please report this"
        )
        raise UsageError(msg) from None


def write_to(text: str, path: Path) -> None:
    """Write a text into a file, or to standard output for ``-``."""
    from ..session.report import write_text  # noqa: PLC0415

    if path != STANDARD_OUTPUT:
        write_text(text, path)
        return
    with printing():  # the same bytes as in a file, whatever the terminal's encoding is
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode(errors="backslashreplace"))


def told_to(views: Files, json_path: Path | None = None) -> IO[str]:
    """Where a command tells a person: standard error where standard output has a view."""
    return sys.stderr if STANDARD_OUTPUT in (json_path, *views.values()) else sys.stdout
