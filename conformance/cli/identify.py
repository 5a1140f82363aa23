"""``conformance identify``: the computation of an implementation, and a declaration for it."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

import click

from ..base.record import EXIT_OK, EXIT_RED, record_text
from ..errors import UsageError
from ..targets.target_strings import is_graph, is_path
from ._help import Command
from ._options import file_option, json_option, timeout_option
from ._output import STANDARD_OUTPUT, check_files, printing, progress_bar, stream_for, write_to
from .completion import complete_targets


@click.command(
    name="identify",
    cls=Command,
    examples=(
        ("conformance identify attention.py:MyAttention", "What it computes, as a declaration"),
    ),
)
@click.argument("target", metavar="TARGET", shell_complete=complete_targets)
@timeout_option("Stop an implementation that gives no answer for so long.")
@file_option(
    "--output",
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
    is there is compared with what is found. Of an ONNX file it lists the attentions: where they
    are, their heads, scales and masks, and which are the same.

    Exit code: 0 when it was identified, also if the check of its declaration fails; 1 when it was
    not; 2 for bad input, 3 when the harness failed, 130 when it was interrupted.
    """
    from ..tools.identify import identify, write_checked, write_declaration  # noqa: PLC0415 (--help must not pay for it)
    from ..views.tool_texts import show_identification  # noqa: PLC0415

    if output is not None:
        _refuse_useless(output, target)
    check_files({}, {"--output": output, "--json": json_path})
    with progress_bar() as progress:
        record = identify(target, as_observed=as_observed, timeout=timeout, progress=progress)
    try:
        if output is not None and record["declaration"]:
            if checked:
                with progress_bar() as progress:
                    write_checked(record, output, timeout=timeout, progress=progress)
            else:
                write_declaration(record, output)
        if json_path is not None:
            write_to(record_text(record), json_path)
    finally:  # the result is shown although a disk is full
        stream = stream_for({}, json_path)
        with printing(stream):
            show_identification(record, stream)
    return EXIT_OK if record["identified"] else EXIT_RED


def _refuse_useless(output: Path, target: str) -> None:
    """Require a target that a Python declaration can name, and an output file that can be imported.

    The file's name must hide no module: the folder of a declaration comes first on the path.
    """
    if output == STANDARD_OUTPUT:
        msg = "--output - names no file: the declaration is shown anyway, and its file is imported"
        raise UsageError(msg)
    if is_graph(target):
        msg = (
            f"--output {output}: no declaration is written for an ONNX file: leave it out, and "
            f"judge the file with 'conformance check {target}'"
        )
        raise UsageError(msg)
    where = target.rpartition(":")[0] or target
    read = Path(where).stem if is_path(where) else where.partition(".")[0]
    if is_path(where) and Path(where).resolve() == output.resolve():
        msg = f"--output {output} is what is read: give another name"
        raise UsageError(msg)
    name = output.stem
    if output.suffix == ".py" and (name == read or _is_installed(name)):
        msg = (
            f"--output {output} would hide the module {name} from what is written there: give "
            f"another name, such as {output.with_stem(f'declared_{name}')}"
        )
        raise UsageError(msg)


def _is_installed(name: str) -> bool:
    """Whether a name is that of an installed module or of a module of the standard library."""
    if name in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # its own parent is broken, or it has no specification
        return False
    if spec is None:
        return False
    folders = tuple(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    return any(place is not None and place.startswith(folders) for place in places)
