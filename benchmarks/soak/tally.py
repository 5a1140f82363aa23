"""What was counted so far, and the page that tells it."""

from __future__ import annotations

import argparse
import platform
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from conformance.running.workers.messages import environment

from .tasks import Outcome, keep_larger

TARGETS: Final = ("candidates", "candidates/legitimate", "candidates/flex_attention.py")
SLOW: Final = 10  # an example in float64, with its golden in twice that, counts for so many
PAGE: Final = """\
# Correct candidates are not accused

{examples} examples (one problem judged by one clause): {dtypes}.
{number} correct candidates, {judged} clauses judged, profile {profile}, seeds {seeds}; {seconds} s
in {jobs} processes, torch {torch}, Python {python}, {date}, on {cpu}
(faults of torch's own operations there: {faults}).{share}

**{alarms} false alarms.** One would be a MUST or SHOULD clause that a correct candidate fails
without having announced it, that cannot be tested on it, or that ends in an error. The hand-picked
problems of a clause count under every seed.

The largest error over its bound (1 is at the bound), by family of clauses:

| family | margin | where |
| --- | ---: | --- |
{rows}

Repeat it with `python -m benchmarks.soak --seed {seed}{given}`.
{listed}"""


@dataclass(kw_only=True)
class Tally:
    """The outcomes so far."""

    judged: int = 0
    by_dtype: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    seconds: float = 0.0
    planned: int = 0
    seeds: set[int] = field(default_factory=set)
    commits: set[str] = field(default_factory=set)
    accusations: list[str] = field(default_factory=list)
    margins: dict[str, tuple[float, str]] = field(default_factory=dict)

    @property
    def examples(self) -> int:
        """The examples in all dtypes."""
        return self.by_dtype.total()

    @property
    def spoken(self) -> str:
        """The examples of each dtype."""
        return ", ".join(f"{n:,} in {dtype}" for dtype, n in sorted(self.by_dtype.items()))

    def lacking(self, dtypes: Iterable[str] | None) -> list[str]:
        """Those of some named dtypes in which nothing was judged."""
        return [dtype for dtype in dtypes or () if not self.by_dtype[dtype]]

    def suffices(self, examples: int, *, each: bool) -> bool:
        """Whether so many were judged, in all or in each dtype; of float64 a tenth."""
        if not each:
            return self.examples >= examples
        return bool(self.by_dtype) and all(
            count * (SLOW if dtype == "float64" else 1) >= examples
            for dtype, count in self.by_dtype.items()
        )

    def add(self, outcome: Outcome) -> None:
        """Count one outcome, and keep the larger margins."""
        self.judged += outcome.judged
        self.by_dtype.update(outcome.examples)
        self.runs += 1
        self.seconds += outcome.seconds
        self.seeds.add(outcome.task.seed)
        self.accusations.extend(outcome.accusations)
        keep_larger(self.margins, outcome.margins)


def report(tally: Tally, options: argparse.Namespace, number: int, seconds: float) -> str:
    """The page that ``docs/soak.md`` is."""
    first, last = (min(tally.seeds), max(tally.seeds)) if tally.seeds else (options.seed,) * 2
    rows = [
        f"| {family} | {margin:.3f} | {place} |"
        for family, (margin, place) in sorted(tally.margins.items())
    ]
    fewer = f" with {options.problems} problems drawn for a clause" if options.problems else ""
    alarms = [f"- {line}" for line in tally.accusations]
    machine = environment()
    return PAGE.format(
        examples=f"{tally.examples:,}",
        dtypes=tally.spoken,
        number=number,
        judged=f"{tally.judged:,}",
        profile=options.profile + fewer,
        seeds=f"{first} to {last}",
        seconds=f"{seconds:.0f}",
        jobs=options.jobs,
        torch=machine["torch"],
        cpu=machine["cpu"],
        faults=machine["faults"],
        python=platform.python_version(),
        date=time.strftime("%Y-%m-%d"),
        share=_share(tally),
        alarms=len(alarms),
        rows="\n".join(rows),
        seed=options.seed,
        given=_given(options),
        listed="\n".join(["", *alarms, ""]) if alarms else "",
    )


def _share(tally: Tally) -> str:
    """How much of what was to be done is done, where somebody said how much it is."""
    if not tally.planned:
        return ""
    commits = ", ".join(sorted(tally.commits))
    return (
        f"\nOf {tally.planned:,} tasks (a part of the clauses of a candidate under a seed) "
        f"{tally.runs:,} are done,\na fair sample, in {tally.seconds:.0f} s of processor time, "
        f"at commit {commits}."
    )


def _given(options: argparse.Namespace) -> str:
    """The other options that repeat a run, where they are not the usual ones."""
    said = [] if options.profile == "quick" else [f"--profile {options.profile}"]
    if options.problems:
        said.append(f"--problems {options.problems}")
    if options.each:
        said.append(f"--each --examples {options.examples}")
    if options.seeds is not None:
        said.append(f"--seeds {options.seeds} --parts {options.parts}")
    if options.rounds is not None:
        said.append(f"--rounds {options.rounds}")
    if str(options.shard) != "1/1":
        said.append(f"--shard {options.shard}")
    said += [f"--dtype {name}" for name in options.dtypes or ()]
    if tuple(options.targets) != TARGETS:
        said += options.targets
    return "".join(f" {one}" for one in said)
