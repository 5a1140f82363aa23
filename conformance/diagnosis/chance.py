"""Finds chance in answers: random numbers, unordered device streams, races."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ..base.mistake import UNREPEATABLE
from ..base.results import RACE, THREADS, Violation
from ..calls.calling import Answer, Arguments, CandidateFailure, Forward
from ..calls.devices import CPU, forked_random, kind_of, seed_random, synchronise
from ..calls.differentiating import Taped
from ..clauses.judging import identical
from ..clauses.modules import COUNTED, equal_tokens, shares_of
from ..clauses.subject import Differentiator, Subject
from ..problems.edges import edge_problems
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..tolerance import model
from .entries import named_entry

DROPOUT: Final = "dropout-left-on"
RANDOM: Final = "random-answers"
_FIX: Final = (
    "drop nothing unless a call asks for it: dropout_p=self.dropout if self.training else 0.0"
)
# Seeds too many for a race to mimic, without a period, which a count of calls has.
_SEEDS: Final = (1, 2, 2, 1, 2, 1, 1, 2, 2, 1, 1, 2)
_FIX_OF_RACES: Final = (
    "give each thread an accumulator and rows of its own, or have threads wait for each other"
)
UNORDERED: Final = "streams-not-ordered"
# Right answers with waits for the device before its streams are blamed.
_TIMES: Final = 4
# How often a failing call is repeated; on a CPU, where races are rare, the first failures suffice.
_MADE_AGAIN: Final = 16
_AT_FIRST: Final = 3
# Equal calls in the search for a race.
_RACES: Final = 32


class Chance:
    """Finds whether random numbers, races or device streams decide answers; remembers results."""

    def __init__(self) -> None:
        self._unordered: set[Subject] = set()
        self._random: dict[Subject, dict[str, Any] | None] = {}
        self._unrepeatable: set[Subject] = set()
        self._race: dict[Subject, dict[str, Any] | None] = {}

    def entry(
        self,
        subject: Subject,
        problem: Problem,
        fails: Callable[[Subject], bool],
        *,
        numbers: bool,
    ) -> dict[str, Any] | None:
        """Return the report's entry; None if chance decides nothing.

        ``fails`` asks a subject the failing problem; ``numbers`` says whether random numbers may be
        the cause. They are looked for once.
        """
        unordered = unordered_entry(subject, fails, proven=subject in self._unordered)
        if unordered is not None:
            self._unordered.add(subject)
            return unordered
        if numbers and subject not in self._random:
            self._random[subject] = None
            self._random[subject] = random_entry(subject, problem)
        if not numbers:
            return None
        if self._random[subject] is None and self._race.get(subject) is None:
            self._race[subject] = race_entry(subject, problem)
        return self._random[subject] or self._race[subject]

    def unrepeatable(
        self, subject: Subject, fails: Callable[[Subject], bool]
    ) -> dict[str, Any] | None:
        """Return the entry of an unexplained failure that occurs only sometimes."""
        with forked_random(subject.device):
            failed = []
            for _ in range(_MADE_AGAIN):
                seed_random(subject.device, _SEEDS[0])
                failed.append(fails(subject))
                likely = subject in self._unrepeatable or kind_of(subject.device) != CPU
                if len(failed) == _AT_FIRST and all(failed) and not likely:
                    return None
        if all(failed):
            return None
        self._unrepeatable.add(subject)
        return named_entry(
            UNREPEATABLE,
            f"the same call goes wrong in {sum(failed) + 1} of {len(failed) + 1} attempts, "
            "with the same inputs and the same seed: something else decides its answer",
            "look for a race (two threads or programs that write one place), memory that is "
            "read before it is written, a clock, or something kept between calls",
        )


def threads_entry(violation: Violation) -> dict[str, Any] | None:
    """Return the entry of an answer that changes with the number of threads, or None."""
    count = violation.measured.get(THREADS)
    if count is None:
        return None
    if violation.measured[RACE]:
        return named_entry(
            RACE,
            f"a race: equal calls on {count} threads have different answers, and right "
            "ones on one thread: two threads write one place, or one reads what another writes",
            _FIX_OF_RACES,
        )
    return named_entry(
        "threads-change-answer",
        f"on {count} threads the answer is another than on one: rows are divided wrongly "
        "among them, or a thread writes to rows that another has",
        "let each thread write to its own rows alone, and let the threads have all rows",
    )


def race_entry(subject: Subject, problem: Problem) -> dict[str, Any] | None:
    """Return the entry of a race: equal calls agree only on a single processor; else None."""
    pinned = kind_of(subject.device) == CPU and not subject.candidate.isolated
    pinned = pinned and subject.candidate.graph is None and sys.platform == "linux"
    processors = os.sched_getaffinity(0) if pinned else set()
    if len(processors) < 2:  # noqa: PLR2004 (one alone shows no difference)
        return None
    inputs = subject.inputs(problem)
    with subject.recorded(None), suppress(CandidateFailure):
        forward = subject.forward(inputs)

        def others() -> int:
            first, *later = (_seeded(subject, forward, inputs) for _ in range(_RACES))
            return sum(not identical(first, each) for each in later)

        if others() < _AT_FIRST:
            return None
        with _keep_to_one_processor(processors):
            alike = not others()
        if alike and others() >= _AT_FIRST:  # no state that has settled meanwhile
            return named_entry(
                RACE,
                "a race: equal calls have different answers, and one answer where a single "
                "processor runs them: two threads write one place, or one reads what another "
                "writes",
                _FIX_OF_RACES,
            )
    return None


@contextmanager
def _keep_to_one_processor(processors: set[int]) -> Iterator[None]:
    """Run all threads of this process on one processor.

    Threads that are started meanwhile inherit the processor of their parent.
    """

    def move(to: set[int]) -> None:
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(int(thread.name), to)

    move({min(processors)})
    try:
        yield
    finally:
        move(processors)


def _seeded(subject: Subject, forward: Forward, inputs: Inputs) -> Tensor:
    with forked_random(subject.device):
        seed_random(subject.device, _SEEDS[0])
        return subject.call(forward, inputs).output


def random_entry(subject: Subject, problem: Problem) -> dict[str, Any] | None:
    """Return the entry of answers that torch's seed decides, or None.

    The candidate answers the failing problem and a problem of equal keys and equal values, whose
    rows count the kept values: this separates dropout from other random numbers.
    """
    if not subject.candidate.golden_known or subject.candidate.kind == "positions":
        return None
    problems = edge_problems(subject.candidate, COUNTED, dtype=subject.dtype, most=1)
    counted = [
        equal_tokens(subject.inputs(each.replace(device=subject.device))) for each in problems
    ]
    with subject.recorded(None):
        for inputs in (*counted, subject.inputs(problem)):
            answer = _decided_by_seed(subject, inputs)
            if answer is not None:
                dropped = _dropped(subject, inputs, answer) if inputs in counted else ""
                return _entry(dropped)
    return None


class Waiting(Subject):
    """A subject that waits for its device before calls, after calls, or both."""

    def __init__(self, subject: Subject, *, before: bool, after: bool) -> None:
        vars(self).update(vars(subject))
        self.before, self.after = before, after
        self.gradients = _WaitingDifferentiator(self)

    def forward(self, inputs: Inputs) -> Forward:
        """Return the candidate's forward with waits for the device."""
        return self.waiting(super().forward(inputs))

    def call_with(self, forward: Forward, call_arguments: Arguments, inputs: Inputs) -> Answer:
        """Call a forward with the same waits."""
        return super().call_with(self.waiting(forward), call_arguments, inputs)

    def waiting(self, own: Forward) -> Forward:
        """Wrap a function in waits for the device."""

        def waited(*positional: Any, **keywords: Any) -> Any:
            if self.before:
                synchronise(self.device)
            returned = own(*positional, **keywords)
            if self.after:
                synchronise(self.device)
            return returned

        return waited


class _WaitingDifferentiator(Differentiator):
    subject: Waiting

    def tape(self, inputs: Inputs, **how: Any) -> Taped:
        taped = super().tape(inputs, **how)
        return _WaitingTaped(**vars(taped), subject=self.subject)


@dataclass(frozen=True, kw_only=True)
class _WaitingTaped(Taped):
    subject: Waiting

    def backward(
        self, gradient: Tensor | None, *, beside: Tensor | None = None, again: bool = False
    ) -> None:
        pass_back = partial(super().backward, beside=beside, again=again)
        self.subject.waiting(pass_back)(gradient)


def unordered_entry(
    subject: Subject, fails: Callable[[Subject], bool], *, proven: bool
) -> dict[str, Any] | None:
    """Return the entry of answers that are right only if the device is waited for, or None.

    ``fails`` asks a subject the failing problem. It must fail again, unless such a failure is
    ``proven`` already: late work is a matter of chance.
    """
    if kind_of(subject.device) == CPU:
        return None

    def right(*, before: bool, after: bool) -> bool:
        waiting = Waiting(subject, before=before, after=after)
        return not any(fails(waiting) for _ in range(_TIMES))

    again = proven or any(fails(subject) for _ in range(_TIMES))
    if not again or not right(before=True, after=True):
        return None
    # A failure by earlier calls may be gone now, with or without waiting.
    if not proven and not any(fails(subject) for _ in range(_TIMES)):
        return None
    stream = f"torch.{kind_of(subject.device)}.current_stream()"
    if right(before=True, after=False):
        what = "its work starts before its inputs are there, on a stream that does not wait for"
    elif right(before=False, after=True):
        what = (
            "its answer is read before it is there: the stream that computes it is not awaited by"
        )
    else:
        what = "its work runs on a stream that neither waits for, nor is awaited by,"
    return named_entry(
        UNORDERED,
        f"{what} the current one; where the device is waited for the answer is right",
        f"work on {stream}, or order the two streams: other.wait_stream(current) before the "
        "work, current.wait_stream(other) after it",
    )


def _entry(dropped: str) -> dict[str, Any]:
    if dropped:
        text = f"dropout is left on: {dropped}, in a call that asks for none"
        return named_entry(DROPOUT, text, _FIX)
    text = "the answer is random: it differs with torch's seed, in calls that ask for no dropout"
    fix = "draw no random numbers outside training; is some dropout left on?"
    return named_entry(RANDOM, text, fix)


def _decided_by_seed(subject: Subject, inputs: Inputs) -> Tensor | None:
    answers: list[Tensor] = []
    try:
        forward = subject.forward(inputs)
        with forked_random(subject.device):
            for seed in _SEEDS:
                seed_random(subject.device, seed)
                answers.append(subject.call(forward, inputs).output)
                if answers[1:] and torch.equal(answers[0], answers[1]):  # as of most candidates
                    return None
    except CandidateFailure:
        return None
    first, other = answers[:2]
    exact = subject.golden(inputs)
    judged = exact.judged.expand(exact.bound.shape)
    differs = ((first.double() - other.double()).abs() > exact.bound) & judged
    same = all(
        torch.equal(answer.nan_to_num(), answers[_SEEDS.index(seed)].nan_to_num())
        for seed, answer in zip(_SEEDS, answers, strict=True)
    )
    return first.double() if same and bool(differs.any()) else None


def _dropped(subject: Subject, inputs: Inputs, answer: Tensor) -> str:
    """Say what was dropped of a problem of equal tokens, with which probability, or ""."""
    shares, slack = shares_of(subject, inputs, answer)
    if shares is None:
        return ""
    if not bool(shares.isfinite().all()):
        return ""
    if _differ(shares, slack):
        elements = "single elements of the answer are dropped"
        return elements if _all_or_nothing(shares, slack) else ""
    keys = inputs.geometry.key_length
    steps = shares.flatten().sort().values.diff()
    steps = steps[steps > 2.0 * float(slack.max())]
    if not steps.numel():
        return ""
    kept = 1.0 / (keys * float(steps.min()))
    counts = shares * keys * kept
    if bool(((counts - counts.round()).abs() > model.COUNTABLE).any()):
        return ""
    dropped, rescaled = 1.0 - kept, ""
    if dropped <= float(slack.max()):  # the rest does not make up for it
        dropped, rescaled = 1.0 - float(shares.mean()), " and not rescaled"
    return f"attention weights are dropped with a probability of {dropped:.2g}{rescaled}"


def _all_or_nothing(shares: Tensor, slack: Tensor) -> bool:
    dropped = shares.abs() <= slack
    kept = shares[~dropped]
    if not kept.numel() or not bool(dropped.any()):
        return False
    return bool(((kept - kept.mean()).abs() <= 2.0 * float(slack.max())).all())


def _differ(shares: Tensor, slack: Tensor) -> bool:
    """Whether channels of a row, visible only in cores, were dropped independently."""
    if shares.dim() != len("BHLD"):
        return False
    return bool(((shares - shares[..., :1]).abs() > 2.0 * slack).any())
