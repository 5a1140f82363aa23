"""Diagnoses one candidate in one dtype: its answers, the mistakes behind them, its failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Final

from ..base.mistake import UNKNOWN
from ..base.record import LineEntry
from ..base.results import WRONG_ANSWERS
from ..calls.differentiating import LOST
from ..clauses.registry import Clause
from ..clauses.subject import Subject
from ..problems.problem import Problem
from . import answer_facts
from . import earlier_calls as earlier
from .agreement import BatteryAnswer, fails_alike
from .backward import BackwardDiagnostician, loses_history, passes_anew
from .battery import Observation, answer_to, plainest_wrong
from .cache_writes import explain_writes
from .conditions import calls_for_weights, limit_to_calls_for_weights
from .dissection import returned_weights
from .dissection.returned_log_sum_exps import LOG_SUM_EXPS, OF_LOG_SUM_EXPS
from .entries import unnamed_entry
from .lines import LineFinder, telling
from .mistaken_answer import Combination, DiagnosedSubject, acted_answers
from .mistakes import NamedMistake, named_mistakes
from .pairs import has_no_nan
from .picture import Illustrator
from .precision_diagnosis import loses_alike
from .scale_diagnosis import add_numbers
from .statement_search import (
    OTHER_VALUES,
    Explanation,
    changes_gradients,
    explains,
    some_wrong,
    weights_follow,
)
from .ways import Ways

# Failing problems whose neighbours are searched for an explanation.
MOST_SEARCHES: Final = 2


class Diagnostician:
    """Explains the failures of one candidate in one dtype; the search is made once.

    ``observed`` answers replace those to the whole battery.
    """

    def __init__(
        self,
        subject: Subject,
        mistakes: Sequence[NamedMistake] | None = None,
        *,
        observed: Sequence[BatteryAnswer] | None = None,
    ) -> None:
        if observed is None and type(subject) is Subject:
            subject = DiagnosedSubject(subject)
        self.subject = subject
        self.mistakes = named_mistakes() if mistakes is None else tuple(mistakes)
        self._observation = Observation(subject, observed)
        self._said = ""
        self._searches = self._orders = 0
        self._state: dict[str, Any] = {}
        self._illustrator = Illustrator(subject)
        self._finder = LineFinder(subject)
        self._lines: dict[str, LineEntry | None] = {}
        self._acted = acted_answers(subject)
        self.ways = Ways(subject, self.mistakes, self._acted, self._observation)
        self._searched_all = False

    def explain(
        self, clause: Clause | None = None, problem: Problem | None = None
    ) -> list[dict[str, Any]]:
        """Return entries that explain a clause's failure on a problem, or all battery answers.

        The entry is ``unknown-mistake`` if something is wrong without a name. The first entry has a
        ``picture`` if wrong weights can be read, unless its name has a picture of a problem as
        small. Entries have the ``line`` that makes the mistake, if known.
        """
        candidate = self.subject.candidate
        if not candidate.golden_known or candidate.kind == "positions":
            return []
        if clause is not None and problem is not None and not clause.explained:
            entries = self._explain_law(clause, problem)
        else:
            entries = self._explained(clause, problem)
        of_gradients = clause is not None and clause.family == "gradients"
        if not entries or (of_gradients and not self.anything_wrong):
            return entries  # where the answers are right, so are the weights
        entries = answer_facts.add_device_alone(self.subject, entries, problem)
        entries = add_numbers(self.subject, entries, problem)
        if clause is not None:
            entries = answer_facts.add_raising_calls(self.subject, entries)
        told = [self._add_parts(one, clause, problem) for one in self._located(entries, problem)]
        return self._illustrator.illustrated(told, problem)

    def _add_parts(
        self, entry: dict[str, Any], clause: Clause | None, problem: Problem | None
    ) -> dict[str, Any]:
        named = (one for one in self.explanations if one.entry["name"] == entry["name"])
        known = next(named, Explanation(entry=entry)).made
        made = tuple(part for one in known for part in one.parts or (one,))
        if len(made) < 2:  # noqa: PLR2004 (one mistake has no parts)
            return entry
        failing = self._failing_alone(made, clause, problem)
        parts = [{**self._part(one, made), "alone": one in failing} for one in made]
        return {**entry, "parts": parts}

    def _failing_alone(
        self, made: Combination, clause: Clause | None, problem: Problem | None
    ) -> Combination:
        """Return the mistakes that alone make a clause fail on a problem.

        If none surely does (rows without keys may return anything), return the mistakes that alone
        explain every answer to the clause's calls.
        """
        if clause is None or problem is None:
            return made
        sure = [one for one in made if fails_alike(self.subject, (one,), clause, problem)]
        answers = [] if sure else earlier.answers_to_clause(self.subject, clause, problem)[0]
        wrong = some_wrong(answers)
        alone = (one for one in made if wrong and self.ways.explain_all((one,), answers))
        return tuple(sure or alone)

    def _part(self, mistake: NamedMistake, made: Combination) -> dict[str, Any]:
        if mistake.name not in self._lines:
            wrong = telling(None, self.observed, named=True)
            alone = [one for one in wrong if explains(self.subject, (mistake,), one)]
            others = tuple(one for one in made if one is not mistake)
            both = [one for one in wrong if not explains(self.subject, others, one)]
            self._lines[mistake.name] = (
                self._finder.line([(mistake,)], alone)
                if alone
                else self._finder.line([made], both, besides=others)
            )
        line = self._lines[mistake.name]
        entry = {"name": mistake.name, "text": mistake.sentence, "fix": mistake.fix}
        return entry if line is None else {**entry, "line": line}

    def _explained(self, clause: Clause | None, problem: Problem | None) -> list[dict[str, Any]]:
        shown = None if problem is None else answer_to(self.subject, self.subject.inputs(problem))
        # A wrong answer explains wrong gradients, even if it is the only one.
        if clause is not None and problem is not None and clause.family == "gradients":
            right = shown is None or shown.margin <= 1.0
            if right or self.anything_wrong:
                return self._explain_gradients(clause, problem)
        self.ways.base = self.ways.base or problem
        entries = self._entries(self.explanations, clause, problem)
        if not entries and self.ways.first_explanations and not self._searched_all:
            self._searched_all = True  # there is another mistake
            self.explanations.extend(self.ways.all_explanations)
            entries = self._entries(self.explanations, clause, problem)
        if not entries and clause is not None and not self.anything_wrong:
            asked = problem is not None and returned_weights.asks_for_weights(
                self.subject, clause, problem
            )
            entries = self._returned_weights if asked else []
            if clause.id in OF_LOG_SUM_EXPS:
                entries = self._returned_log_sum_exps
        searched = problem is None or problem == self.ways.searched
        if not entries and problem is not None and not searched and self._searches_left(shown):
            near = self.ways.near_problem(problem)
            self.explanations.extend(near)
            entries = self._entries(near, clause, problem)
        if not entries and not self.explanations:  # calls on which two options meet tell more
            self.explanations.extend(self.ways.combined_explanations)
            entries = self._entries(self.explanations, clause, problem)
        if entries:
            return answer_facts.shared_confidence(entries)
        if clause is None and not self.anything_wrong:
            return []
        written = explain_writes(self.subject, problem)
        return (
            written
            or self._explain_by_earlier_calls(problem, shown)
            or [self._unknown(clause, shown)]
        )

    def _explain_gradients(self, clause: Clause, problem: Problem) -> list[dict[str, Any]]:
        if not self.anything_wrong:
            wrong_weights = (
                self._returned_weights if clause.id == returned_weights.OF_WEIGHTS else []
            )
            explained = wrong_weights or self.backward.explain(clause.id, problem)
            return self._second_call_entries if explained == [earlier.SECOND_CALL] else explained
        # The answers are wrong, and wrong gradients are a consequence.
        if not self.explanations:
            self.explanations.extend(self.ways.combined_explanations)
        if self.explanations:
            asked = partial(changes_gradients, self.subject, clause, problem)
            made = [one.entry for one in self.explanations if not one.made or asked(one.made)]
            return answer_facts.shared_confidence(made)
        return self._explain_by_earlier_calls(None, None) or [self._unknown(clause, None)]

    def _explain_by_earlier_calls(
        self, problem: Problem | None, shown: BatteryAnswer | None
    ) -> list[dict[str, Any]]:
        if self._state_entry is not None:
            self._state = self._state_entry
            return [self._state]
        kept = problem is not None and not self.anything_wrong
        if kept and problem is not None and earlier.keeps_state(self.subject, problem):
            return self._second_call_entries
        order = self._order_entry(problem, shown)
        return [order] if order else []

    def _order_entry(self, problem: Problem | None, shown: BatteryAnswer | None) -> dict[str, Any]:
        own = problem if shown is not None and shown.margin > 1.0 else None
        if self._state and own is not None:  # the call that this answer is wrong after
            return earlier.order_entry(self.subject, own) or self._state
        if own is None and not self._state:
            plainest = plainest_wrong(self.observed)
            own = None if plainest is None else plainest.problem
        if own is not None and self._orders < MOST_SEARCHES:
            self._orders += 1
            self._state = earlier.order_entry(self.subject, own) or {}
        return self._state

    def _located(
        self, entries: list[dict[str, Any]], problem: Problem | None
    ) -> list[dict[str, Any]]:
        names = [str(entry["name"]) for entry in entries]
        key = " | ".join(names)
        if key not in self._lines:
            made = [
                one.made for one in self.explanations if one.made and one.entry["name"] in names
            ]
            shown = answer_to(self.subject, self.subject.inputs(problem)) if problem else None
            wrong = telling(shown, self.observed, bool(made))
            kept = not made and key.startswith("state: ")
            self._lines[key] = (
                self._finder.line_of_kept(wrong) if kept else self._finder.line(made, wrong)
            )
        line = self._lines[key]
        return entries if line is None else [{**entry, "line": line} for entry in entries]

    def _entries(
        self, explanations: Sequence[Explanation], clause: Clause | None, problem: Problem | None
    ) -> list[dict[str, Any]]:
        return [one.entry for one in explanations if self._fits(one, clause, problem)]

    def _searches_left(self, shown: BatteryAnswer | None) -> bool:
        if shown is None or shown.margin <= 1.0:
            return False
        self._searches += 1
        return self._searches <= MOST_SEARCHES

    def _unknown(self, clause: Clause | None, shown: BatteryAnswer | None) -> dict[str, Any]:
        """Return the entry without a name; common facts are reported at one clause alone."""
        further, said = self.ways.near if self.anything_wrong else (), self._said
        if self.explanations:  # the known explanations cover the facts of the other wrong answers
            said = f"{self.explanations[0].entry['name']} explains other wrong answers, not this"
        entry = answer_facts.unknown_entry(
            self.subject, self.observed, shown, said=said, further=further
        )
        if clause is not None and entry["common"] and not said:
            self._said = f"{clause.id} says what the wrong answers have in common"
        return entry

    @cached_property
    def _state_entry(self) -> dict[str, Any] | None:
        return earlier.state_entry(self.subject)

    @cached_property
    def _second_call_entries(self) -> list[dict[str, Any]]:
        """The entries if first calls are answered rightly and second calls are not."""
        second = Diagnostician(earlier.second_calls(self.subject), self.mistakes)
        return earlier.limit_to_second_calls(second.explain())

    @cached_property
    def backward(self) -> BackwardDiagnostician:
        """Explains gradients where the answers are right."""
        return BackwardDiagnostician(self.subject)

    @cached_property
    def _diagnostician_for_weights(self) -> Diagnostician:
        return Diagnostician(calls_for_weights(self.subject), self.mistakes)

    @cached_property
    def _returned_weights(self) -> list[dict[str, Any]]:
        """The entries of what is returned in place of the weights; empty if they are right."""
        if self._diagnostician_for_weights.anything_wrong:
            told, wrong = (
                self._diagnostician_for_weights.explain(),
                "wrong where the weights are returned",
            )
            named = {one.entry["name"] for one in self._diagnostician_for_weights.explanations}
            told = [entry for entry in told if entry["name"] in named]  # nothing of earlier calls
            return limit_to_calls_for_weights(told) or [unnamed_entry(f"answers are {wrong}")]
        asked = self.subject, self.mistakes, self._acted
        failing = self.ways.base
        return returned_weights.explain_returned(*asked, seed=OTHER_VALUES, failing=failing)

    @cached_property
    def _returned_log_sum_exps(self) -> list[dict[str, Any]]:
        """The entries of what is returned in place of log-sum-exps; empty if they are right."""
        return returned_weights.explain_returned(
            self.subject,
            self.mistakes,
            self._acted,
            seed=OTHER_VALUES,
            failing=self.ways.base,
            beside=LOG_SUM_EXPS,
        )

    @property
    def observed(self) -> list[BatteryAnswer]:
        """The answers to the battery, as far as needed, or the answers to explain."""
        enough = self.ways.first_explanations and not self._searched_all
        return self._observation.first if enough else self._observation.whole

    @cached_property
    def anything_wrong(self) -> bool:
        """Whether an answer to the battery is wrong."""
        seen = self._observation
        long = seen.is_long and some_wrong(seen.first)
        return long or some_wrong(seen.whole) or some_wrong(self.ways.combined)

    @cached_property
    def explanations(self) -> list[Explanation]:
        """The explanations of battery answers and of answers that were not searched.

        Explanations of failing problems are added later.
        """
        return list(self.ways.first_explanations or self.ways.all_explanations)

    @property
    def misplacing(self) -> frozenset[str]:
        """The names of found mistakes that put a tensor or part in another's place."""
        found: list[Explanation] = vars(self).get("explanations", [])
        made = (mistake for one in found for mistake in one.made)
        return frozenset(mistake.name for mistake in made if mistake.misplaces)

    def _fits(
        self, explanation: Explanation, clause: Clause | None, problem: Problem | None
    ) -> bool:
        """Whether an explanation holds for the failing problem and makes the clause fail."""
        if clause is None or problem is None:
            return True
        answer = answer_to(self.subject, self.subject.inputs(problem))
        if not explanation.made:  # a wrong scale breaks no law that holds at every scale
            fits = clause.needs_golden or explanation.entry["name"] != "scale-off"
            return fits and (answer is None or has_no_nan(answer))
        return any(
            fails_alike(self.subject, made, clause, problem) is not False
            or self._makes_each_answer(made, clause, problem)
            for made in explanation.ways
            if answer is None or explains(self.subject, made, answer)
        )

    def explained_by(self, clause: Clause, problem: Problem, kind: str = "value") -> str:
        """Return the name of another failure's mistake that makes this clause fail too, or ""."""
        kept, asked = str(self._state.get("name", "")), (self.subject, clause, problem)
        if kind in WRONG_ANSWERS:  # no wrong answer explains a violation without one
            names = (self._name_here(one, *asked[1:]) for one in self._breaking(clause, problem))
            kept_here = kept if earlier.makes_law_fail(*asked) else ""
            if name := next(names, "") or kept_here:
                return str(name)
            ways = (
                lambda: self._returned_weights,
                lambda: self._diagnostician_for_weights.explanations,
            )
            if name := weights_follow(*asked, *ways):
                return name
            if not self.explanations and earlier.compares_wrong_answers(*asked):
                return UNKNOWN
        elif kind == LOST and (name := loses_history(self.explanations, *asked)):
            return name
        return kept if kept and passes_anew(*asked) else ""

    def _name_here(self, one: Explanation, clause: Clause, problem: Problem) -> str:
        """Return the only mistake that alone makes a clause fail, else the name of all."""
        alone = self._failing_alone(one.made, clause, problem)
        return str(alone[0].name if len(alone) == 1 else one.entry["name"])

    def _explain_law(self, clause: Clause, problem: Problem) -> list[dict[str, Any]]:
        """Return the entries behind a failed clause that only compares answers.

        Either a known explanation breaks the clause, or earlier calls do.
        """
        self.ways.base = self.ways.base or problem
        breaking = self._breaking(clause, problem) if self.anything_wrong else ()
        entries = answer_facts.shared_confidence([one.entry for one in breaking])
        entries = entries or explain_writes(self.subject, problem)
        if entries or not earlier.makes_law_fail(self.subject, clause, problem):
            return entries
        unseen = not self._state and not self.anything_wrong
        if unseen and earlier.keeps_state(self.subject, problem):
            return self._second_call_entries
        # The first entry names all later failures, so the deciding call is looked for.
        kept = self._state or self._state_entry or earlier.order_entry(self.subject, problem)
        self._state = kept or earlier.EARLIER_CALLS
        return [self._state]

    def _breaking(self, clause: Clause, problem: Problem) -> Iterator[Explanation]:
        for one in self.explanations:
            if clause.id == answer_facts.ACROSS_DEVICES:
                yield one
            elif one.made:
                alike = any(fails_alike(self.subject, m, clause, problem) for m in one.ways)
                if alike or self._makes_each_answer(one.made, clause, problem):
                    yield one
            elif self._loses_each_answer(one.entry, clause, problem):
                yield one

    def _makes_each_answer(self, made: Combination, clause: Clause, problem: Problem) -> bool:
        """Whether mistakes explain each answer to a clause's calls, although an answer is wrong.

        Acted out exactly, they keep a law that holds up to the bound of right answers. A candidate
        rounds, and its mistaken operands may have larger errors than this bound allows.
        """
        answers, fails = earlier.answers_to_clause(self.subject, clause, problem)
        return fails and some_wrong(answers) and self.ways.explain_all(made, answers)

    def _loses_each_answer(self, entry: dict[str, Any], clause: Clause, problem: Problem) -> bool:
        answers, fails = earlier.answers_to_clause(self.subject, clause, problem)
        pairs = [(one.inputs, one.output) for one in answers]
        return fails and loses_alike(self.subject, entry, pairs)
