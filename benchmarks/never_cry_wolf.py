"""Whether a correct candidate is ever accused: every MUST clause, over many seeds.

``python benchmarks/never_cry_wolf.py [--seeds 20] [--profile quick] [TARGET ...]`` runs the correct
candidates of this repository (or the targets given) under each seed and exits 1 when a MUST clause
is anything but passed, not applicable, or failing exactly as declared.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache

import torch

from conformance.candidate import Candidate
from conformance.expectations import judge
from conformance.profile import PROFILES
from conformance.results import ClauseResult
from conformance.runner import CandidateRun
from conformance.targets import resolve

HONEST = ("passed", "not-applicable", "expected-failure")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One candidate under one seed; the worker resolves it anew, candidates do not pickle."""

    targets: tuple[str, ...]
    name: str
    profile: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The accusations of one task, a line each, and how many MUST clauses were judged."""

    task: Task
    judged: int
    accusations: tuple[str, ...]


@cache
def candidates_of(targets: tuple[str, ...]) -> dict[str, Candidate]:
    """The candidates by name, loaded once a worker."""
    return {candidate.name: candidate for candidate in resolve(targets)}


def perform(task: Task) -> Outcome:
    """Run one task in this process."""
    torch.set_num_threads(1)
    candidate = candidates_of(task.targets)[task.name]
    run = CandidateRun(candidate, profile=PROFILES[task.profile], seed=task.seed)
    announced = candidate.declaration.expected_failures
    results = [
        judge(run.run(planned), candidate.name, announced)
        for planned in run.planned()
        if planned.level == "MUST"
    ]
    wrong = [describe(task, result) for result in results if result.status not in HONEST]
    judged = sum(result.status != "not-applicable" for result in results)
    return Outcome(task=task, judged=judged, accusations=tuple(wrong))


def describe(task: Task, result: ClauseResult) -> str:
    """An accusation in one line, with what reproduces it."""
    said = result.violation.message if result.violation else result.reason
    return f"{task.name} seed {task.seed} {result.id} {result.dtype}: {result.status}: {said}"


def main() -> int:
    """Run every task on all processors, print the accusations, return 1 when there is one."""
    parser = argparse.ArgumentParser(description="Correct candidates under many seeds.")
    parser.add_argument("targets", nargs="*", default=["candidates"], metavar="TARGET")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="quick")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    targets = tuple(options.targets)
    names = list(candidates_of(targets))
    tasks = [
        Task(targets=targets, name=name, profile=options.profile, seed=seed)
        for seed in range(options.seeds)
        for name in names
    ]
    start = time.perf_counter()
    accusations = judged = 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        for outcome in pool.map(perform, tasks):
            judged += outcome.judged
            accusations += len(outcome.accusations)
            for line in outcome.accusations:
                print(line, flush=True)
    spent = time.perf_counter() - start
    print(
        f"{accusations} accusations in {judged} judgements: {len(names)} candidates, "
        f"{options.seeds} seeds, profile {options.profile}, {spent:.0f} s"
    )
    return 0 if judged and not accusations else 1


if __name__ == "__main__":
    sys.exit(main())
