"""``conformance compare``: candidates side by side, run now or recorded earlier."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from ..views.views import COMPARED
from ._options import (
    DEVICE,
    DTYPE,
    FAIL_ON,
    ONLY,
    SEED,
    SKIP,
    STRICT,
    UNCHECKED,
    expected_failures_option,
    json_option,
    profile_option,
    timeout_option,
)
from ._output import printing, progress_bar
from ._views import Files, as_written, check_files, told_to, view_options, write_to

if TYPE_CHECKING:
    from ..running.workers.messages import RunOptions


@click.command(name="compare")
@click.argument("targets", nargs=-1, required=True, metavar="TARGET|REPORT.json...")
@profile_option()
@DTYPE
@DEVICE
@SEED
@ONLY
@SKIP
@UNCHECKED
@expected_failures_option("TOML with the expected failures of the targets, as for check.")
@FAIL_ON
@STRICT
@timeout_option(
    "Stop a candidate that gives no answer for so long; loading may take twice as long."
)
@json_option("Write the record of all candidates there.")
@view_options(*COMPARED)
def compare_command(
    *,
    targets: tuple[str, ...],
    profile: str,
    dtypes: tuple[str, ...],
    devices: tuple[str, ...],
    seed: int,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    unchecked: tuple[str, ...],
    expected_failures: Path | None,
    fail_on: str,
    strict: bool,
    timeout: float,
    json_path: Path | None,
    views: Files,
) -> int:
    """Compare candidates clause by clause: verdicts, conventions and margins side by side.

    Every candidate of every TARGET is checked as 'conformance check' does. A REPORT.json that
    check wrote is taken as it is, so that yesterday's run, or another machine's, stands beside
    today's; with records alone nothing is run, and the options of a run say nothing.

    Exit code: that of check for all candidates together.
    """
    from ..running.workers.messages import RunOptions  # noqa: PLC0415
    from ..session.comparing import JUST_NOW, Source, joined, read_sources, split  # noqa: PLC0415 (--help)
    from ..session.report import gate_code, report_text  # noqa: PLC0415
    from ..views.comparison_text import show  # noqa: PLC0415

    strict = strict or fail_on == "should"
    check_files(views, {"--json": json_path})
    asked, files = split(targets)
    _refuse_overwriting(files, {**views, **({} if json_path is None else {"--json": json_path})})
    sources = read_sources(files)
    if asked:
        options = RunOptions(
            targets=asked,
            profile=profile,
            seed=seed,
            dtypes=dtypes or None,
            devices=devices or None,
            only=only,
            skip=skip,
            unchecked=unchecked,
        )
        run = _run(options, expected_failures, strict=strict, timeout=timeout)
        sources = [Source(name=JUST_NOW, record=run), *sources]
    record = joined(sources)
    record["fail_on"] = "should" if strict else "must"
    named = ", ".join(map(str, files)) or "this run"
    try:
        if json_path is not None:
            write_to(report_text(record), json_path)
        as_written(named, lambda: _write(record, views))
    finally:  # what was found is not lost because a disk is full
        with printing():
            as_written(named, lambda: show(record, told_to(views, json_path)))
    return gate_code(record, strict=strict)


def _write(record: dict[str, Any], views: Files) -> None:
    for view in COMPARED:
        if (path := views.get(view.option)) is not None:
            write_to(view.render(record), path)


def _refuse_overwriting(files: Iterable[Path], written: Files) -> None:
    """Require that no view takes the place of a record that it is made of."""
    records = {path.resolve() for path in files}
    for option, path in written.items():
        if path.resolve() in records:
            msg = f"{option} {path} is one of the records that are compared: give another name"
            raise UsageError(msg)


def _run(
    options: RunOptions, expected: Path | None, *, strict: bool, timeout: float
) -> dict[str, Any]:
    from ..session.checking import check  # noqa: PLC0415
    from ..session.renewing import Gate  # noqa: PLC0415

    gate = Gate(expected=expected, write=None, strict=strict)
    with progress_bar() as progress:
        return check(options, gate=gate, timeout=timeout, progress=progress)
