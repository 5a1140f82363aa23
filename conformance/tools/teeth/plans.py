"""Plans of the catalogue in the worker: one run at a time, without reduction and diagnosis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from ...base.profile import PROFILES, Profile
from ...declare.candidate import Candidate
from ...running.asking import Planned
from ...running.runner import CandidateRun
from ...running.workers.messages import RunOptions, Task
from .catalogue import Entry, entries
from .options import LoadedEntry, TeethOptions


def plan_teeth(
    options: RunOptions, tell: Callable[[str, str], None] = lambda _what, _name: None
) -> list[TeethPlan]:
    """Load the catalogue and plan its clauses; raises UsageError with one sentence."""
    assert isinstance(options, TeethOptions)  # noqa: S101 (who names this loader gives these)
    bench = Bench(profile=PROFILES[options.profile], seed=options.seed)
    plans = []
    for entry in entries(options, tell):
        tell("planning", entry.name)
        plans.append(TeethPlan(entry=entry, bench=bench, planned=bench.plan(entry)))
    return plans


@dataclass(kw_only=True)
class Bench:
    """Holds the run of one candidate: its problems and answers go when the next one comes."""

    profile: Profile
    seed: int
    _current: tuple[Candidate, CandidateRun] | None = field(default=None, init=False)

    def plan(self, entry: Entry) -> list[Planned]:
        """The clauses of an entry, those first that are expected to catch it."""
        named = (entry.primary, *entry.also)
        planned = self.run_of(entry.candidate).planned()
        return sorted(
            planned,
            key=lambda one: named.index(one.id) if one.id in named else len(named),
        )

    def run_of(self, candidate: Candidate) -> CandidateRun:
        """The run of a candidate, made anew where another one had the bench."""
        if self._current is None or self._current[0] is not candidate:
            # That it fails is what counts here, not how small its failure can be made.
            run = CandidateRun(candidate, profile=self.profile, seed=self.seed, explain=False)
            self._current = (candidate, run)
        return self._current[1]


@dataclass(frozen=True, kw_only=True)
class TeethPlan:
    """One entry of the catalogue with the clauses planned for it, as the worker wants a plan."""

    entry: Entry
    bench: Bench
    planned: list[Planned]

    @property
    def candidate(self) -> Candidate:
        """What is run."""
        return self.entry.candidate

    @property
    def run(self) -> CandidateRun:
        """The candidate's run, which has the bench from now on."""
        return self.bench.run_of(self.entry.candidate)

    def loaded(self) -> LoadedEntry:
        """The same as plain data."""
        entry, candidate = self.entry, self.entry.candidate
        told: dict[str, Any] = {
            name: getattr(entry, name)
            for name in ("name", "sentence", "fix", "primary", "also", "origin", "correct")
        }
        return LoadedEntry(
            **told,
            target=candidate.target,
            kind=candidate.kind,
            declaration={},
            gauge="",
            deviations=(),
            expected=candidate.declaration.expected_failures,
            tasks=tuple(Task(**asdict(planned)) for planned in self.planned),
        )


__all__ = ["TeethPlan", "plan_teeth"]
