"""Renewing a file of expected failures from a run: what ``--write-expected`` does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.expected import ExpectedFailure
from ..base.expected_file import parse, read_text
from ..base.results import ClauseResult
from ..errors import UsageError
from .accepting import Acceptance, accept
from .announcing import Outcome
from .expectations import check_entries
from .expected_text import Written, read_written, rewrite
from .report import write_text


@dataclass(frozen=True, kw_only=True)
class Gate:
    """What a run is held against.

    expected
        The file of expected failures.
    write
        The file to renew; without ``expected`` it is read first, where it is there.
    strict
        Whether a failed SHOULD is red.
    """

    expected: Path | None = None
    write: Path | None = None
    strict: bool = False

    @property
    def files(self) -> list[Path]:
        """The files that hold what is known already, each once."""
        renewed = self.write if self.write is not None and self.write.is_file() else None
        given = [path for path in (self.expected, renewed) if path is not None]
        same = len(given) > 1 and given[0].resolve() == given[1].resolve()
        return given[:1] if same else given

    def entries(self, slugs: Collection[str]) -> tuple[ExpectedFailure, ...]:
        """What is expected of the run; raises UsageError for any of the files that is bad."""
        read = [parse(read_text(path), path) for path in self.files]
        for path, entries in zip(self.files, read, strict=True):
            check_entries(entries, slugs, path)
        return read[0] if read else ()


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """What became of the file: its entries, and what the record tells."""

    entries: tuple[ExpectedFailure, ...]
    told: dict[str, Any]


def renew(gate: Gate, outcome: Outcome) -> Renewed | str:
    """Write the file that makes a run green, or say in a sentence why it is left as it was."""
    path = gate.write
    if path is None:
        return "no file was named"
    broken = _broken(outcome.results.values())
    if broken:
        return f"{path} is left as it was: the harness failed in {broken}"
    try:
        before = [read_written(read_text(known), known) for known in gate.files]
        acceptance = accept(outcome, [entry for one in before for entry, _ in one.entries])
        return _write(path, before, acceptance)
    except UsageError as error:
        return str(error)


def _write(path: Path, before: Sequence[Written], acceptance: Acceptance) -> Renewed:
    text = rewrite(before, acceptance, path)
    write_text(text, path)
    return Renewed(entries=parse(text, path), told=_told(path, acceptance))


def _broken(results: Iterable[Sequence[ClauseResult]]) -> str:
    """The first clause in which the harness failed, or ""."""
    return next((one.id for some in results for one in some if one.status == "error"), "")


def _told(path: Path, acceptance: Acceptance) -> dict[str, Any]:
    """The record's ``written_expectations``."""
    return {
        "file": str(path),
        "kept": len(acceptance.kept),
        "added": [new.entry.as_json() for new in acceptance.added],
        "dropped": [{**entry.as_json(), "dropped": why} for entry, why in acceptance.dropped],
    }
