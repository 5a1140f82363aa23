"""GitHub Actions: annotations in its log, the step's summary, and a log that cannot command it."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import click

from ..base.printable import printable
from ._options import Decorator

ACTIONS: Final = "GITHUB_ACTIONS"
SUMMARY: Final = "GITHUB_STEP_SUMMARY"
# GitHub drops the whole summary of a step that is larger.
SUMMARY_LIMIT: Final = 1024 * 1024
_LEAST: Final = 4096

GITHUB: Final[Decorator] = click.option(
    "--github/--no-github",
    "github",
    default=None,
    help="Write GitHub's annotations and step summary [default: where GITHUB_ACTIONS is true].",
)


def is_for_github(*, asked: bool | None) -> bool:
    """Whether GitHub Actions is to be told: as asked, else where we run in it."""
    return os.environ.get(ACTIONS) == "true" if asked is None else asked


@contextlib.contextmanager
def no_commands(file: IO[str], *, active: bool) -> Iterator[None]:
    """Let GitHub's log take no line for a command: a candidate may have said it."""
    if not active:
        yield
        return
    token = secrets.token_hex(16)
    file.write(f"::stop-commands::{token}\n")
    try:
        yield
    finally:
        file.write(f"::{token}::\n")


def tell_github(record: Mapping[str, Any], file: IO[str]) -> None:
    """Write the annotations into the log, and the summary where the step has one.

    A summary that cannot be written is told in a sentence: it changes no verdict.
    """
    from ..views.github import render_annotations  # noqa: PLC0415 (--help must not pay for it)

    file.write(render_annotations(record))
    path = os.environ.get(SUMMARY)
    if not path:
        return
    try:
        _append_summary(record, Path(path))
    except OSError as error:
        sentence = f"the step summary {path} cannot be written: {error.strerror or error}"
        sys.stderr.write(f"conformance: {printable(sentence)}\n")


def _append_summary(record: Mapping[str, Any], path: Path) -> None:
    """Add to what the step has said already, within what GitHub accepts of all of it."""
    from ..views.markdown import render_markdown  # noqa: PLC0415

    taken = path.stat().st_size if path.exists() else 0
    room = SUMMARY_LIMIT - taken - 1
    if room < _LEAST:
        msg = f"it holds {taken:,} bytes, and GitHub takes {SUMMARY_LIMIT:,} at most"
        raise OSError(msg)
    text = render_markdown(record, limit=room)
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"\n{text}" if taken else text)
