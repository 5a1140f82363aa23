"""Why a candidate fails, as a run finds it out: chance, a named mistake, a step of an export."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar

from ..base.mistake import CHOSEN_UNDECLARED, parts_of
from ..base.patience import fair_clock
from ..base.results import WRONG_ANSWERS, Violation
from ..calls.calling import before_each_call
from ..clauses.registry import Clause
from ..clauses.subject import Subject
from ..declare.candidate import Candidate
from ..diagnosis import Diagnostician
from ..diagnosis.answer_facts import lost_search_entry, which_go_wrong
from ..diagnosis.chance import Chance
from ..diagnosis.earlier_calls import changed_inputs_entry, strides_entry
from ..diagnosis.entries import unnamed_entry
from ..diagnosis.exports.blame import Blamer
from ..diagnosis.mistaken_answer import DiagnosedSubject, limited_by
from ..diagnosis.mistakes import NamedMistake
from ..diagnosis.ranks import diagnostician
from ..diagnosis.refused_sizes import Asks, RefusedCall, RefusedSizes
from ..diagnosis.statement_search import cannot_be_made
from ..errors import fault_of, own_fault
from ..problems.problem import Problem
from .clause_run import ClauseRun
from .few_calls import FewCalls
from .shrinking.smallest import Smallest

# A cause as the report has it.
Entry = dict[str, Any]
Told = TypeVar("Told")
# Appended to names of tensors read with permuted axes: their sizes need not match.
_LAID_OUT: Final = " laid out as "
# Whether a subject fails the problem in question.
Fails = Callable[[Subject], bool]
# Seconds of a name's search: each of its thousands of calls may be slow.
LONGEST_SEARCH: Final = 300.0
# The limit for slow calls, and the fewest calls allowed, however slow.
SLOW_SEARCH: Final = 15.0
FEWEST_CALLS: Final = 12
# The limit for answers at the few sizes at which a call does not raise.
SHORT_SEARCH: Final = 5.0


class Causes:
    """Finds the causes of one candidate's failures; causes common to all are found once.

    If a search ends with an error of the harness the failure stays, and searching stops.
    """

    def __init__(self, candidate: Candidate, mistakes: Sequence[NamedMistake]) -> None:
        self._candidate, self._mistakes = candidate, mistakes
        self.call_seconds = 0.0  # of a call, where that is known
        self.forget()

    def forget(self) -> None:
        """Drop the causes found so far."""
        self._spent = 0.0  # seconds of all searches for names
        self._few: dict[Subject, FewCalls] = {}
        self._answering: dict[tuple[Subject, object], Subject] = {}
        self.diagnosticians: dict[Subject, Diagnostician] = {}
        self._chance, self._sizes = Chance(), RefusedSizes()
        self._lost: dict[Subject, Entry] = {}
        self._blamers: dict[Subject, Blamer] = {}

    def are_unmeant(self, name: str, meant: Collection[str] = ()) -> bool:
        """Tell whether a name stands for unintended mistakes: the catalogue's, and similar ones.

        Names of changes in ``meant`` fields of the semantics are intended.
        """
        chosen = {
            mistake.name
            for mistake in self._mistakes
            if mistake.changes and mistake.changes.keys() <= {*meant}
        }
        known = {mistake.name for mistake in self._mistakes} - CHOSEN_UNDECLARED - chosen
        for one in self.diagnosticians.values():
            known |= one.misplacing
        return {*parts_of(name)} <= known

    def chance(self, problem: Problem, subject: Subject, fails: Fails, kind: str) -> Entry | None:
        """Return the cause if the candidate's answers are random, else None.

        Laws comparing two random answers would blame any difference between the two calls.
        """
        numbers = kind in WRONG_ANSWERS
        return self._searched(
            subject, lambda: self._chance.entry(subject, problem, fails, numbers=numbers)
        )

    def changed_inputs(self, subject: Subject, clause: Clause, fails: Fails) -> Entry | None:
        """Return the cause if the candidate changes its arguments, else None."""
        return self._searched(subject, lambda: changed_inputs_entry(subject, clause.id, fails))

    def refused_sizes(
        self,
        subject: Subject,
        problem: Problem,
        violation: Violation,
        asks: Asks,
        clause_run: ClauseRun,
        mistaken: list[Entry],
    ) -> list[Entry]:
        """Return the causes where sizes decide whether a call raises; else the known ``mistaken``.

        A known explanation of wrong answers at further sizes takes precedence.
        """

        def search() -> RefusedCall | None:
            return self._sizes.call(subject, problem, violation, asks)

        told = self._searched(subject, search)
        if told is None:
            return mistaken
        if told.wrong and not mistaken:
            # The answers are searched once, however many clauses ask refused sizes.
            equal = told.condition.equal if told.condition else ()
            answering = self._answering.setdefault((subject, equal), told.answering(subject))
            mistaken = self.explain_exception(answering, problem, clause_run, SHORT_SEARCH)
        return told.combine_with(mistaken)

    def unrepeatable(self, subject: Subject, fails: Fails, kind: str) -> Entry | None:
        """Return the cause of a failure that does not recur every time, else None."""
        if kind not in WRONG_ANSWERS or subject in self._lost:
            return None
        return self._searched(subject, lambda: self._chance.unrepeatable(subject, fails))

    def strides(self, subject: Subject, fails: Fails, kind: str) -> Entry | None:
        """The cause of a failure that does not occur with contiguous inputs; None for others."""
        if kind not in WRONG_ANSWERS or subject in self._lost:
            return None
        return self._searched(subject, lambda: strides_entry(subject, fails))

    def _searched(self, subject: Subject, search: Callable[[], Told | None]) -> Told | None:
        try:
            return search()
        except Exception as error:  # noqa: BLE001 (a verdict stands though its cause stays unknown)
            self._lost[subject] = lost_search_entry(fault_of(error))
            return None

    def few_calls_of(self, subject: Subject) -> FewCalls:
        """What explains failures of a subject whose calls are slow."""
        if subject not in self._few:
            self._few[subject] = FewCalls(subject, self._mistakes)
        return self._few[subject]

    def named(
        self, subject: Subject, clause: Clause, problem: Problem, clause_run: ClauseRun
    ) -> list[Entry]:
        """Return the mistakes that explain a failure; searched once for a candidate and dtype."""
        return self._named(subject, clause_run, lambda known: known.explain(clause, problem))

    def explain_exception(
        self,
        subject: Subject,
        problem: Problem,
        clause_run: ClauseRun,
        longest: float = LONGEST_SEARCH,
    ) -> list[Entry]:
        """Explain wrong answers of other calls by mistakes impossible in a call that raises."""

        def consequences(known: Diagnostician) -> list[Entry]:
            known.ways.small_errors = (
                longest >= LONGEST_SEARCH
            )  # no call raises because of a rounding
            entries, inputs = known.explain(), known.subject.inputs(problem)
            names = {
                one.entry["name"]
                for one in known.explanations
                if one.made
                and (
                    _LAID_OUT in one.entry["name"]
                    or cannot_be_made(known.subject, one.made, inputs)
                )
            }
            return [entry for entry in entries if entry["name"] in names]

        return self._named(subject, clause_run, consequences, longest)

    def _named(
        self,
        subject: Subject,
        clause_run: ClauseRun,
        explain: Callable[[Diagnostician], list[Entry]],
        longest: float = LONGEST_SEARCH,
    ) -> list[Entry]:
        if subject in self._lost:
            return [self._lost[subject]]
        if subject not in self.diagnosticians:
            self.diagnosticians[subject] = diagnostician(subject, self._mistakes)
        slow = subject.slow_calls
        longest = min(longest, clause_run.search - self._spent, SLOW_SEARCH if slow else longest)
        began, calls = fair_clock(), 0
        most = max(FEWEST_CALLS, longest / self.call_seconds) if slow else math.inf

        def count_call() -> None:
            nonlocal calls
            calls += 1
            if calls > most:
                raise _GivenUp
            check_time()

        def check_time() -> None:
            if clause_run.is_over or fair_clock() >= began + longest:
                raise _GivenUp

        known = self.diagnosticians[subject]
        try:
            with before_each_call(count_call), limited_by(check_time):
                return explain(known)
        except _GivenUp:
            self._lost[subject] = self._so_far(known, calls - 1)
            return [self._lost[subject]]
        except Exception as error:  # noqa: BLE001 (a verdict stands though its cause stays unknown)
            return [lost_search_entry(fault_of(error))]
        finally:
            self._spent += fair_clock() - began

    def _so_far(self, known: Diagnostician, calls: int) -> Entry:
        """Describe the known facts on a mistake when the search for its name ran out of time."""
        text = f"no name was found in the share of the search, {calls} calls"
        answered = known.subject.answered if isinstance(known.subject, DiagnosedSubject) else {}
        every = [*filter(None, answered.values())]
        if known.subject in self._few:
            every += self._few[known.subject].observed()
        wrong = [one for one in every if one.margin > 1.0]
        facts: Entry = {}
        if wrong:
            text += f": {which_go_wrong(facts, every, wrong, ())}"
        return unnamed_entry(text, facts)

    def follows(self, subject: Subject, clause: Clause, problem: Problem, kind: str) -> str:
        """The name of another failure's mistake that makes a clause fail as well, or ""."""
        known = self.diagnosticians.get(subject)
        if known is None:
            return ""
        return self._searched(subject, lambda: known.explained_by(clause, problem, kind)) or ""

    def blame(
        self,
        subject: Subject,
        clause: Clause,
        smallest: Smallest,
        on_example: Callable[[dict[str, Any]], None],
    ) -> dict[str, Any] | None:
        """Return the export step to blame for a graph's failure; None without a graph."""
        if self._candidate.graph is None:
            return None
        if subject not in self._blamers:
            self._blamers[subject] = Blamer(subject, self._candidate.graph)

        def alive() -> None:  # each step has a time limit of its own
            on_example(smallest.problem.as_json())

        try:
            return self._blamers[subject].blame(
                clause.id, smallest.violation, smallest.recording, alive
            )
        except Exception as error:  # noqa: BLE001 (a verdict stands though nobody can be blamed)
            return {
                "step": "",
                "stage": "",
                "text": f"nobody can be blamed: {own_fault(error)}",
            }


class _GivenUp(Exception):  # noqa: N818 (no error: the search for a name takes too long)
    """The time for finding a name is over."""
