"""Tasks that are done, in a file: a soak that is stopped goes on where it was."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from conformance.errors import UsageError

from .tasks import Outcome, Task


class Journal:
    """The tasks that are done, a line of JSON each; without a path it only remembers."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._done: dict[str, tuple[dict[str, Any], str]] = {}
        if path is not None and path.exists():
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                self._read(line, f"{path}:{number}")

    def _read(self, line: str, where: str) -> None:
        try:
            noted = json.loads(line)
            fields = {
                "judged": noted["judged"],
                "examples": Counter(noted["examples"]),
                "accusations": tuple(noted["accusations"]),
                "margins": {
                    family: (value, at) for family, (value, at) in noted["margins"].items()
                },
                "seconds": noted["seconds"],
            }
            self._done[noted["task"]] = fields, noted["commit"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            msg = f"{where} is no line of a soak's journal: {error}; remove it"
            raise UsageError(msg) from error

    def outcome(self, task: Task) -> tuple[Outcome, str] | None:
        """What a task showed, and the commit at which it was asked; None where it is not noted."""
        noted = self._done.get(task.key)
        if noted is None:
            return None
        fields, commit = noted
        return Outcome(task=task, **fields), commit

    def note(self, outcome: Outcome, commit: str) -> None:
        """Write one outcome down at once: a soak may be stopped before the next."""
        noted = {
            "task": outcome.task.key,
            "judged": outcome.judged,
            "examples": outcome.examples,
            "accusations": outcome.accusations,
            "margins": outcome.margins,
            "seconds": outcome.seconds,
            "commit": commit,
        }
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(noted) + "\n")


def this_commit() -> str:
    """The commit of the checkout, with a plus where it was changed; "unknown" outside of git."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"
