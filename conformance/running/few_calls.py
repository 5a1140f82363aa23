"""The cause of a failure of a candidate with slow calls, found from the few calls made.

The answers known from clauses are compared with every mistake of the catalogue, without calls.
Further calls distinguish the mistakes that explain all answers, and check the last one elsewhere. A
mistake that is found answers in the candidate's place while the failing problem is reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ..base.results import Violation
from ..calls.calling import CandidateFailure
from ..clauses.registry import Clause
from ..clauses.subject import Subject
from ..diagnosis.agreement import BatteryAnswer, StandIn, fails_alike
from ..diagnosis.battery import answer_to, battery
from ..diagnosis.mistaken_answer import Combination, DiagnosedSubject, MistakenAnswer, act
from ..diagnosis.mistakes import NamedMistake, NotExpressible
from ..diagnosis.search import MistakeSearch
from ..diagnosis.statement_search import (
    Explanation,
    answer_alike,
    changes_answer,
    explains,
    explanations_of,
)
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from .shrinking.smallest import smallest_failure

# Calls that distinguish mistakes, and further ones a mistake must explain to be believed.
MOST_TELLING: Final = 4
CONFIRMING: Final = 2


class FewCalls:
    """Explanations of one subject's failures; earlier explanations are tried first."""

    def __init__(self, subject: Subject, mistakes: Sequence[NamedMistake]) -> None:
        self._subject = subject
        self._diagnosed = DiagnosedSubject(subject)
        self._mistakes = mistakes
        self._found: list[Explanation] = []

    def observed(self) -> list[BatteryAnswer]:
        """Return the answers to clauses' calls so far."""
        kept = self._subject.known
        return [
            BatteryAnswer(
                subject=self._diagnosed,
                inputs=(inputs := self._subject.inputs(problem)),
                output=kept[inputs].double(),
                problem=problem,
            )
            for problem in self._subject.known_problems()
        ]

    def explain(self, clause: Clause, problem: Problem) -> list[Explanation]:
        """The mistakes of the catalogue that explain all answers and make a clause fail."""
        observed = self.observed()
        known = [one for one in self._found if self._fits(one, clause, problem, observed)]
        if known:
            return known
        search = MistakeSearch(self._diagnosed, observed, self._mistakes)
        if not search.gross:  # what rounding may make says little of its cause
            return []
        explaining = explanations_of(search.singles())
        left = [one for one in explaining if self._fits(one, clause, problem, observed)]
        left = self._left(left, MOST_TELLING, self._tells_apart)
        left = self._left(left, CONFIRMING, self._is_made)
        self._found += left
        return left

    def _fits(
        self,
        explanation: Explanation,
        clause: Clause,
        problem: Problem,
        observed: Sequence[BatteryAnswer],
    ) -> bool:
        made = explanation.made
        alike = fails_alike(self._diagnosed, made, clause, problem) is not False
        return alike and all(explains(self._diagnosed, made, one) for one in observed)

    def _left(
        self,
        explanations: list[Explanation],
        most: int,
        tells: Callable[[Sequence[Explanation], Inputs], bool],
    ) -> list[Explanation]:
        """Return the explanations that survive further calls distinguishing them."""
        left, asked = explanations, 0
        for inputs in battery(self._diagnosed) if left else ():
            if not left or asked == most:
                break
            if tells(left, inputs):
                asked += 1
                answer = answer_to(self._diagnosed, inputs)
                if answer is not None:
                    left = [one for one in left if explains(self._diagnosed, one.made, answer)]
        return left

    def _tells_apart(self, left: Sequence[Explanation], inputs: Inputs) -> bool:
        first, *others = (one.made for one in left)
        return any(not answer_alike(self._diagnosed, first, one, inputs) for one in others)

    def _is_made(self, left: Sequence[Explanation], inputs: Inputs) -> bool:
        return any(changes_answer(self._diagnosed, one.made, inputs) for one in left)

    def smaller(
        self, made: Combination, clause: Clause, problem: Problem, violation: Violation, tries: int
    ) -> Problem:
        """Return the smallest problem on which the mistakes fail the clause; else the problem."""
        stand_in = StandIn(self._diagnosed, lambda inputs: self._acted(made, inputs))
        try:
            return smallest_failure(clause, stand_in, problem, violation, tries=tries).problem
        except LookupError:  # what is acted out has no gradients
            return problem

    def _acted(self, made: Combination, inputs: Inputs) -> MistakenAnswer:
        """Return the answer under some mistakes; CandidateFailure where it cannot be computed."""
        own = self._diagnosed
        try:
            return act(own.oracle, own.declaration.semantics, made, inputs)
        except (NotExpressible, ValueError, RuntimeError) as error:
            message = f"it cannot be acted out: {error}"
            raise CandidateFailure(Violation(kind="raised", message=message)) from error
