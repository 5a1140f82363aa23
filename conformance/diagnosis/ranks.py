"""Names mistakes of candidates that span ranks, with the ordinary diagnosis as fallback.

The candidate is called on a few problems: as usual, on other numbers of ranks, backward, with an
empty part, with a late rank and with a lost rank. A mistake is named if it gives every rank's
answer to all problems of the first kind with a wrong answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from torch import Tensor

from ..base.results import Violation
from ..calls.calling import CandidateFailure, arguments, build_forward, guarded
from ..calls.ranks import Calls, Spanning
from ..clauses.ranks import ABSENT, COUNTS, LATE
from ..clauses.registry import Clause
from ..clauses.subject import Subject
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from .agreement import BatteryAnswer, fails_so
from .answer_facts import shared_confidence
from .backward import explain_gradients
from .battery import BatteryEntry, answer_from, fitted_problem
from .diagnostician import Diagnostician
from .entries import named_entry
from .mistaken_answer import MistakenAnswer
from .mistakes import IMPOSSIBLE, NamedMistake, NotExpressible
from .observed_gradients import ObservedGradients, observe_gradients
from .rank_mistakes import MISTAKES
from .rank_parts import IS_WRONG, RAISES, Parts, RankMistake

# Query heads and key/value heads of the battery, which up to four ranks divide evenly; widths.
_HEADS: Final = (24, 12)
_WIDTHS: Final = (6, 4, 11, 13, 9, 10)
# The factor of queries that exposes an added mask, in place of a filled one.
_LARGE: Final = 3e3


@dataclass(frozen=True, kw_only=True, eq=False)
class RankAnswers:
    """Each rank's answer to one call: the golden answer with the rank's part in place.

    None for a rank that did not answer; ``raised`` are ranks that raised.
    """

    parts: Parts
    answers: list[BatteryAnswer | None]
    raised: frozenset[int]

    @cached_property
    def wrong(self) -> list[int]:
        """The ranks that answer wrongly."""
        return [rank for rank, each in enumerate(self.answers) if each and each.margin > 1.0]

    @property
    def is_wrong(self) -> bool:
        """Whether a rank answers wrongly, or raises though no rank is lost."""
        return bool(self.wrong) or (bool(self.raised) and not self.parts.missing)

    def tells(self, mistake: RankMistake) -> bool:
        """Whether a mistake can be acted out on this call."""
        return not mistake.even or self.parts.divides_evenly

    def explained(self, mistake: RankMistake) -> bool:
        """Whether a mistake gives every rank's answer."""
        parts = self.parts
        effect = "" if mistake.effect is None else mistake.effect(parts)
        if effect == IS_WRONG:
            return self.is_wrong
        if not parts.missing and (effect == RAISES) is not bool(self.raised):
            return False
        if self.raised and not parts.missing:
            return True
        return all(
            each.agrees(acted_out(mistake, parts, rank))
            for rank, each in enumerate(self.answers)
            if each is not None
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class RankGradients:
    """The gradients of one call on each rank."""

    parts: Parts
    observed: list[ObservedGradients]

    @property
    def is_wrong(self) -> bool:
        """Whether a rank has a wrong gradient."""
        return any(each.wrong for each in self.observed)


def acted_out(mistake: RankMistake, parts: Parts, rank: int) -> MistakenAnswer:
    """Return a rank's answer with a mistake; NotExpressible if it cannot be made."""
    subject = parts.subject
    try:
        output = mistake.acted(parts, rank)
    except IMPOSSIBLE as error:
        raise NotExpressible from error
    return MistakenAnswer(
        given=parts.inputs,
        inputs=parts.inputs,
        semantics=parts.call.semantics,
        core=parts.attention,
        weights=parts.attention.weights,
        output=output,
        stepwise=True,
        oracle=subject.oracle,
    )


class RankDiagnostician(Diagnostician):
    """Explains the failures of a candidate on several ranks, in one dtype."""

    def explain(
        self, clause: Clause | None = None, problem: Problem | None = None
    ) -> list[dict[str, Any]]:
        """Return entries of mistakes of ranks, else of the ordinary diagnosis."""
        named: dict[str, RankMistake] = {}
        for one in self.rank_mistakes:
            if self._names(one, clause, problem):
                named.setdefault(one.name, one)
        entries = [
            named_entry(one.name, f"{one.sentence}{self._where}", one.fix) for one in named.values()
        ]
        return shared_confidence(entries) if entries else super().explain(clause, problem)

    def explained_by(self, clause: Clause, problem: Problem, kind: str = "value") -> str:
        """Return the name of a mistake of ranks that makes a clause fail as well, or ""."""
        for one in self.rank_mistakes:
            if fails_so(self.subject, self._acting(one), clause, problem):
                return one.name
        return "" if self.rank_mistakes else super().explained_by(clause, problem, kind)

    @property
    def spanning(self) -> Spanning:
        """The function of the candidate, which is called on its ranks."""
        function: Any = self.subject.candidate.function
        spanning: Spanning = function
        return spanning

    @cached_property
    def _stage(self) -> Sequence[RankAnswers | RankGradients]:
        """All observations up to the first kind of problems with a wrong one."""
        if (
            not self.subject.candidate.golden_known
            or self.spanning.calls.ranks.places(
                "output", "tokens" if self.subject.candidate.kind == "layer" else "heads"
            ).summed
        ):
            return []
        every: list[RankAnswers | RankGradients] = []
        for stage in (
            *(self._usual, self._large, self._backward),
            *(self._empty, self._late, self._lost),
        ):
            every += stage()
            if any(each.is_wrong for each in every):
                return every
        return []

    @cached_property
    def rank_mistakes(self) -> list[RankMistake]:
        """The mistakes that explain all observations."""
        return [one for one in MISTAKES if self._stage and self._explains(one)]

    @property
    def _answers(self) -> list[RankAnswers]:
        return [each for each in self._stage if isinstance(each, RankAnswers)]

    @property
    def _is_backward(self) -> bool:
        return not any(each.is_wrong for each in self._answers)

    def _explains(self, mistake: RankMistake) -> bool:
        try:
            answers = [each for each in self._answers if each.tells(mistake)]
            if not self._is_backward:
                told = any(each.is_wrong for each in answers)
                return told and all(each.explained(mistake) for each in answers)
            return mistake.backward is not None and self._explains_gradients(mistake)
        except NotExpressible:
            return False

    def _explains_gradients(self, mistake: RankMistake) -> bool:
        every = [each for each in self._stage if isinstance(each, RankGradients)]
        ranks = {
            id(one): (each.parts, rank) for each in every for rank, one in enumerate(each.observed)
        }
        return explain_gradients(
            [one for each in every for one in each.observed],
            lambda one: mistake.gradients(*ranks[id(one)], one),
        )

    @cached_property
    def _where(self) -> str:
        count = self.spanning.calls.ranks.count
        wrong = {rank for each in self._answers if each.parts.count == count for rank in each.wrong}
        if not wrong or len(wrong) == count:
            return ""
        listed = " and ".join(map(str, sorted(wrong)))
        which = (
            f"rank {listed} of {count} answers"
            if len(wrong) == 1
            else (f"ranks {listed} of {count} answer")
        )
        return f" (only {which} wrongly)"

    def _names(self, mistake: RankMistake, clause: Clause | None, problem: Problem | None) -> bool:
        if clause is None or problem is None or clause.family == "ranks":
            return True
        if clause.family == "gradients" or self._is_backward:
            return clause.family == "gradients"
        observed, told = self._telling(mistake, problem)
        with contextlib.suppress(NotExpressible):
            if not observed.explained(mistake):
                return False
            if observed.is_wrong:
                return told is problem or clause.check(self.subject, told).violation is not None
            return fails_so(self.subject, self._acting(mistake), clause, told) is not False
        return False

    def _telling(self, mistake: RankMistake, problem: Problem) -> tuple[RankAnswers, Problem]:
        """Return the ranks' answers to a problem on which a mistake can be acted out.

        If parts must have equal length, return the nearest problem with equal parts.
        """
        observed = self._observed(self.subject.inputs(problem))
        if not observed.tells(mistake):
            ranks = dataclasses.replace(observed.parts.ranks, even=True)
            problem = problem.replace(geometry=ranks.fitted(problem.geometry), overrides=None)
            observed = self._observed(self.subject.inputs(problem))
        return observed, problem

    def _acting(self, mistake: RankMistake) -> Callable[[Inputs], MistakenAnswer]:
        def acting(inputs: Inputs) -> MistakenAnswer:
            parts = self._parts(inputs)
            effect = "" if mistake.effect is None else mistake.effect(parts)
            if effect == RAISES:
                raise CandidateFailure(Violation(kind="raised", message=mistake.sentence))
            if effect:  # nobody knows how the answer is wrong
                raise NotExpressible
            every = [acted_out(mistake, parts, rank) for rank in range(parts.count)]
            if parts.output_place.whole:
                return every[0]
            right, wholes = parts.subject.golden(inputs).output, [one.output for one in every]
            together = parts.put_together(parts.output_place, right, wholes)
            return dataclasses.replace(every[0], output=together)

        return acting

    def _parts(self, inputs: Inputs, calls: Calls | None = None) -> Parts:
        calls = calls or self.spanning.calls
        return Parts(
            self.subject,
            inputs,
            calls.ranks,
            missing=bool(calls.absent),
            late=next(iter(calls.late), None),
        )

    def _observed(self, inputs: Inputs, calls: Calls | None = None) -> RankAnswers:
        subject, calls = self.subject, calls or self.spanning.calls
        parts = self._parts(inputs, calls)
        function = self.spanning.under(calls)
        with contextlib.suppress(CandidateFailure):
            forward = build_forward(
                dataclasses.replace(subject.candidate, function=function), inputs
            )
            positional, keywords = arguments(inputs)
            guarded(forward, positional, keywords)
        replies = [each.reply for each in function.results]
        answers = [
            None
            if each is None or each.returned is None
            else self._answer(parts, rank, each.returned)
            for rank, each in enumerate(replies)
        ]
        raised = frozenset(
            rank for rank, each in enumerate(replies) if each and each.violation is not None
        )
        return RankAnswers(parts=parts, answers=answers, raised=raised)

    def _answer(self, parts: Parts, rank: int, part: Tensor) -> BatteryAnswer | None:
        place, whole = parts.output_place, self.subject.golden(parts.inputs).output.clone()
        if place.whole:
            return answer_from(self.subject, parts.inputs, part)
        if tuple(part.shape) != place.part_shape(whole.shape, rank, parts.count):
            return None
        place.put(whole, part.double(), rank, parts.count)
        return answer_from(self.subject, parts.inputs, whole)

    def _problems(self, count: int, *lengths: tuple[int, int]) -> Iterator[Problem]:
        can = self.subject.declaration.causal is not None
        for number, (queries, keys) in enumerate(lengths):
            for causal in (False, True) if can else (False,):
                sizes = (2, *_HEADS, queries, keys, *_WIDTHS)
                entry = BatteryEntry(sizes=sizes, causal=causal, seed=41 + 2 * number + count)
                problem = fitted_problem(self.subject, entry)
                if problem is not None:
                    yield problem

    def _usual(self) -> Iterator[RankAnswers]:
        """Yield lengths that the ranks divide or do not divide, and other numbers of ranks."""
        ranks = self.spanning.calls.ranks
        even, count = 4 * ranks.count, ranks.count
        lengths = ((even, even), (even, 2 * even), (even - 1, even - 1), (even - 1, even + 1))
        for problem in self._problems(count, *lengths):
            yield self._observed(self.subject.inputs(problem))
        for problem in self._problems(count, (24, 24)):
            for other in COUNTS:
                spread = ranks.for_count(other)
                if other != count and spread.fitted(problem.geometry) == problem.geometry:
                    yield self._observed(self.subject.inputs(problem), Calls(spread))

    def _large(self) -> Iterator[RankAnswers]:
        """Yield large queries, for which an added mask differs from a filled one."""
        even = 4 * self.spanning.calls.ranks.count
        if self.subject.candidate.kind == "core" and self.subject.dtype == "float32":
            for problem in self._problems(3, (even, even)):
                drawn = self.subject.inputs(problem)
                yield self._observed(drawn.with_tokens(query=drawn.query * _LARGE))

    def _backward(self) -> Iterator[RankGradients]:
        if "gradients" not in self.subject.declaration.features:
            return
        even = 4 * self.spanning.calls.ranks.count
        for problem in self._problems(5, (even, even), (even, 2 * even), (even - 1, even - 1)):
            observed = []
            for rank in range(self.spanning.calls.ranks.count):
                with self.spanning.taking(rank):
                    observed.append(observe_gradients(self.subject, problem))
            every = [each for each in observed if each is not None]
            if len(every) == len(observed):
                yield RankGradients(parts=self._parts(every[0].inputs), observed=every)

    def _empty(self) -> Iterator[RankAnswers]:
        ranks = self.spanning.calls.ranks
        if ranks.even or ranks.count == 1:
            return
        many, few = 4 * ranks.count, ranks.count - 1
        for problem in self._problems(7, (many, few), (few, many), (many, many), (few, few)):
            yield self._observed(self.subject.inputs(problem))

    def _late(self) -> Iterator[RankAnswers]:
        ranks = self.spanning.calls.ranks
        limited = dataclasses.replace(ranks, seconds=min(ranks.seconds, 3.0 * ABSENT))
        even = 4 * ranks.count
        for number, problem in enumerate(self._problems(11, (even, even), (even, 2 * even))):
            if ranks.count > 1:
                late = {number % ranks.count: LATE}
                yield self._observed(self.subject.inputs(problem), Calls(limited, late=late))

    def _lost(self) -> Iterator[RankAnswers]:
        ranks = dataclasses.replace(self.spanning.calls.ranks, seconds=ABSENT)
        even = 4 * ranks.count
        for problem in self._problems(13, (even, even)) if ranks.count > 1 else ():
            for word in ("die", "rest"):
                calls = Calls(ranks, absent={ranks.count - 1: word})
                yield self._observed(self.subject.inputs(problem), calls)


def diagnostician(
    subject: Subject, mistakes: Sequence[NamedMistake] | None = None
) -> Diagnostician:
    """Return the diagnostician of a candidate, whether it spans ranks or not."""
    spans = isinstance(subject.candidate.function, Spanning)
    return (RankDiagnostician if spans else Diagnostician)(subject, mistakes)
