"""One candidate in one dtype: what it answers, which mistakes explain it, and which failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from torch import Tensor

from ..base.results import Violation
from ..calls.calling import Answer, Arguments, CandidateFailure, Forward
from ..calls.differentiating import Taped
from ..clauses.registry import Clause
from ..clauses.subject import Differentiator, Subject
from ..oracle.comparison import GROSS
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from .agreement import agrees, margin
from .answer_facts import repeats, unknown_entry
from .backward import BackwardDiagnostician
from .battery import BatteryAnswer, answer_to, observe, plain_problem
from .dissection import statements
from .dissection.returned_weights import explain_weights
from .mistaken_answer import ActedAnswers, Combination, act, touches_any
from .mistakes import NamedMistake, NotExpressible, named_mistakes
from .neighbours import neighbours
from .precision_diagnosis import Observed, precision_entry, scale_entry
from .search import MOST_PARTIAL, MistakeSearch


class NoDifferentiator(Differentiator):
    """A differentiator that refuses: an acted answer has no history."""

    def tape(self, inputs: Inputs, **_options: object) -> Taped:
        """Raise LookupError, which speaks against no mistake."""
        del inputs
        msg = "an acted mistake has no gradients"
        raise LookupError(msg)


class StandIn(Subject):
    """A subject that answers as a candidate with some mistakes, rounded to the query's dtype."""

    def __init__(self, subject: Subject, made: Combination) -> None:
        super().__init__(subject.candidate, subject.dtype)
        self.oracle = subject.oracle
        self.inputs = subject.inputs
        self.gradients = NoDifferentiator(self)
        self.made = made

    def forward(self, inputs: Inputs) -> Forward:
        """A function that is never called: the answer follows from the inputs alone."""
        del inputs
        return lambda: None

    def call_with(self, forward: Forward, call_arguments: Arguments, inputs: Inputs) -> Answer:
        """The acted answer; CandidateFailure for one of another shape, as for a candidate's."""
        del forward, call_arguments
        acted = act(self.oracle, self.declaration.semantics, self.made, inputs)
        output: Tensor = acted.output.to(inputs.query.dtype)
        if output.shape != inputs.output_shape:
            message = f"the output has shape {list(output.shape)}"
            raise CandidateFailure(Violation(kind="shape", message=message))
        weights = acted.core.weights.to(inputs.query.dtype) if inputs.return_weights else None
        return Answer(output=output, returned=output, weights=weights)


def fails_alike(subject: Subject, made: Combination, clause: Clause, problem: Problem) -> bool:
    """Whether a candidate with some mistakes fails a clause on a problem.

    True as well where the mistakes cannot be acted out on what the clause needs: then nothing
    speaks against them.
    """
    try:
        return clause.check(StandIn(subject, made), problem).violation is not None
    except (CandidateFailure, NotExpressible, LookupError, ValueError, RuntimeError):
        return True


MOST_REPORTED: Final = 6
# The clauses that judge returned weights whatever the problem asks for, and their gradient.
RETURNS_WEIGHTS: Final = ("shape.weights",)
OF_WEIGHTS: Final = "gradients.weights"
PAIR_SECONDS: Final = 1.2
# Statements that explain every answer, of which the shortest that is confirmed is said.
MOST_STATED: Final = 6
# Failing problems whose neighbours are searched for what explains them.
MOST_SEARCHES: Final = 2
# Added to the seed of a problem for values that no search has looked at.
OTHER_VALUES: Final = 7919
# Answers that losses of precision are tried on, spread over the battery: each costs all of them.
FEW: Final = 12


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One entry of the report, with the mistakes that it names; none for a loss of precision."""

    entry: dict[str, Any]
    made: Combination = ()


class Diagnostician:
    """Explains the failures of one candidate in one dtype; the search is made once."""

    def __init__(self, subject: Subject, mistakes: Sequence[NamedMistake] | None = None) -> None:
        self.subject = subject
        self.mistakes = named_mistakes() if mistakes is None else tuple(mistakes)
        self._said_at = ""
        self._searches = 0
        self._acted = ActedAnswers(subject.oracle, subject.declaration.semantics)
        self._first_problem: Problem | None = None
        self._searched: Problem | None = None

    def explain(
        self, clause: Clause | None = None, problem: Problem | None = None
    ) -> list[dict[str, Any]]:
        """What explains a failure of a clause on a problem, or all answers of the battery.

        An entry ``unknown-mistake`` where something is wrong and nothing named explains it.
        """
        candidate = self.subject.candidate
        if not candidate.golden_known or candidate.kind == "positions":
            return []
        if clause is not None and problem is not None and clause.family == "gradients":
            if not self._anything_wrong:
                wrong_weights = self._returned_weights if clause.id == OF_WEIGHTS else []
                return wrong_weights or self.backward.explain(clause.id, problem)
            # The answers are wrong, and wrong gradients are a consequence.
            entries = [one.entry for one in self.explanations]
            return _shared(entries) if entries else [self._unknown(clause, None)]
        self._first_problem = self._first_problem or problem
        entries = self._entries(self.explanations, clause, problem)
        if not entries and clause is not None and not self._anything_wrong:
            entries = self._returned_weights if _asks_for_weights(clause, problem) else []
        shown = None if problem is None else answer_to(self.subject, self.subject.inputs(problem))
        searched = problem is None or problem == self._searched
        if not entries and problem is not None and not searched and self._searches_left(shown):
            near = self._search_near(problem)
            self.explanations.extend(near)
            entries = self._entries(near, clause, problem)
        if entries:
            return _shared(entries)
        if clause is None and not self._anything_wrong:
            return []
        return [self._unknown(clause, shown)]

    def _entries(
        self, explanations: Sequence[Explanation], clause: Clause | None, problem: Problem | None
    ) -> list[dict[str, Any]]:
        return [one.entry for one in explanations if self._fits(one, clause, problem)]

    def _searches_left(self, shown: BatteryAnswer | None) -> bool:
        """Whether one more failing problem is searched: of a few, where the answer is wrong."""
        if shown is None or margin(self.subject, shown) <= 1.0:
            return False
        self._searches += 1
        return self._searches <= MOST_SEARCHES

    def _unknown(self, clause: Clause | None, shown: BatteryAnswer | None) -> dict[str, Any]:
        """The entry without a name; what all wrong answers share is said at one clause alone."""
        said_at = self._said_at
        if clause is not None and not said_at:
            self._said_at = clause.id
        return unknown_entry(self.subject, self.observed, shown, said_at=said_at)

    @cached_property
    def backward(self) -> BackwardDiagnostician:
        """Explains gradients where the answers are right."""
        return BackwardDiagnostician(self.subject)

    @cached_property
    def _returned_weights(self) -> list[dict[str, Any]]:
        """What is returned in place of the weights; nothing where they are right."""
        base = plain_problem(self.subject)
        fresh = base and base.replace(seed=base.seed + OTHER_VALUES)
        return explain_weights(
            self.subject, [] if fresh is None else neighbours(self.subject, fresh)
        )

    @cached_property
    def observed(self) -> list[BatteryAnswer]:
        """What the candidate answers on the battery."""
        return observe(self.subject)

    @property
    def _anything_wrong(self) -> bool:
        return any(margin(self.subject, seen) > 1.0 for seen in self.observed)

    @cached_property
    def explanations(self) -> list[Explanation]:
        """What explains every answer of the battery, and of problems that were not searched.

        Single mistakes, losses of precision, single mistakes under conditions and statements of
        what was read, then pairs. What explains a failing problem later is added.
        """
        if not self.observed:
            return []
        search = self._search(self.observed, self.mistakes)
        if search.wrong and not repeats(self.subject, search.observed[0]):
            return []  # what answers at random makes no mistake that could be acted out
        pairs = [(answer.inputs, answer.output) for answer in search.observed]
        plain = [(inputs, output) for inputs, output in pairs if inputs.generic]
        some = plain[:: len(plain) // FEW + 1]
        if not search.gross:
            return _of_precision(
                scale_entry(self.subject, pairs) or precision_entry(self.subject, some)
            )
        return self._of_gross_errors(search, pairs, some)

    def _of_gross_errors(
        self, search: MistakeSearch, pairs: Observed, some: Observed
    ) -> list[Explanation]:
        """Mistakes that no rounding makes, confirmed near the first failing problem."""
        self._searched = base = self._first_problem or plain_problem(self.subject)
        near = self._answers_near(base)
        confirmed = [made for made in search.singles() if self._explain_all(made, near)]
        if confirmed:
            return _explanations(confirmed)
        entry = precision_entry(self.subject, some)
        if entry is not None:
            return _of_precision(entry)
        together = [made for made in search.pairs() if self._explain_all(made, near)]
        if together:
            return _explanations(together)
        narrowed = self._narrowed([*search.observed, *near], base)
        if narrowed:
            return narrowed
        beyond = [(answer.inputs, answer.output) for answer in near]
        entry = scale_entry(self.subject, [*pairs, *beyond])
        if entry is not None:
            return _of_precision(entry)
        together = search.supported_pairs(PAIR_SECONDS) or self._read_besides(search)
        return _explanations([made for made in together if self._explain_all(made, near)])

    def _read_besides(self, search: MistakeSearch) -> list[Combination]:
        """Pairs of a mistake of the catalogue and of what is read besides it, of the first such."""
        for one in search.partial[:MOST_PARTIAL]:
            stated = statements(self.subject, search.unexplained(one), (one,))
            pairs = [pair for pair in search.completing(one, stated) if search.explains_every(pair)]
            if pairs:
                return [min(pairs, key=lambda pair: len(pair[1].sentence))]
        return []

    def _answers_near(self, problem: Problem | None) -> list[BatteryAnswer]:
        if problem is None:
            return []
        near = (answer_to(self.subject, inputs) for inputs in neighbours(self.subject, problem))
        return [answer for answer in near if answer is not None]

    def _explain_all(self, made: Combination, answers: Sequence[BatteryAnswer]) -> bool:
        return all(self._explain_answer(made, answer) for answer in answers)

    def _narrowed(
        self, observed: Sequence[BatteryAnswer], problem: Problem | None
    ) -> list[Explanation]:
        """Mistakes of the catalogue under conditions, and statements of what is read.

        Each explains the neighbours of ``problem`` with other values, too.
        """
        proposed = self._search(observed, statements(self.subject, observed))
        stated = proposed.singles(MOST_STATED)
        named = [] if stated else self._search(observed, self.mistakes).narrowed()
        read = [] if stated else proposed.narrowed()
        if named and read and read[0].conditions < named[0].conditions:
            named = []
        if not (stated or named or read):
            return []
        fresh = problem and problem.replace(seed=problem.seed + OTHER_VALUES)
        unseen = self._answers_near(fresh)

        def confirmed(proposals: list[Combination]) -> list[Combination]:
            return [made for made in proposals if self._explain_all(made, unseen)]

        of_catalogue = confirmed([(one.mistake,) for one in named])
        if of_catalogue:
            return _explanations(of_catalogue)
        return _explanations(_shortest(confirmed(stated or [(one.mistake,) for one in read])))

    def _search(
        self, observed: Sequence[BatteryAnswer], mistakes: Sequence[NamedMistake]
    ) -> MistakeSearch:
        return MistakeSearch(self.subject, observed, mistakes, self._acted)

    def _search_near(self, problem: Problem) -> list[Explanation]:
        """What explains every answer of the battery and of the neighbours of a problem."""
        observed = [*self.observed, *self._answers_near(problem)]
        if not any(margin(self.subject, answer) > GROSS for answer in observed):
            return []
        return self._narrowed(observed, problem)

    def _fits(
        self, explanation: Explanation, clause: Clause | None, problem: Problem | None
    ) -> bool:
        """Whether an explanation holds for the failing problem, and makes the clause fail, too."""
        made = explanation.made
        if clause is None or problem is None:
            return True
        if not made:  # a scale that is off breaks no law that holds at every scale
            return clause.needs_golden or explanation.entry["name"] != "scale-off"
        answer = answer_to(self.subject, self.subject.inputs(problem))
        if answer is not None and not self._explain_answer(made, answer):
            return False
        return fails_alike(self.subject, made, clause, problem)

    def _explain_answer(self, made: Combination, answer: BatteryAnswer) -> bool:
        """Whether mistakes explain one answer."""
        declared = self.subject.declaration.semantics
        if not touches_any(made, answer.inputs, declared):
            return margin(self.subject, answer) <= 1.0
        try:
            acted = act(self.subject.oracle, declared, made, answer.inputs)
        except NotExpressible:
            return margin(self.subject, answer) <= 1.0
        return agrees(self.subject, acted, answer)


def _asks_for_weights(clause: Clause, problem: Problem | None) -> bool:
    """Whether a clause judges the weights that are returned."""
    return clause.id in RETURNS_WEIGHTS or (problem is not None and problem.return_weights)


def _of_precision(entry: dict[str, Any] | None) -> list[Explanation]:
    return [] if entry is None else [Explanation(entry={"fix": "", **entry})]


def _shortest(stated: list[Combination]) -> list[Combination]:
    """Of several statements that hold the one with the shortest text, if there is any."""
    return sorted(stated, key=lambda made: len(made[0].sentence))[:1]


def _explanations(combinations: list[Combination]) -> list[Explanation]:
    """Each name once, without the special cases of what explains as much."""
    names = {frozenset(mistake.name for mistake in made) for made in combinations}
    named: dict[frozenset[str], Combination] = {}
    for made in combinations:
        if not _is_special(made, names):
            named.setdefault(frozenset(mistake.name for mistake in made), made)
    return [
        Explanation(
            entry={
                "name": "+".join(mistake.name for mistake in made),
                "text": "; ".join(mistake.sentence for mistake in made),
                "fix": "; ".join(mistake.fix for mistake in made),
                "confidence": 1.0,
            },
            made=made,
        )
        for made in list(named.values())[:MOST_REPORTED]
    ]


def _shared(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The confidence shared among equivalent names."""
    return [{**entry, "confidence": entry["confidence"] / len(entries)} for entry in entries]


def _is_special(made: Combination, names: set[frozenset[str]]) -> bool:
    for mistake in made:
        others = {other.name for other in made if other is not mistake}
        if mistake.special_of and frozenset({mistake.special_of, *others}) in names:
            return True
    return False
