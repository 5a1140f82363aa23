"""``conformance export-check``: a module exported in several ways, and every graph checked."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from ..base.files import check_writable
from ..base.record import record_text
from ..errors import UsageError
from ._help import Command
from ._options import (
    ONLY,
    PROFILE,
    SEED,
    SKIP,
    STRICT,
    file_option,
    json_option,
    separated,
    timeout_option,
)
from ._output import check_files, printing, progress_bar, stream_for, write_to
from .completion import complete_targets

EXPORTERS = ("dynamo", "legacy")
OPSETS = ("18", "20", "23")


@click.command(
    name="export-check",
    cls=Command,
    examples=(
        ("conformance export-check attention.py:MyAttention", "Two exporters, three opsets"),
    ),
)
@click.argument("target", metavar="MODULE", shell_complete=complete_targets)
@click.option(
    "--opset",
    "opsets",
    multiple=True,
    callback=separated(),
    metavar="N,...",
    help=f"Export at these opsets; may be repeated [default: {','.join(OPSETS)}].",
)
@click.option(
    "--exporter",
    "exporters",
    multiple=True,
    callback=separated(EXPORTERS),
    metavar=f"[{'|'.join(EXPORTERS)}],...",
    help="Export with these of torch's exporters; may be repeated [default: both].",
)
@file_option(
    "--keep",
    metavar="FOLDER",
    help="Leave the graphs there, with source.py, which --source of check takes.",
)
@PROFILE
@SEED
@ONLY
@SKIP
@STRICT
@timeout_option(
    "Stop a graph that gives no answer for so long; exporting may take four times as long."
)
@json_option("Write the record of the run there.")
def export_check_command(
    *,
    target: str,
    opsets: tuple[str, ...],
    exporters: tuple[str, ...],
    keep: Path | None,
    profile: str,
    seed: int,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    strict: bool,
    timeout: float,
    json_path: Path | None,
) -> int:
    """Export MODULE with torch's exporters and check every graph against it.

    MODULE is package.module:object or path/to/file.py:object: a torch.nn.Module, a class of them
    that can be constructed, or a function without arguments that returns one. Needs onnxscript:
    pip install 'attention-conformance[export]'.

    Exit code: that of check; 1 as well when an export failed. An opset that an exporter does not
    know is no failure.
    """
    from ..running.workers.messages import RunOptions  # noqa: PLC0415
    from ..tools.exporting.session import Wanted, exit_code_of, export_check  # noqa: PLC0415 (--help)
    from ..views.tool_texts import show_exports  # noqa: PLC0415

    check_files({}, {"--json": json_path})
    numbers = tuple(_opset(word) for word in opsets or OPSETS)
    options = RunOptions(targets=(), profile=profile, seed=seed, only=only, skip=skip)
    with _folder(keep) as folder, progress_bar() as progress:
        wanted = Wanted(
            target=target, exporters=exporters or EXPORTERS, opsets=numbers, folder=folder
        )
        report = export_check(wanted, options, timeout=timeout, progress=progress)
    try:
        if json_path is not None:
            write_to(record_text(report), json_path)
    finally:  # the result is shown although a disk is full
        stream = stream_for({}, json_path)
        with printing(stream):
            show_exports(report, stream, kept=keep is not None)
    return exit_code_of(report, strict=strict)


def _opset(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        msg = f"--opset {word}: give positive numbers, such as --opset 18,20"
        raise UsageError(msg)
    return int(word)


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """The folder of the graphs: the user's, or a temporary folder."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="conformance-exports-") as name:
            yield Path(name)
        return
    from ..tools.exporting.session import SCRIPT  # noqa: PLC0415 (--help must not pay for it)

    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"--keep {keep} cannot be made: {error.strerror or error}"
        raise UsageError(msg) from None
    check_writable(keep / SCRIPT, "--keep")
    if not (keep / SCRIPT).exists() and any(keep.iterdir()):
        msg = f"--keep {keep} is a folder with other files in it: name one that is new or empty"
        raise UsageError(msg)
    yield keep.resolve()
