"""What ``conformance bundle`` wrote, for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any, Final

from ..base.printable import printable
from .printing import indented, write

_SAID: Final = {
    "fails": "it still fails",
    "differs": "it fails differently today, and that is what the bundle shows",
    "recorded": "as the report holds it",
}


def show(
    folder: str, clause: Mapping[str, Any], outcome: str, again: str, *, file: IO[str]
) -> None:
    """Write what was bundled, and what its script does."""
    lines = [
        indented(f"{folder}: {clause['id']} in {clause['dtype']}, {_SAID[outcome]}", 0),
        indented(printable(str(clause["violation"]["message"])), 2),
    ]
    does = "asks the candidate again" if not again else f"shows the record alone: {again}"
    lines.append(indented(f"python {folder}/show.py {printable(does)}", 2))
    write(lines, file)
