"""Counts runs, false alarms and largest margins, by whatever the runs have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from .exact import TESTS
from .legitimate import Run
from .power import LEGITIMATE, Verdict
from .rules import EXPLAINED, OURS, RULES
from .tables import Table, figure

NAMES: Final = {
    "worst": "worst case",
    "statistical": "statistical",
    "rms": "RMS",
    "scale": "scale",
}


@dataclass(kw_only=True)
class Tally:
    """Of some runs: how many, how many false alarms by test, the largest margin by test."""

    runs: int = 0
    accused: int = 0
    alarms: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TESTS, 0))
    largest: dict[str, float] = field(default_factory=dict)

    def add(self, run: Run) -> None:
        """Count one run."""
        self.runs += 1
        self.accused += bool(run.margins.failed)
        for test in run.margins.failed:
            self.alarms[test] += 1
        for test, margin in run.margins.figures().items():
            self.largest[test] = max(self.largest.get(test, 0.0), margin)

    def cells(self) -> list[str]:
        """Runs, false alarms with their tests, and the largest margins."""
        by_test = ", ".join(f"{NAMES[test]} {n}" for test, n in self.alarms.items() if n)
        alarms = f"{self.accused} ({by_test})" if by_test else str(self.accused)
        return [f"{self.runs:,}", alarms, *(figure(self.largest.get(test)) for test in TESTS)]


def margins_table(
    title: str, what: str, runs: Iterable[Run], key: Callable[[Run], str], note: str
) -> Table:
    """Runs grouped by a key, in the order in which its values appear, and all of them together."""
    groups: dict[str, Tally] = {}
    together = Tally()
    for run in runs:
        groups.setdefault(key(run), Tally()).add(run)
        together.add(run)
    rows = [[name, *tally.cells()] for name, tally in groups.items()]
    return Table(
        title=title,
        note=note,
        columns=[what, "runs", "false alarms", *(NAMES[test] for test in TESTS)],
        rows=[*rows, ["all", *together.cells()]],
    )


def power_table(title: str, verdicts: Sequence[Verdict], dtypes: Sequence[str]) -> Table:
    """Mistakes by dtypes; each cell has the counts of every rule, and of how many problems."""
    counted: dict[tuple[str, str], list[int]] = {}
    for verdict in verdicts:
        counts = counted.setdefault((verdict.subject, verdict.dtype), [0] * (1 + len(RULES)))
        for place, number in enumerate((*verdict.flagged, verdict.tried)):
            counts[place] += number
    subjects = [name for name in dict.fromkeys(v.subject for v in verdicts) if name != LEGITIMATE]
    rows = [
        [subject, *(_power_cell(counted.get((subject, dtype))) for dtype in dtypes)]
        for subject in [*subjects, LEGITIMATE]
    ]
    explained = "; ".join(f"{rule} ({EXPLAINED[rule]})" for rule in RULES)
    return Table(
        title=title,
        note=f"Flagged by {explained}, of so many problems. The last row are false alarms.",
        columns=["mistake", *dtypes],
        rows=rows,
    )


def _power_cell(counts: Sequence[int] | None) -> str:
    if counts is None:
        return "-"
    *flagged, tried = counts
    return f"{' / '.join(map(str, flagged))} of {tried}"


def false_alarms(verdicts: Iterable[Verdict]) -> int:
    """How often our own rule accused a legitimate run."""
    ours = RULES.index(OURS)
    return sum(v.flagged[ours] for v in verdicts if v.subject == LEGITIMATE)
