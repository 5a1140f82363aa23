"""The command line.

click and not argparse: it composes subcommands whose options repeat, suggests the nearest option
for a misspelt one, lets :func:`conformance.__main__.main` decide how an error is shown, and imports
in some 30 ms. Commands import what they need when they run, so that ``--help`` stays fast.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .dtypes import DTYPES
from .errors import UsageError
from .printable import printable
from .profile import PROFILES

if TYPE_CHECKING:
    from .checking import Progress


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="attention-conformance", prog_name="conformance")
@click.pass_context
def cli(context: click.Context) -> None:
    """Check whether an attention computes attention as specified, clause by clause.

    Exit code: 0 conforms, 1 fails or is inconclusive, 2 bad input, 3 the harness failed.
    """
    if context.invoked_subcommand is None:
        msg = "name a command: check, list or explain; 'conformance --help' describes them"
        raise click.UsageError(msg)


@cli.command(name="check")
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    default="default",
    show_default=True,
    help="How hard to try.",
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(DTYPES),
    help="Judge in this dtype instead of the declared ones; may be repeated.",
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="DEVICE",
    help="Run on this device (cpu, cuda, cuda:1) instead of the declared ones; may be repeated.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N")
@click.option("--only", multiple=True, metavar="GLOB", help="Run only these clauses.")
@click.option("--skip", multiple=True, metavar="GLOB", help="Leave these clauses out.")
@click.option(
    "--expected-failures",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML: [[expected]] tables with clause and reason, and kind, candidate, dtype as needed.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 when a SHOULD clause failed, too.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop a candidate that gives no answer for so long; loading may take twice as long.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the record of the run there.",
)
def check_command(
    *,
    targets: tuple[str, ...],
    profile: str,
    dtypes: tuple[str, ...],
    devices: tuple[str, ...],
    seed: int,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    expected_failures: Path | None,
    strict: bool,
    timeout: float,
    json_path: Path | None,
) -> int:
    """Check every candidate of the targets.

    A TARGET is package.module:object, path/to/file.py:object, a package, module, file or folder
    alone (every candidate declared in it), or the name of a registered candidate. Candidates run in
    a process of their own; what they print is not shown.
    """
    from .checking import check  # noqa: PLC0415 (--help must not pay for it)
    from .messages import RunOptions  # noqa: PLC0415
    from .report import check_writable, exit_code, write_report  # noqa: PLC0415
    from .reports.terminal import show  # noqa: PLC0415

    if json_path is not None:
        check_writable(json_path, "--json")
    options = RunOptions(
        targets=targets,
        profile=profile,
        seed=seed,
        dtypes=tuple(dict.fromkeys(dtypes)) or None,
        devices=tuple(dict.fromkeys(devices)) or None,
        only=only,
        skip=skip,
    )
    with _progress() as progress:
        report = check(
            options, expected_failures=expected_failures, timeout=timeout, progress=progress
        )
    try:
        if json_path is not None:
            write_report(report, json_path)
    finally:  # what was found is not lost because a disk is full
        with _printing():
            show(report, sys.stdout)
    return exit_code(report, strict=strict)


@contextlib.contextmanager
def _printing() -> Iterator[None]:
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
def _progress() -> Iterator[Progress]:
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


@cli.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="As JSON instead of a table.")
def list_command(*, as_json: bool) -> int:
    """List the clauses with their levels and sentences."""
    from .catalogue import clause_entries  # noqa: PLC0415 (loads torch)

    entries = clause_entries()
    with _printing():
        if as_json:
            import json  # noqa: PLC0415

            click.echo(json.dumps(entries, indent=2, ensure_ascii=False))
        else:
            from .reports.catalogue import show_list  # noqa: PLC0415

            show_list(entries, sys.stdout)
    return 0


@cli.command(name="explain")
@click.argument("slug", metavar="CLAUSE")
def explain_command(*, slug: str) -> int:
    """Say what a clause requires, why, and how it is checked."""
    from .catalogue import clause_entry  # noqa: PLC0415 (loads torch)
    from .reports.catalogue import show_clause  # noqa: PLC0415

    entry = clause_entry(slug)
    with _printing():
        show_clause(entry, sys.stdout)
    return 0
