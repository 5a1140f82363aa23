"""``conformance diff``: what changed from one record to another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError
from ._options import json_option
from ._output import printing
from ._views import STANDARD_OUTPUT, check_files, told_to, write_to


@click.command(name="diff")
@click.argument("old", type=click.Path(path_type=Path), metavar="OLD.json")
@click.argument("new", type=click.Path(path_type=Path), metavar="NEW.json")
@click.option(
    "--margin-ratio",
    type=click.FloatRange(min=1, min_open=True),
    default=2.0,
    show_default=True,
    metavar="R",
    help="Tell of margins (error over bound) that became R times larger, or R times smaller.",
)
@json_option("Write the difference there as JSON (- for standard output).")
@click.option(
    "--markdown",
    "markdown_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write it as markdown, for a pull request (- for standard output).",
)
def diff_command(
    *,
    old: Path,
    new: Path,
    margin_ratio: float,
    json_path: Path | None,
    markdown_path: Path | None,
) -> int:
    """Say what changed from one record of conformance check to another.

    New failures, failures that are others now, margins that moved, what was fixed, and candidates
    and clauses that came or went. OLD.json and NEW.json are what 'conformance check --json' wrote;
    one of them may be - for standard input.

    Exit code: 0 when nothing got worse, 1 when something did, 2 for bad input.
    """
    from ..session.diffing import difference  # noqa: PLC0415 (--help must not pay for it)
    from ..session.recorded import read_record  # noqa: PLC0415
    from ..session.report import EXIT_OK, EXIT_RED  # noqa: PLC0415
    from ..views.diff import show_diff  # noqa: PLC0415 (loads rich)

    views = {} if markdown_path is None else {"--markdown": markdown_path}
    check_files(views, {"--json": json_path})
    _refuse_overwriting((old, new), {"--json": json_path, **views})
    if old == new == STANDARD_OUTPUT:
        msg = "OLD.json and NEW.json cannot both be standard input: name a file for one of them"
        raise UsageError(msg)
    if not math.isfinite(margin_ratio):
        msg = f"--margin-ratio is {margin_ratio}: give a number above 1, such as 2"
        raise UsageError(msg)
    found = difference(read_record(old), read_record(new), ratio=margin_ratio)
    try:
        _write(found, json_path, markdown_path)
    finally:  # what was found is not lost because a disk is full
        with printing():
            show_diff(found, told_to(views, json_path))
    return EXIT_RED if found["worse"] else EXIT_OK


def _write(found: Mapping[str, Any], json_path: Path | None, markdown_path: Path | None) -> None:
    from ..session.report import report_text  # noqa: PLC0415
    from ..views.diff_markdown import render_diff_markdown  # noqa: PLC0415

    if json_path is not None:
        write_to(report_text(found), json_path)
    if markdown_path is not None:
        write_to(render_diff_markdown(found), markdown_path)


def _refuse_overwriting(records: tuple[Path, ...], files: Mapping[str, Path | None]) -> None:
    """Require that no file that is written is one of the records."""
    for option, path in files.items():
        for record in records:
            if path is not None and path.exists() and record.exists() and path.samefile(record):
                msg = f"{option} {path} is one of the records: give it another name"
                raise UsageError(msg)
