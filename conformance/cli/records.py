"""Commands on records: ``compare``, ``diff``, ``merge`` and ``render``."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..base.record import EXIT_OK, EXIT_RED, Record, exit_code, read_record, record_text
from ..errors import UsageError
from ..views import COMPARED, TERMINAL, VIEWS
from ._help import Command
from ._options import (
    DEVICE,
    DTYPE,
    FAIL_ON,
    ONLY,
    PROFILE,
    SEED,
    SKIP,
    STRICT,
    UNCHECKED,
    NumberRange,
    cluster_at,
    cluster_options,
    expected_failures_option,
    file_option,
    is_strict,
    json_option,
    timeout_option,
)
from ._output import (
    GITHUB,
    STANDARD_OUTPUT,
    VERBOSE,
    Files,
    check_files,
    check_not_read,
    printing,
    progress_bar,
    show_run,
    stream_for,
    tell_github,
    use_as_written,
    view_options,
    write_to,
    write_views,
)
from .completion import complete_targets

if TYPE_CHECKING:
    from ..running.workers.cluster import Cluster
    from ..running.workers.messages import RunOptions


@click.command(
    name="compare",
    cls=Command,
    examples=(
        ("conformance compare attention.py:fast attention.py:eager", "Two candidates side by side"),
        ("conformance compare old.json new.json --html page.html", "Two records, as a page"),
    ),
)
@click.argument(
    "targets",
    nargs=-1,
    required=True,
    metavar="TARGET|REPORT.json...",
    shell_complete=complete_targets,
)
@PROFILE
@DTYPE
@DEVICE
@SEED
@ONLY
@SKIP
@UNCHECKED
@expected_failures_option("TOML with the expected failures of the targets, as for check.")
@FAIL_ON
@STRICT
@cluster_options
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
    fail_on: str | None,
    strict: bool,
    cluster: str | None,
    per_worker: tuple[str, ...],
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
    from ..session.comparing import JUST_NOW, ComparedRecord, joined, read_sources, split  # noqa: PLC0415 (--help)
    from ..views.comparison import show_comparison  # noqa: PLC0415

    strict = is_strict(fail_on, strict=strict)
    to_run, files = split(targets)
    written = {**views, "--json": json_path}
    check_not_read(files, written, "one of the records that are compared", "another name")
    check_files(views, {"--json": json_path})
    sources = read_sources(files)
    if to_run:
        options = RunOptions(
            targets=to_run,
            profile=profile,
            seed=seed,
            dtypes=dtypes or None,
            devices=devices or None,
            only=only,
            skip=skip,
            unchecked=unchecked,
        )
        with cluster_at(options, cluster, per_worker, None) as machines:
            run = _run(options, machines, expected_failures, strict=strict, timeout=timeout)
        sources = [ComparedRecord(name=JUST_NOW, record=run), *sources]
    named = ", ".join(map(str, files)) or "this run"
    record = use_as_written(named, lambda: joined(sources))
    record["fail_on"] = "should" if strict else "must"
    try:
        if json_path is not None:
            write_to(record_text(record), json_path)
        use_as_written(named, lambda: _write(record, views))
    finally:  # the result is shown although a disk is full
        stream = stream_for(views, json_path)
        with printing(stream):
            use_as_written(named, lambda: show_comparison(record, stream))
    return exit_code(record, strict=strict)


def _write(record: Record, views: Files) -> None:
    for view in COMPARED:
        if (path := views.get(view.option)) is not None:
            write_to(view.render(record), path)


def _run(
    options: RunOptions,
    machines: Cluster | None,
    expected: Path | None,
    *,
    strict: bool,
    timeout: float,
) -> Record:
    from ..running.workers.pool import WorkerPool  # noqa: PLC0415
    from ..session.checking import check  # noqa: PLC0415
    from ..session.renewing import Gate  # noqa: PLC0415

    gate = Gate(expected=expected, write=None, strict=strict)
    with progress_bar() as progress:
        return check(
            options,
            gate=gate,
            timeout=timeout,
            jobs=1 if machines is None else machines.jobs,
            progress=progress,
            make_pool=WorkerPool if machines is None else machines.make_pool,
        )


@click.command(
    name="diff",
    cls=Command,
    examples=(("conformance diff main.json branch.json --markdown -", "For a pull request"),),
)
@click.argument("old", type=click.Path(path_type=Path), metavar="OLD.json")
@click.argument("new", type=click.Path(path_type=Path), metavar="NEW.json")
@click.option(
    "--margin-ratio",
    type=NumberRange(min=1, min_open=True),
    default=2.0,
    show_default=True,
    metavar="R",
    help="Tell of margins (error over bound) that became R times larger, or R times smaller.",
)
@json_option("Write the difference there as JSON.")
@file_option(
    "--markdown",
    "markdown_path",
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
    from ..session.comparing import difference  # noqa: PLC0415 (--help must not pay for it)
    from ..views.diff import show_diff  # noqa: PLC0415 (loads rich)

    views = {} if markdown_path is None else {"--markdown": markdown_path}
    files = {"--json": json_path, **views}
    check_not_read((old, new), files, "one of the records", "it another name")
    check_files(views, {"--json": json_path})
    if old == new == STANDARD_OUTPUT:
        msg = "OLD.json and NEW.json cannot both be standard input: name a file for one of them"
        raise UsageError(msg)
    if not math.isfinite(margin_ratio):
        msg = f"--margin-ratio is {margin_ratio}: give a number above 1, such as 2"
        raise UsageError(msg)
    named, records = f"{old} or {new}", (read_record(old), read_record(new))
    changes = use_as_written(named, lambda: difference(*records, ratio=margin_ratio))
    try:
        _write_diff(changes, json_path, markdown_path)
    finally:  # the result is shown although a disk is full
        stream = stream_for(views, json_path)
        with printing(stream):
            use_as_written(named, lambda: show_diff(changes, stream))
    return EXIT_RED if changes["worse"] else EXIT_OK


def _write_diff(
    changes: Mapping[str, Any], json_path: Path | None, markdown_path: Path | None
) -> None:
    from ..views.diff import render_diff_markdown  # noqa: PLC0415

    if json_path is not None:
        write_to(record_text(changes), json_path)
    if markdown_path is not None:
        write_to(render_diff_markdown(changes), markdown_path)


@click.command(
    name="merge",
    cls=Command,
    examples=(("conformance merge shard-*.json --json report.json", "All shards of a run"),),
)
@click.argument(
    "shards",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    metavar="SHARD.json...",
)
@json_option("Write the record of the whole run there.")
@view_options()
@GITHUB
@FAIL_ON
@STRICT
@VERBOSE
def merge_command(
    *,
    shards: tuple[Path, ...],
    json_path: Path | None,
    views: Files,
    github: bool | None,
    fail_on: str | None,
    strict: bool,
    verbosity: int,
) -> int:
    """Make one record of the records of all shards of a run.

    Each SHARD.json is what 'conformance check --shard I/N --json' wrote. Examples are counted as
    one machine would have counted them, and every verdict is judged again. Nothing is run.

    Exit code: that of the whole run, as of 'conformance check'; 2 for shards that are missing,
    given twice or of different runs.
    """
    from ..session.merging import merge_shards  # noqa: PLC0415 (--help must not pay for it)
    from ..session.shards import read_shards  # noqa: PLC0415

    strict = is_strict(fail_on, strict=strict)
    written = {**views, "--json": json_path}
    check_not_read(shards, written, "one of the shards", "another name")
    check_files(views, {"--json": json_path})
    named = ", ".join(map(str, shards))
    record = use_as_written(named, lambda: merge_shards(read_shards(shards)))
    record["fail_on"] = "should" if strict else "must"
    try:
        write_views(record, views, json_path)
    finally:  # the verdict is shown although a disk is full
        show_run(record, stream_for(views, json_path), github=github, verbosity=verbosity)
    return exit_code(record, strict=strict)


@click.command(
    name="render",
    cls=Command,
    examples=(
        ("conformance render report.json -v", "As a terminal shows it, with each clause"),
        ("conformance render report.json --html page.html --junit tests.xml", "As files"),
    ),
)
@click.argument("report", type=click.Path(path_type=Path), metavar="REPORT.json")
@view_options(*VIEWS, TERMINAL)
@GITHUB
@VERBOSE
def render_command(*, report: Path, views: Files, github: bool | None, verbosity: int) -> int:
    """Show a record of conformance check in other formats.

    REPORT.json is what 'conformance check --json' wrote, or - for standard input. Without any
    format it is shown as after the run; --terminal writes the same into a file, and -v and -vv more
    of it. Nothing is run again, and the exit code says nothing of the verdict: 0 when everything
    was written.
    """
    check_not_read((report,), views, "the report itself", "the view another name")
    check_files(views)
    record = read_record(report)
    terminal = views.get(TERMINAL.option)
    files = {option: path for option, path in views.items() if option != TERMINAL.option}
    if terminal == STANDARD_OUTPUT or not (views or github):
        use_as_written(str(report), lambda: _show(record, verbosity))
    elif terminal is not None:
        write_to(use_as_written(str(report), lambda: _terminal_text(record, verbosity)), terminal)
    use_as_written(str(report), lambda: write_views(record, files))
    if github:
        with printing():
            use_as_written(str(report), lambda: tell_github(record, stream_for(views)))
    return 0


def _terminal_text(record: Mapping[str, Any], verbosity: int) -> str:
    from ..views.terminal import render_terminal  # noqa: PLC0415 (loads rich)

    return render_terminal(record, verbosity)


def _show(record: Mapping[str, Any], verbosity: int) -> None:
    """Print a record for a person: in colour and at its width on a terminal."""
    from ..views.complete import complete  # noqa: PLC0415
    from ..views.terminal import show  # noqa: PLC0415 (loads rich)

    with printing(sys.stdout):
        show(complete(record), sys.stdout, verbosity)
