"""``conformance identify``: what something undeclared computes, and a declaration for it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ._options import json_option, timeout_option
from ._output import printing, progress_bar


@click.command(name="identify")
@click.argument("target", metavar="TARGET")
@timeout_option("Stop a thing that gives no answer for so long.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the declaration there.",
)
@json_option("Write the facts and the declaration there as JSON.")
def identify_command(
    *, target: str, timeout: float, output: Path | None, json_path: Path | None
) -> int:
    """Say what TARGET computes, and write a declaration that can be pasted.

    TARGET is package.module:object or path/to/file.py:object: a function of query, key and value
    (under any names), a torch.nn.Module class or instance, a builder of layers, a function without
    arguments that returns one of these, or a declared candidate. It needs no declaration; one that
    is there is compared with what is found.
    """
    from ..identification.session import identify  # noqa: PLC0415 (--help must not pay for it)
    from ..report import EXIT_OK, EXIT_RED, check_writable, write_report  # noqa: PLC0415
    from ..reports.identification import show  # noqa: PLC0415

    for path, option in ((output, "--output"), (json_path, "--json")):
        if path is not None:
            check_writable(path, option)
    with progress_bar() as progress:
        record = identify(target, timeout=timeout, progress=progress)
    try:
        if json_path is not None:
            write_report(record, json_path)
        if output is not None and record["declaration"]:
            output.write_text(record["declaration"], encoding="utf-8")
    finally:  # what was found is not lost because a disk is full
        with printing():
            show(record, sys.stdout)
    return EXIT_OK if record["identified"] else EXIT_RED
