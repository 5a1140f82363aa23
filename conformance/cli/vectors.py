"""``conformance vectors``: the fixed edge problems as test vectors for other languages."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..base.dtypes import DTYPES
from ..base.printable import printable
from ._options import separated
from ._output import printing, progress_bar

DEFAULT = Path("attention-vectors")


@click.command(name="vectors")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
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
@click.option(
    "--check",
    "checked",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write nothing: check that the vectors in this folder are whole.",
)
def vectors_command(*, output: Path | None, dtypes: tuple[str, ...], checked: Path | None) -> int:
    """Write test vectors: what the clauses ask on the edge problems, with answers and bounds.

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
    from ..tools.vectors.checking import check_vectors  # noqa: PLC0415 (--help must not pay for it)

    count, faults = check_vectors(folder)
    with printing():
        for fault in faults:
            sys.stdout.write(printable(f"{folder}: {fault}\n"))
        said = "whole" if not faults else f"{len(faults)} not as they should be"
        sys.stdout.write(printable(f"{folder}: {count} cases, {said}\n"))
    return int(bool(faults))
