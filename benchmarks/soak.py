"""Whether a correct candidate is ever accused: every clause, many examples, fresh seeds.

``python benchmarks/soak.py [--examples 100000] [--profile quick] [--problems N] [--seed N]
[--each] [--dtype NAME ...] [--markdown FILE] [TARGET ...]`` runs the correct candidates of this
repository (or the targets given) under one seed after the other until that many problems have been
judged, each by one clause; with ``--each`` so many in every dtype that is declared, or named by
``--dtype``, of float64 a tenth.
It exits 1 when a clause, MUST or SHOULD, is anything but passed, not applicable, or failing exactly
as announced.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import platform
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import torch

from conformance.candidate import Candidate
from conformance.dtypes import DTYPES
from conformance.expected import ExpectedFailure
from conformance.judging import judge
from conformance.profile import PROFILES, Profile
from conformance.results import ClauseResult
from conformance.runner import CandidateRun
from conformance.targets import resolve

TARGETS: Final = ("candidates", "candidates/legitimate")
REPORTED: Final = 7  # candidates between two lines of progress
SLOW: Final = 10  # an example in float64, with its golden in twice that, counts for so many
HONEST: Final = ("passed", "not-applicable", "expected-failure")
# SHOULD clauses that correct candidates fail and say nothing about, since verdicts allow it. Their
# documents and torch's code are what they are.
KNOWN: Final = (
    ExpectedFailure(
        clause="mask.no-leak-nonfinite",
        candidate="[tvm]*",
        reason="a hidden NaN meets a weight of zero in torch's own code and in two documents",
    ),
    ExpectedFailure(
        clause="numerics.nan-shows",
        candidate="torch_*",
        reason="torch's kernels take a row of NaN for a row without keys, and answer zeros",
    ),
    ExpectedFailure(
        clause="shape.rejects-others",
        candidate="torch_*",
        kind="not-raised",
        reason="torch's flash kernel compares neither lengths nor heads of keys and values",
    ),
    *(
        ExpectedFailure(
            clause="shape.rejects-others",
            candidate=name,
            kind="not-raised",
            reason="a loop over items, heads or rows reads those that it counts, and no others",
        )
        for name in ("kept_keys_of_each_row", "head_by_head", "item_by_item", "python_numbers")
    ),
    ExpectedFailure(
        clause="shape.empty-*",
        candidate="*_attention",
        kind="raised",
        reason="the documents infer the head size by a reshape, which no empty tensor allows",
    ),
    ExpectedFailure(
        clause="state.follows-to",
        candidate="token_attention",
        reason="the document keeps its scale in a plain attribute",
    ),
)


PAGE: Final = """\
# Correct candidates are not accused

{examples} examples (one problem judged by one clause): {dtypes}.
{number} correct candidates, {judged} clauses judged, profile {profile}, seeds {seeds}; {seconds} s
in {jobs} processes, torch {torch}, Python {python}, {date}.

**{alarms} false alarms.** One would be a MUST or SHOULD clause that a correct candidate fails
without having announced it, that cannot be tested on it, or that ends in an error. The hand-picked
problems of a clause count under every seed.

The largest error over its bound (1 is at the bound), by family of clauses:

| family | margin | where |
| --- | ---: | --- |
{rows}

Repeat it with `python benchmarks/soak.py --seed {seed}{problems}{targets}`.
{listed}"""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One candidate under one seed; the worker resolves it anew, candidates do not pickle."""

    targets: tuple[str, ...]
    name: str
    profile: Profile
    seed: int
    dtypes: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one task showed: examples by dtype, an accusation a line, the largest margins."""

    task: Task
    judged: int
    examples: Counter[str]
    accusations: tuple[str, ...]
    margins: dict[str, tuple[float, str]]


@dataclass(kw_only=True)
class Tally:
    """The outcomes so far."""

    judged: int = 0
    by_dtype: Counter[str] = field(default_factory=Counter)
    runs: int = 0
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

    def suffices(self, examples: int, *, each: bool) -> bool:
        """Whether so many were judged, in all or in each dtype; of float64 a tenth."""
        if not each:
            return self.examples >= examples
        return all(
            count * (SLOW if dtype == "float64" else 1) >= examples
            for dtype, count in self.by_dtype.items()
        )

    def add(self, outcome: Outcome) -> None:
        """Count one outcome, and keep the larger margins."""
        self.judged += outcome.judged
        self.by_dtype.update(outcome.examples)
        self.runs += 1
        self.accusations.extend(outcome.accusations)
        keep_larger(self.margins, outcome.margins)


def keep_larger(kept: dict[str, tuple[float, str]], others: dict[str, tuple[float, str]]) -> None:
    """Take over each margin that is larger than the one kept."""
    for family, margin in others.items():
        kept[family] = max(kept.get(family, margin), margin)


@cache
def candidates_of(targets: tuple[str, ...]) -> dict[str, Candidate]:
    """The candidates by name, loaded once a worker."""
    return {candidate.name: candidate for candidate in resolve(targets)}


def perform(task: Task) -> Outcome:
    """Run one task in this process."""
    torch.set_num_threads(1)
    candidate = candidates_of(task.targets)[task.name]
    run = CandidateRun(candidate, profile=task.profile, seed=task.seed, dtypes=task.dtypes)
    announced = (*candidate.declaration.expected_failures, *KNOWN)
    results = [
        judge(run.run(planned), candidate.name, announced)
        for planned in run.planned()
        if not planned.reason
    ]
    margins: dict[str, tuple[float, str]] = {}
    for result in results:
        if result.status == "passed" and result.margin is not None:
            place = f"`{task.name}` {result.dtype}, seed {task.seed}, `{result.id}`"
            keep_larger(margins, {result.family: (result.margin, place)})
    return Outcome(
        task=task,
        judged=sum(result.status != "not-applicable" for result in results),
        examples=_by_dtype(results),
        accusations=tuple(describe(task, r) for r in results if is_accusation(r)),
        margins=margins,
    )


def _by_dtype(results: list[ClauseResult]) -> Counter[str]:
    """How many examples were judged in each dtype."""
    counted: Counter[str] = Counter()
    for result in results:
        counted[result.dtype] += result.examples
    return counted


def is_accusation(result: ClauseResult) -> bool:
    """Whether a correct candidate is told to be wrong, or cannot be judged."""
    if result.status == "unexpected-pass":  # a clause of KNOWN that one of its candidates keeps
        return not any(known.clause == result.id for known in KNOWN)
    return result.status not in HONEST


def describe(task: Task, result: ClauseResult) -> str:
    """An accusation in one line, with what reproduces it."""
    said = result.violation.message if result.violation else result.reason
    where = f"{task.name} seed {task.seed} {result.id} ({result.level}) {result.dtype}"
    return f"{where}: {result.status}: {said}"


def tasks_of(
    targets: tuple[str, ...],
    profile: Profile,
    first_seed: int,
    dtypes: tuple[str, ...] | None = None,
) -> Iterator[list[Task]]:
    """Every candidate under one seed, again and again under the next."""
    seed = first_seed
    while True:
        yield [
            Task(targets=targets, name=name, profile=profile, seed=seed, dtypes=dtypes)
            for name in candidates_of(targets)
        ]
        seed += 1


def soak(
    targets: tuple[str, ...],
    profile: Profile,
    first_seed: int,
    examples: int,
    jobs: int,
    *,
    each: bool = False,
    dtypes: tuple[str, ...] | None = None,
) -> Tally:
    """Run whole rounds on that many processors until there are enough examples."""
    tally = Tally()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for tasks in tasks_of(targets, profile, first_seed, dtypes):
            for outcome in pool.map(perform, tasks):
                tally.add(outcome)
                for line in outcome.accusations:
                    print(line, flush=True)
                if tally.runs % REPORTED == 0:
                    told = f"{tally.runs} runs, {tally.examples:,} examples: {tally.spoken}"
                    print(told, file=sys.stderr, flush=True)
            if tally.suffices(examples, each=each) or not tally.examples:
                return tally
    return tally


def report(tally: Tally, options: argparse.Namespace, number: int, seconds: float) -> str:
    """The page that ``docs/soak.md`` is."""
    rounds = tally.runs // max(number, 1)
    seeds = f"{options.seed} to {options.seed + rounds - 1}"
    rows = [
        f"| {family} | {margin:.3f} | {place} |"
        for family, (margin, place) in sorted(tally.margins.items())
    ]
    fewer = f" with {options.problems} problems drawn for a clause" if options.problems else ""
    told = options.profile + fewer
    alarms = [f"- {line}" for line in tally.accusations]
    return PAGE.format(
        examples=f"{tally.examples:,}",
        dtypes=tally.spoken,
        number=number,
        judged=f"{tally.judged:,}",
        profile=told,
        seeds=seeds,
        seconds=f"{seconds:.0f}",
        jobs=options.jobs,
        torch=torch.__version__,
        python=platform.python_version(),
        date=time.strftime("%Y-%m-%d"),
        alarms=len(alarms),
        rows="\n".join(rows),
        seed=options.seed,
        problems=f" --problems {options.problems}" if options.problems else "",
        targets=_given(options),
        listed="\n".join(["", *alarms, ""]) if alarms else "",
    )


def _given(options: argparse.Namespace) -> str:
    """The other options that repeat a run, where they are not the usual ones."""
    each = f" --each --examples {options.examples}" if options.each else ""
    each += "".join(f" --dtype {name}" for name in options.dtypes or ())
    named = "" if tuple(options.targets) == TARGETS else " " + " ".join(options.targets)
    return each + named


def main() -> int:
    """Soak, print, and return 1 when somebody was accused."""
    parser = argparse.ArgumentParser(description="Correct candidates under many seeds.")
    parser.add_argument("targets", nargs="*", default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="quick")
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--each", action="store_true", help="as many in every dtype")
    parser.add_argument("--dtype", dest="dtypes", action="append", choices=DTYPES)
    parser.add_argument("--problems", type=int, help="drawn for a clause, instead of the profile's")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    targets = tuple(options.targets)
    number = len(candidates_of(targets))
    print(f"{number} candidates, first seed {options.seed}", flush=True)
    start = time.perf_counter()
    profile = dataclasses.replace(PROFILES[options.profile], reductions=0)
    if options.problems is not None:
        profile = dataclasses.replace(profile, examples=options.problems)
    tally = soak(
        targets,
        profile,
        options.seed,
        options.examples,
        options.jobs,
        each=options.each,
        dtypes=tuple(options.dtypes) if options.dtypes else None,
    )
    page = report(tally, options, number, time.perf_counter() - start)
    print(page)
    if options.markdown is not None:
        options.markdown.write_text(page, encoding="utf-8")
    enough = tally.suffices(options.examples, each=options.each)
    return 0 if enough and not tally.accusations else 1


if __name__ == "__main__":
    sys.exit(main())
