"""``check --watch``: the run again whenever a file beside the targets changes."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from ..base.printable_text import printable
from ..base.record import EXIT_INTERRUPTED, EXIT_USAGE
from ..errors import UsageError

# Files besides Python whose change may change a verdict; nothing that a run writes.
_SUFFIXES: Final = (".onnx", ".conformance.toml", ".data", ".pt", ".safetensors")

_TIMEOUT: Final = 200  # milliseconds


def check_watching() -> None:
    """Require what tells of changes; raises UsageError."""
    if importlib.util.find_spec("watchfiles") is None:
        msg = "--watch needs watchfiles: pip install 'attention-conformance[watch]'"
        raise UsageError(msg)


def run_again(run: Callable[[float], int], targets: Sequence[str]) -> int:
    """Run at once and after every change, until Ctrl-C; the exit code of the last run.

    Bad input ends no watch: the next change may mend it.
    """
    from watchfiles import PythonFilter, watch  # noqa: PLC0415 (an extra)

    matters = PythonFilter(extra_extensions=_SUFFIXES)
    # It yields nothing at each timeout, first at once: what changes during a run is told after it.
    changes = watch(
        *_folders(targets), watch_filter=matters, yield_on_timeout=True, rust_timeout=_TIMEOUT
    )
    next(changes)
    code = _told(run)
    while code != EXIT_INTERRUPTED:
        sys.stdout.flush()
        click.echo("\nwaiting for a change (Ctrl-C ends)", err=True)
        try:
            while not next(changes):
                pass
        except KeyboardInterrupt:
            break
        code = _told(run)
    return code


def _told(run: Callable[[float], int]) -> int:
    try:
        return run(time.monotonic())
    except UsageError as error:
        click.echo(f"conformance: {printable(str(error))}", err=True)
        return EXIT_USAGE


def _folders(targets: Sequence[str]) -> Iterator[Path]:
    """The folders of targets that are paths, and the working folder for those that are not."""
    folders: dict[Path, None] = {}
    for target in targets:
        path = Path(target.rpartition(":")[0] or target)
        path = path if path.exists() else Path(target)
        folder = path if path.is_dir() else path.parent if path.exists() else Path.cwd()
        folders[folder.resolve()] = None
    yield from folders
