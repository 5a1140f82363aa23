"""The ordered ways to explain wrong answers.

Right answers, chance and dependence on earlier calls are handled before. Then come mistakes of the
catalogue, losses of precision, and mistakes made in every call: limited catalogue mistakes, edited
stages, read statements. Pairs, conditions, and statements of many answers follow. Answers that no
way explains get facts alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain

from ..clauses.subject import Subject
from ..oracle.comparison import GROSS
from ..problems.problem import Problem
from . import answer_facts
from .agreement import BatteryAnswer
from .battery import Observation, answers_near, answers_to_pairs, plain_problem, plainest_wrong
from .item_edits import item_edits
from .mistaken_answer import ActedAnswers, Combination
from .mistakes import NamedMistake
from .mistakes.readings import misread_items
from .neighbours import ENLARGED, GROWN, OWN, RESIZED
from .pairs import PairSearch
from .precision_diagnosis import plain, precision_entry, spread_over
from .scale_diagnosis import are_slight, scale_entry
from .search import MistakeSearch
from .statement_reader import StatementReader
from .statement_search import (
    OTHER_VALUES,
    Explanation,
    StatementSearch,
    explains,
    explanations_of,
    only_one,
    precision_explanations,
    some_wrong,
)


class Ways:
    """Explains the answers of one candidate to the battery and near a failing problem.

    ``base`` is the first failing problem, if any: explanations of other answers are confirmed near
    it. ``small_errors`` allows explanations by rounding.
    """

    def __init__(
        self,
        subject: Subject,
        mistakes: Sequence[NamedMistake],
        acted: ActedAnswers,
        observation: Observation,
    ) -> None:
        self.subject = subject
        self.mistakes = mistakes
        self.base: Problem | None = None
        self.searched: Problem | None = None
        self.small_errors = True
        self._acted = acted
        self._observation = observation
        self._reader = StatementReader(subject)
        self._first_search: MistakeSearch | None = None
        self._pairs = PairSearch(
            subject, self._reader, self._search, lambda: (self.combined, self.near, self._resized)
        )

    @cached_property
    def first_explanations(self) -> list[Explanation]:
        """The only explanation of the first answers to a long battery, if there is one.

        It also explains calls in which any two options meet. Of several explanations, further
        answers are asked for until one is left.
        """
        if not self._observation.is_long:
            return []
        search = self._first_search = self._search(self._observation.first)
        if search.wrong and not answer_facts.repeats(self.subject, search.observed[0]):
            return []
        ways = (
            self.explain_in_order(search)
            if search.gross
            else iter([self._explain_gross_near(search)])
        )
        plainest = next(filter(None, ways), [])
        explanations = only_one(self.subject, plainest, self._observation.others)
        made = explanations[0].made if len(explanations) == 1 else None
        if made is None or (made and not self.explain_all(made, self.combined)):
            return []
        return explanations

    @cached_property
    def all_explanations(self) -> list[Explanation]:
        """The explanations of every battery answer: single mistakes first, pairs last."""
        if not self._observation.whole:
            return []
        search = self._search(self._observation.whole, self._first_search)
        if search.wrong and not answer_facts.repeats(self.subject, search.observed[0]):
            return []  # random answers cannot be acted out
        if not search.gross:
            return self._explain_gross_near(search) or self._explain_small_errors(search)
        return next(filter(None, self.explain_in_order(search, last=True)), [])

    def explain_in_order(
        self, search: MistakeSearch, *, last: bool = False
    ) -> Iterator[list[Explanation]]:
        """Yield explanations of gross mistakes, way by way, on demand.

        Each is confirmed on answers that nothing was learnt from. ``last`` adds pairs of
        statements, which take long.
        """
        observed = [*search.observed, *self.near, *self._resized]
        pairs = [(answer.inputs, answer.output) for answer in observed]
        stated = self._statements(observed, search)
        yield self._explain_by_catalogue(search)
        yield self._explain_readings(search)
        yield precision_explanations(precision_entry(self.subject, spread_over(search.observed)))
        slight = are_slight(self.subject, pairs)  # reading would state each scale by itself
        if slight:
            yield precision_explanations(scale_entry(self.subject, pairs))
        yield from map(explanations_of, stated.explain_every_call())
        yield self._explain_items(search)
        yield self._pairs.confirmed(search, search.pairs())
        yield self._pairs.besides_nan(search)
        yield from map(explanations_of, stated.explain_conditions())
        if not slight:
            yield precision_explanations(scale_entry(self.subject, pairs))
        if last:
            yield from self._pairs.explained(search, stated.found)

    def _explain_by_catalogue(self, search: MistakeSearch) -> list[Explanation]:
        near = self._near_in((GROWN, ENLARGED))
        named = [made for made in self._pairs.singles(search) if self.explain_all(made, near)]
        return explanations_of([made for made in named if self.explain_all(made, self.combined)])

    def _explain_readings(self, search: MistakeSearch) -> list[Explanation]:
        """Keys of items read otherwise, in caches or packed sequences."""
        layout = self.subject.declaration.head_layout
        if not layout.has_lengths:
            return []
        mistakes = misread_items("caches" if layout.cache_axes else "sequences")
        return self._explain_by_catalogue(search.search_among(mistakes))[:1]

    def _explain_items(self, search: MistakeSearch) -> list[Explanation]:
        """Stages edited for each item of sequences or caches alone."""
        if not self.subject.declaration.head_layout.has_lengths:
            return []
        return self._explain_by_catalogue(search.search_among(item_edits(search.observed)))[:1]

    def _explain_gross_near(self, search: MistakeSearch) -> list[Explanation]:
        base = self.base
        near = [] if base is None else answers_near(self.subject, base, (OWN, ENLARGED))
        wrong = [answer for answer in near if answer.margin > 1.0]
        if not some_wrong(wrong, GROSS):
            return []
        named = self._search([*search.observed, *wrong], search).singles()
        return explanations_of([made for made in named if self.explain_all(made, self.combined)])

    def _explain_small_errors(self, search: MistakeSearch) -> list[Explanation]:
        if not self.small_errors:
            return []
        near = self._wrong_near
        pairs = [(answer.inputs, answer.output) for answer in (*search.observed, *near)]
        return precision_explanations(
            scale_entry(self.subject, pairs)
            or precision_entry(self.subject, [*spread_over(search.observed), *plain(near)])
        )

    @cached_property
    def combined_explanations(self) -> list[Explanation]:
        """The explanations of errors that only two options together cause."""
        wrong = plainest_wrong(self.combined)
        return [] if wrong is None or wrong.problem is None else self.near_problem(wrong.problem)

    def near_problem(self, problem: Problem) -> list[Explanation]:
        """Return the explanations of every answer to the battery and near a problem."""
        near = answers_near(self.subject, problem)
        observed = [*self._observation.whole, *near]
        if not some_wrong(observed, GROSS):
            return []
        stated = self._statements(observed)
        ways = chain(stated.explain_every_call(), stated.explain_conditions())
        return explanations_of(next(filter(None, ways), []))

    @cached_property
    def _wrong_near(self) -> list[BatteryAnswer]:
        """Wrong answers near the first failing problem, which must be explained as well."""
        base = self.base
        near = [] if base is None else answers_near(self.subject, base)
        return [answer for answer in near if answer.margin > 1.0]

    @cached_property
    def near(self) -> list[BatteryAnswer]:
        """Answers near the first failing problem, which confirm explanations of others."""
        return self._near_in((OWN, ENLARGED))

    @cached_property
    def _resized(self) -> list[BatteryAnswer]:
        return self._near_in((RESIZED,))

    def _near_in(self, reach: Sequence[str]) -> list[BatteryAnswer]:
        self.searched = self.searched or self.base or plain_problem(self.subject)
        return [] if self.searched is None else answers_near(self.subject, self.searched, reach)

    @cached_property
    def combined(self) -> list[BatteryAnswer]:
        """Answers to problems with all pairs of options and sizes of a call."""
        return answers_to_pairs(self.subject, OTHER_VALUES)

    def explain_all(self, made: Combination, answers: Sequence[BatteryAnswer]) -> bool:
        """Whether mistakes explain every answer."""
        return all(explains(self.subject, made, answer) for answer in answers)

    def _search(
        self, observed: Sequence[BatteryAnswer], earlier: MistakeSearch | None = None
    ) -> MistakeSearch:
        return MistakeSearch(self.subject, observed, self.mistakes, self._acted, earlier=earlier)

    def _statements(
        self, observed: Sequence[BatteryAnswer], earlier: MistakeSearch | None = None
    ) -> StatementSearch:
        return StatementSearch(
            self.subject, self.mistakes, self._acted, observed, self._reader, earlier
        )
