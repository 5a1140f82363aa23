"""``conformance list``, ``explain``, ``teeth``, ``vectors``: the specification and its proofs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..base.printable_text import printable
from ..base.profile import DTYPES
from ..base.record import record_text
from ._help import Command
from ._options import (
    PROFILE,
    SEED,
    cluster_at,
    cluster_options,
    file_option,
    json_option,
    output_help,
    separated,
    timeout_option,
)
from ._output import check_files, printing, progress_bar, stream_for, write_to
from .completion import complete_explained, complete_targets


@click.command(name="list", cls=Command)
@click.option("--json", "as_json", is_flag=True, help="As JSON instead of a table.")
def list_command(*, as_json: bool) -> int:
    """List the clauses with their levels and sentences."""
    from ..tools.specification import clause_entries  # noqa: PLC0415 (loads torch)

    entries = clause_entries()
    with printing():
        if as_json:
            import json  # noqa: PLC0415

            click.echo(json.dumps(entries, indent=2, ensure_ascii=False))
        else:
            from ..views.tool_texts import show_list  # noqa: PLC0415

            show_list(entries, sys.stdout)
    return 0


@click.command(
    name="explain",
    cls=Command,
    examples=(
        ("conformance explain mask.causal", "A clause"),
        ("conformance explain mask", "All clauses of a family"),
        ("conformance explain scale-missing", "A mistake, as the cause of a failure names it"),
    ),
)
@click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="CLAUSE|FAMILY|MISTAKE...",
    shell_complete=complete_explained,
)
def explain_command(*, names: tuple[str, ...]) -> int:
    """Say what a clause requires, why, and how it is checked; or what a mistake is.

    Of a family every clause is listed. A mistake has the name that causes of failures have; two in
    one cause are joined by +.
    """
    from ..tools.explaining import explained  # noqa: PLC0415 (loads torch)
    from ..views.tool_texts import show_explained  # noqa: PLC0415

    entries = [entry for name in names for entry in explained(name)]
    with printing():
        show_explained(entries, sys.stdout)
    return 0


@click.command(
    name="teeth",
    cls=Command,
    examples=(("conformance teeth --first --jobs 4", "Whether every mistake is caught, and soon"),),
)
@click.argument("targets", nargs=-1, metavar="[TARGET]...", shell_complete=complete_targets)
@PROFILE
@SEED
@click.option(
    "--first",
    is_flag=True,
    help="Stop each mistake at the first clause that catches it, the primary one tried first, and "
    "leave candidates/legitimate out, of which the tests run one, and at night all.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="GLOB",
    help="Run only these mistakes, and no correct candidate but those of --correct.",
)
@click.option(
    "--skip",
    multiple=True,
    metavar="GLOB",
    help="Leave these mistakes out, and every correct candidate but those of --correct.",
)
@click.option(
    "--correct",
    multiple=True,
    metavar="TARGET",
    help="A further correct candidate, which no clause may flag; may be repeated.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Worker processes; by default one a processor, at most 8, or all of a cluster.",
)
@cluster_options
@timeout_option("Stop a mistake that gives no answer for so long: it is caught.")
@json_option("Write the record there.")
@file_option("--html", "html_path", help=output_help("Write the matrix as a page."))
@file_option(
    "--markdown",
    "markdown_path",
    help=output_help("Write the matrix as markdown."),
)
def teeth_command(
    *,
    targets: tuple[str, ...],
    profile: str,
    seed: int,
    first: bool,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    correct: tuple[str, ...],
    jobs: int | None,
    cluster: str | None,
    per_worker: tuple[str, ...],
    timeout: float,
    json_path: Path | None,
    html_path: Path | None,
    markdown_path: Path | None,
) -> int:
    """Run the catalogue of mistakes, and the correct candidates, against every clause.

    A TARGET names a conformance.Mistake, a list of them, a module of either, or candidates that are
    known to be broken. Without any it is the whole catalogue: the shipped mistakes, those of
    installed distributions and, in a checkout of the repository, candidates/broken.

    Exit code: 0 when every mistake is caught, by its primary clause too, every clause catches a
    mistake and no correct candidate is flagged; else 1; 2 for bad input, 3 when the harness failed,
    130 when it was interrupted: what was found until then is shown and written.
    """
    from ..running.workers.pool import WorkerPool, default_jobs  # noqa: PLC0415
    from ..tools.teeth.jobs import Pace, TeethOptions  # noqa: PLC0415
    from ..tools.teeth.record import exit_code, run_teeth  # noqa: PLC0415

    files = {"--json": json_path, "--html": html_path, "--markdown": markdown_path}
    check_files({}, files)
    options = TeethOptions(
        targets=targets,
        profile=profile,
        seed=seed,
        correct=correct,
        mistakes=only,
        not_mistakes=skip,
        thorough=not first,
    )
    with progress_bar() as progress, cluster_at(options, cluster, per_worker, jobs) as machines:
        many = (jobs or default_jobs()) if machines is None else machines.jobs
        pace = Pace(jobs=many, timeout=timeout, first=first)
        make_pool = WorkerPool if machines is None else machines.make_pool
        record = run_teeth(options, pace, progress, make_pool)
    try:
        _write(record, files)
    finally:  # the result is shown although a disk is full
        from ..views.teeth import show_teeth  # noqa: PLC0415

        stream = stream_for(files)
        with printing(stream):
            show_teeth(record, stream)
    return exit_code(record)


def _write(record: Mapping[str, Any], files: Mapping[str, Path | None]) -> None:
    from ..views.html import render_teeth  # noqa: PLC0415 (loads jinja2)
    from ..views.teeth import render_teeth_markdown  # noqa: PLC0415

    renderers = {"--json": record_text, "--html": render_teeth, "--markdown": render_teeth_markdown}
    for option, render in renderers.items():
        if (path := files[option]) is not None:
            write_to(render(record), path)


DEFAULT = Path("attention-vectors")


@click.command(
    name="vectors",
    cls=Command,
    examples=(("conformance vectors --output vectors --dtype float32", "For another language"),),
)
@file_option(
    "--output",
    metavar="FOLDER",
    help=f"Where to write them, a new or empty folder; by default {DEFAULT}.",
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    callback=separated(DTYPES),
    metavar="DTYPE",
    help=f"Only these dtypes; by default {', '.join(DTYPES)}.",
)
@file_option(
    "--check",
    "checked",
    metavar="FOLDER",
    help="Write nothing: check that the vectors in this folder are whole.",
)
def vectors_command(*, output: Path | None, dtypes: tuple[str, ...], checked: Path | None) -> int:
    """Write test vectors: the calls of clauses on the edge problems, with answers and bounds.

    For implementations in other languages: JSON and raw bytes, described in the folder's README.md.
    Exit code: 0; with --check 1 for a folder that is damaged; 2 for bad input.
    """
    if checked is not None:
        if output is not None or dtypes:
            msg = "--check writes nothing: leave out --output and --dtype"
            raise click.UsageError(msg)
        return _check(checked)
    from ..tools.vectors.writing import write_vectors  # noqa: PLC0415 (loads torch)

    folder = DEFAULT if output is None else output
    with progress_bar() as progress:
        count = write_vectors(folder, dtypes or DTYPES, progress)
    with printing():
        sys.stdout.write(printable(f"{folder}: {count} cases in {', '.join(dtypes or DTYPES)}\n"))
    return 0


def _check(folder: Path) -> int:
    from ..tools.vectors import check_vectors  # noqa: PLC0415 (--help must not pay for it)

    count, faults = check_vectors(folder)
    with printing():
        for fault in faults:
            sys.stdout.write(printable(f"{folder}: {fault}\n"))
        condition = "whole" if not faults else f"{len(faults)} not as they should be"
        sys.stdout.write(printable(f"{folder}: {count} cases, {condition}\n"))
    return int(bool(faults))
