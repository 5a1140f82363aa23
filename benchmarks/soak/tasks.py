"""One task of the soak: a candidate under a seed, and what it shows."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch

from conformance.base.expected import ExpectedFailure
from conformance.base.profile import Profile
from conformance.base.results import ClauseResult
from conformance.declare.candidate import Candidate
from conformance.identification.opening import resolve
from conformance.running.runner import CandidateRun
from conformance.session.expectations import judge

HONEST: Final = ("passed", "not-applicable", "expected-failure")
# SHOULD clauses that correct candidates fail and say nothing about, since verdicts allow it. Their
# documents and torch's code are what they are.
KNOWN: Final = (
    ExpectedFailure(
        clause="mask.no-leak-nonfinite",
        candidate="[tvm]*",
        reason="a hidden NaN meets a weight of zero in torch's own code and in two documents",
    ),
    *(
        ExpectedFailure(
            clause="numerics.nan-shows",
            candidate=name,
            reason="torch's kernels take a row of NaN for a row without keys, and answer zeros",
        )
        for name in ("torch_*", "packed_*_attention", "varlen_attention")
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


@dataclass(frozen=True, kw_only=True)
class Task:
    """One candidate under one seed; the worker resolves it anew, candidates do not pickle.

    Of its clauses those at ``part``, ``part + parts``, ``part + 2 * parts`` … are asked.
    """

    targets: tuple[str, ...]
    name: str
    profile: Profile
    seed: int
    dtypes: tuple[str, ...] | None = None
    part: int = 0
    parts: int = 1

    @property
    def key(self) -> str:
        """What a journal knows it by."""
        dtypes = ",".join(self.dtypes or ())
        asked = f"{self.profile.name} {self.profile.examples} {dtypes or 'declared'}"
        return f"{self.name} {asked} seed {self.seed} part {self.part}/{self.parts}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one task showed: examples by dtype, an accusation a line, the largest margins."""

    task: Task
    judged: int
    examples: Counter[str]
    accusations: tuple[str, ...]
    margins: dict[str, tuple[float, str]]
    seconds: float = 0.0


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
    start = time.process_time()
    applicable = [planned for planned in run.planned() if not planned.reason]
    results = [
        judge(run.run(planned), candidate.name, announced)
        for planned in applicable[task.part :: task.parts]
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
        seconds=time.process_time() - start,
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
