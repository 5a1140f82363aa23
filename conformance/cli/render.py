"""``conformance render``: a record that was written earlier, in other formats."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError
from ..views.views import TERMINAL, VIEWS
from ._github import GITHUB, tell_github
from ._output import printing
from ._views import (
    STANDARD_OUTPUT,
    Files,
    as_written,
    check_files,
    told_to,
    view_options,
    write_views,
)


@click.command(name="render")
@click.argument("report", type=click.Path(path_type=Path), metavar="REPORT.json")
@view_options(*VIEWS, TERMINAL)
@GITHUB
def render_command(*, report: Path, views: Files, github: bool | None) -> int:
    """Show a record of conformance check in other formats.

    REPORT.json is what 'conformance check --json' wrote, or - for standard input. Without any
    format it is shown as after the run. Nothing is run again, and the exit code says nothing of the
    verdict: 0 when everything was written.
    """
    from ..session.recorded import read_record  # noqa: PLC0415 (--help must not pay for it)

    check_files(views)
    record = read_record(report)
    _refuse_overwriting(report, views)
    if views.get(TERMINAL.option) == STANDARD_OUTPUT or not (views or github):
        views = {option: path for option, path in views.items() if option != TERMINAL.option}
        as_written(str(report), lambda: _show(record))
    as_written(str(report), lambda: write_views(record, views))
    if github:
        with printing():
            as_written(str(report), lambda: tell_github(record, told_to(views)))
    return 0


def _show(record: Mapping[str, Any]) -> None:
    """On a terminal in colour and at its width."""
    from ..views.complete import complete  # noqa: PLC0415
    from ..views.terminal import show  # noqa: PLC0415 (loads rich)

    with printing():
        show(complete(record), sys.stdout)


def _refuse_overwriting(report: Path, views: Files) -> None:
    """Require that no view replaces the record that it is made of."""
    for option, path in views.items():
        if path != STANDARD_OUTPUT and path.exists() and report.exists() and path.samefile(report):
            msg = f"{option} {path} is the report itself: give the view another name"
            raise UsageError(msg)
