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
@click.option(
    "--as-observed",
    is_flag=True,
    help="Promise what was found even where it is probably a mistake.",
)
@click.option(
    "--check/--no-check",
    "checked",
    default=True,
    help="Check the declaration that --output writes, in quick, and note in it what fails.",
)
@json_option("Write the facts and the declaration there as JSON.")
def identify_command(
    *,
    target: str,
    timeout: float,
    output: Path | None,
    as_observed: bool,
    checked: bool,
    json_path: Path | None,
) -> int:
    """Say what TARGET computes, and write a declaration that can be pasted.

    TARGET is package.module:object or path/to/file.py:object: a function of query, key and value
    (under any names), a torch.nn.Module class or instance, a builder of layers, a function without
    arguments that returns one of these, or a declared candidate. It needs no declaration; one that
    is there is compared with what is found.
    """
    from ..identification.session import identify, write_checked  # noqa: PLC0415 (--help must not pay for it)
    from ..report import EXIT_OK, EXIT_RED, check_writable, write_report  # noqa: PLC0415
    from ..reports.identification import show  # noqa: PLC0415

    for path, option in ((output, "--output"), (json_path, "--json")):
        if path is not None:
            check_writable(path, option)
    with progress_bar() as progress:
        record = identify(target, as_observed=as_observed, timeout=timeout, progress=progress)
    try:
        if output is not None and record["declaration"]:
            if checked:
                with progress_bar() as progress:
                    write_checked(record, output, timeout=timeout, progress=progress)
            else:
                output.write_text(record["declaration"], encoding="utf-8")
        if json_path is not None:
            write_report(record, json_path)
    finally:  # what was found is not lost because a disk is full
        with printing():
            show(record, sys.stdout)
    return EXIT_OK if record["identified"] else EXIT_RED
