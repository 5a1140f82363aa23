"""Explains answers that no mistake of the catalogue explains alone.

Proposed are statements read from answers, and mistakes under conditions. Proposals are confirmed on
fresh problems: pairs of options and sizes, and neighbours, with other values, of the plainest
problem at which the mistake shows. Answers that contradict a proposal are learnt from in the next
round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice, product
from typing import Any, Final

import torch

from ..clauses.registry import Clause
from ..clauses.subject import Subject
from ..operators import GUESSED
from ..oracle.comparison import equal_numbers
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from .agreement import BatteryAnswer
from .battery import answer_to, answers_near, answers_to, answers_to_pairs, plainest_wrong
from .conditions import Condition, ScaleLimit, SizeLimit, scale_below, size_limit
from .dissection.reading import roundest
from .dissection.returned_weights import answers_with_weights, refuses_alike
from .earlier_calls import answers_to_clause
from .entries import named_entry
from .fitted_numbers import Family, blends, families, fitted_mistakes
from .mistaken_answer import (
    ActedAnswers,
    Combination,
    DiagnosedSubject,
    MistakenAnswer,
    act,
    check_time,
)
from .mistakes import NamedMistake, NotExpressible, touches_any
from .narrowing import MOST_CONDITIONS, Narrowed, made_under
from .neighbours import ENLARGED, OWN, draw_unseen_sizes, neighbours, resize_field
from .search import MistakeSearch, is_special_case
from .stage_edits import edits_making
from .statement_reader import StatementReader

# Explanations that are reported.
MOST_REPORTED: Final = 6
# Rounds of proposals: a round learns from the answers that contradicted the round before.
MOST_ROUNDS: Final = 3
# Proposals of a round that are tried on fresh problems.
MOST_PROPOSED: Final = 6
# Answers that are read before conditions are learnt: they suffice for 99 of 100 mutants of
# ``benchmarks/naming.py``.
SOON: Final = 4
# Added to the seed of a problem, once for each round, for values that no search has looked at.
OTHER_VALUES: Final = 7919
# Draws of values whose answer a mistake may change.
MOST_SEEDS: Final = 4
# Halvings of the range within which a scale decides: to a part in a hundred.
HALVINGS: Final = 7

Proposals = Callable[[], Iterator[list[Combination]]]


def explains(subject: Subject, made: Combination, answer: BatteryAnswer) -> bool:
    """Whether mistakes explain one answer."""
    if not _touches_any(subject, made, answer.inputs):
        return answer.margin <= 1.0
    try:
        acted = _acted(subject, made, answer.inputs)
    except NotExpressible:  # one of two may be made alone, or none
        parts = made if len(made) > 1 else ()
        return answer.margin <= 1.0 or any(explains(subject, (one,), answer) for one in parts)
    if len(made) == 1 and acted.output.shape != answer.exact.output.shape:
        same = acted.output.shape == answer.output.shape
        # With another number of queries a call may be right if shapes are broadcast, as a mask
        # broadcasts one row; the mistake does not say which mask goes with which query.
        if acted.inputs.geometry.query_length != answer.inputs.geometry.query_length or not same:
            return same or answer.margin <= 1.0 or acted.inputs.geometry.query_length == 1
    return answer.agrees(acted)


def changes_answer(subject: Subject, made: Combination, inputs: Inputs) -> bool:
    """Whether mistakes change the right answer, or may (if they cannot be acted out)."""
    if not _touches_any(subject, made, inputs):
        return False
    try:
        output = _acted(subject, made, inputs).output
    except NotExpressible:
        return True
    exact = subject.golden(inputs).output
    if output.shape != exact.shape:
        return True
    return not bool(equal_numbers(output, exact).all())


def answer_alike(subject: Subject, one: Combination, other: Combination, inputs: Inputs) -> bool:
    """Whether two combinations answer alike in every row, including rows whose answer is open."""
    try:
        first, second = (_acted(subject, made, inputs) for made in (one, other))
    except NotExpressible:
        return False
    if first.output.shape != second.output.shape:
        return False
    near = (first.output - second.output).abs() <= first.bound
    return bool((near | equal_numbers(first.output, second.output)).all())


def cannot_be_made(subject: Subject, made: Combination, inputs: Inputs) -> bool:
    """Whether the mistaken call has no answer, or an answer of the wrong shape."""
    try:
        output = _acted(subject, made, inputs).output
    except NotExpressible:
        return True
    return output.shape != subject.golden(inputs).output.shape


def changes_gradients(
    subject: Subject, clause: Clause, problem: Problem, made: Combination
) -> bool:
    """Whether mistakes change the answer that a clause of gradients asks for.

    Several clauses draw a cache or sinks that the problem lacks. Values of zero hide a change of
    the weights, so further values are tried.
    """
    seeds = range(problem.seed, problem.seed + MOST_SEEDS)
    drawn = [problem.replace(overrides=None, values="normal", seed=seed) for seed in seeds]
    answers = (answers_to_clause(subject, clause, one)[0] for one in (problem, *drawn))
    own = (answer.inputs for answer in chain.from_iterable(answers))
    given = subject.inputs(problem)
    values = torch.arange(given.value.numel(), dtype=given.value.dtype).view_as(given.value)
    others = [] if given.is_layer else [given.with_tokens(value=values)]
    asked = chain([given, *others], map(subject.inputs, drawn), own)
    return any(changes_answer(subject, made, inputs) for inputs in asked)


def _touches_any(subject: Subject, made: Combination, inputs: Inputs) -> bool:
    if isinstance(subject, DiagnosedSubject):
        return any(subject.acted.touches(one, inputs) for one in made)
    return touches_any(made, inputs, subject.declaration.semantics)


def _acted(subject: Subject, made: Combination, inputs: Inputs) -> MistakenAnswer:
    if len(made) == 1 and isinstance(subject, DiagnosedSubject):
        return subject.acted.answer(made[0], inputs)
    return act(subject.oracle, subject.declaration.semantics, made, inputs)


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """An entry of the report with the mistakes that it names; no mistakes for a loss of precision.

    ``others`` are further combinations of equal effect.
    """

    entry: dict[str, Any]
    made: Combination = ()
    others: tuple[Combination, ...] = ()

    @property
    def ways(self) -> tuple[Combination, ...]:
        """Every combination that makes the named mistakes."""
        return (self.made, *self.others)


# ``n | 31`` is one less than a multiple of 32, with a different rest in tiles of each size.
_UNEVEN: Final = 31
# Numbers of queries and keys that are whole tiles of many sizes.
_WHOLE: Final = (16, 32, 64)


def precision_explanations(entry: dict[str, Any] | None) -> list[Explanation]:
    """Return the explanation by a loss of precision or by a scale, if there is an entry."""
    return [] if entry is None else [Explanation(entry=entry)]


class StatementSearch:
    """Searches for explanations of the ``observed`` and further answers of a candidate.

    The ``reader`` remembers its readings for other searches. Results of an ``earlier`` search are
    reused. ``counts`` selects the further answers that need an explanation.
    """

    def __init__(
        self,
        subject: Subject,
        mistakes: Sequence[NamedMistake],
        acted: ActedAnswers,
        observed: Sequence[BatteryAnswer],
        reader: StatementReader,
        earlier: MistakeSearch | None = None,
        *,
        counts: Callable[[BatteryAnswer], bool] = lambda _answer: True,
    ) -> None:
        self.subject = subject
        self.mistakes = mistakes
        self.acted = acted
        self.observed = list(observed)
        self._reader = reader
        self._rounds = 0
        self._earlier = earlier
        self._counts = counts
        self._around: list[BatteryAnswer] = []
        self._kept: list[NamedMistake] = []

    def explain_every_call(self) -> Iterator[list[Combination]]:
        """Yield explanations made in every call: of the catalogue, edits, numbers, statements.

        Each step gives confirmed explanations of every answer. Reading is expensive, so statements
        come last.
        """
        yield self._first_confirmed(self._limited, rounds=1)
        yield self._first_confirmed(self._edited, rounds=1)
        yield self._first_confirmed(self._fitted, rounds=1)
        yield self._first_confirmed(partial(self._stated, 1), rounds=1)

    def explain_conditions(self) -> Iterator[list[Combination]]:
        """Yield explanations under conditions, few first, and statements of several answers."""
        yield self._first_confirmed(self._soon_named)
        yield self._first_confirmed(partial(self._edited_under, 1), rounds=1)
        yield self._first_confirmed(self._fitted_under, rounds=1)
        yield self._first_confirmed(partial(self._stated, SOON), rounds=1)
        yield self._first_confirmed(self._soon_narrowed, rounds=1)
        yield self._first_confirmed(self._stated)
        yield self._first_confirmed(self._narrowed)
        yield self._first_confirmed(partial(self._edited_under, MOST_CONDITIONS))

    @cached_property
    def _edits(self) -> MistakeSearch:
        return self._search.search_among(self._making)

    @cached_property
    def _making(self) -> tuple[NamedMistake, ...]:
        """Stages with operators that make a few gross errors; no others can make all errors."""
        check_time()
        return edits_making(self._search.observed)

    def _edited(self) -> Iterator[list[Combination]]:
        for one in self._edits.explaining():
            yield [(one,)]

    def _edited_under(self, most: int) -> Iterator[list[Combination]]:
        for narrowed in sorted([*self._edits.limited(), *self._edits.narrowed(most)], key=_length):
            yield self._exactly([narrowed])

    @cached_property
    def _fits(self) -> MistakeSearch:
        return self._search_fitted(families())

    @cached_property
    def _blends(self) -> MistakeSearch:
        return self._search_fitted(blends())

    def _search_fitted(self, some: Iterable[Family]) -> MistakeSearch:
        found = list(fitted_mistakes(self._search.observed, some))
        self._kept += found  # searches know a mistake by its identity, so it must outlive them
        return self._search.search_among(found)

    def found(self) -> list[NamedMistake]:
        """Return stages with operators or with numbers that alone make the plainest errors."""
        return [*self._edits.mistakes, *self._fits.mistakes]

    def _fitted(self) -> Iterator[list[Combination]]:
        for one in self._fits.explaining():
            yield [(one,)]
        for one in self._blends.explaining():
            yield [(one,)]

    def _fitted_under(self) -> Iterator[list[Combination]]:
        for narrowed in sorted([*self._fits.limited(), *self._fits.narrowed(1)], key=_length):
            yield self._exactly([narrowed])

    def _stated(self, most: int | None = None) -> Iterator[list[Combination]]:
        """Yield statements read from ``most`` answers (None: all) that explain every answer.

        The reader gives the shortest statements of the plainest answer first.
        """
        for said in islice(self._reader.statements(self.observed), most):
            check_time()  # thousands of statements ask for no call
            for one in self._search.search_among(said).explaining():
                yield [(one,)]

    def _limited(self) -> Iterator[list[Combination]]:
        limited = self._search.limited()
        if limited:
            yield self._exactly(limited)

    def _soon_named(self) -> Iterator[list[Combination]]:
        named = self._search.narrowed(1)
        if named:
            yield self._exactly(named)

    def _soon_narrowed(self) -> Iterator[list[Combination]]:
        read = self._search.search_among(self._read(SOON))
        for one in sorted(read.narrowed(1), key=_length):
            yield self._exactly([one])

    def _narrowed(self) -> Iterator[list[Combination]]:
        named = self._search.narrowed()
        conditions = named[0].conditions if named else 0
        if named and conditions <= 1:  # what is read cannot be plainer
            yield self._exactly(named)
        read = self._search.search_among(self._read())
        fewer = sorted(read.narrowed(conditions - 1), key=_length) if conditions else []
        for one in fewer:
            yield self._exactly([one])
        if conditions > 1:
            yield self._exactly(named)
        for one in [] if fewer else sorted(read.narrowed(), key=_length):
            yield self._exactly([one])

    def _first_confirmed(
        self, proposals: Proposals, rounds: int = MOST_ROUNDS
    ) -> list[Combination]:
        for _ in range(rounds):
            proposed = False
            for group in islice(proposals(), MOST_PROPOSED):
                proposed = True
                confirmed = [made for made in group if self._is_confirmed(made)]
                if confirmed:
                    return confirmed
            if not proposed:
                return []
            self._learn()
        return []

    @cached_property
    def _search(self) -> MistakeSearch:
        return MistakeSearch(
            self.subject, self.observed, self.mistakes, self.acted, earlier=self._earlier
        )

    def _read(self, most: int | None = None) -> list[NamedMistake]:
        return list(chain.from_iterable(islice(self._reader.statements(self.observed), most)))

    @cached_property
    def _unseen(self) -> list[BatteryAnswer]:
        unseen = answers_to_pairs(self.subject, OTHER_VALUES * (self._rounds + 1))
        return list(filter(self._counts, unseen))

    def _learn(self) -> None:
        self.observed += [*self._unseen, *self._around]
        self._around.clear()
        self._rounds += 1
        self._earlier = self._search
        for name in ("_unseen", "_search", "_edits", "_fits", "_blends"):
            self.__dict__.pop(name, None)

    def _is_confirmed(self, made: Combination) -> bool:
        if not all(explains(self.subject, made, answer) for answer in self._unseen):
            return False
        around = self._answers_around(made)
        self._around += around
        return all(explains(self.subject, made, answer) for answer in around)

    def _answers_around(self, made: Combination) -> list[BatteryAnswer]:
        """Return answers to calls that differ in one respect from a call with the mistakes.

        They rule out other conditions that fit the observed calls; conditions on sizes are tested
        at unobserved sizes. If only certain rows are concerned, the calls have more than twice as
        many queries: the last row may have been unique, and tiles of several sizes may end alike.
        """
        plainest = self._plainest(made)
        if plainest is None or plainest.problem is None:
            return []
        seed = plainest.problem.seed + OTHER_VALUES * (self._rounds + 1)
        problem = plainest.problem.replace(seed=seed)
        near = answers_near(self.subject, problem, (OWN,))
        if any(one.rows is not None for one in made):
            twice = 2 * problem.geometry.query_length
            more = (
                self._answer_at_size(plainest, "query_length", n) for n in (twice, twice | _UNEVEN)
            )
            near += filter(None, more)
        if any(one.edits for one in made):  # whole tiles decide between many edits
            lengths = product(("query_length", "key_length"), _WHOLE)
            near += filter(None, (self._answer_at_size(plainest, *length) for length in lengths))
        if any(edit.stage in GUESSED for one in made for edit in one.edits):
            large = neighbours(self.subject, problem, (ENLARGED,))[:1]
            near += answers_to(self.subject, [one.replace(values="integers") for one in large])
        rules = [rule for one in made for rule in one.sizes]
        seen = {one.inputs.geometry for one in (*self.observed, *self._unseen, *near)}
        at_sizes = draw_unseen_sizes(self.subject, problem, rules, seen)
        around = [*near, *answers_to(self.subject, list(at_sizes))]
        return list(filter(self._counts, around))

    def _plainest(self, made: Combination) -> BatteryAnswer | None:
        declared = self.subject.declaration.semantics
        shown = (one for one in self.observed if touches_any(made, one.inputs, declared))
        return plainest_wrong(shown)

    def _exactly(self, group: Sequence[Narrowed]) -> list[Combination]:
        """Find the exact limits of sizes and scales; drop mistakes that then explain less.

        Observed answers leave a range for a limit, within which the candidate is asked. A mistake
        may have left rows open where its conditions do not hold: there it explains nothing.
        """
        limited = ((self._find_exact_limits(one),) for one in group)
        wrong = [answer for answer in self.observed if answer.margin > 1.0]
        return [made for made in limited if all(explains(self.subject, made, a) for a in wrong)]

    def _find_exact_limits(self, narrowed: Narrowed) -> NamedMistake:
        plainest = self._plainest((narrowed.mistake,))
        literals = list(narrowed.literals)
        for index, literal in enumerate(literals):
            others = [one for one in literals if one is not literal]
            wherever = made_under(narrowed.everywhere, others)
            if plainest is not None and isinstance(literal, SizeLimit):
                literals[index] = self._exact_size(literal, wherever, plainest)
            elif plainest is not None and isinstance(literal, ScaleLimit):
                literals[index] = self._exact_scale(literal, wherever, plainest)
        return made_under(narrowed.everywhere, literals)

    def _exact_size(
        self, limit: SizeLimit, wherever: NamedMistake, plainest: BatteryAnswer
    ) -> SizeLimit:
        """Find the size at which answers change.

        The limit is returned unchanged if the candidate cannot be called with the sizes in between.
        """

        def size(answer: BatteryAnswer) -> int:
            number: int = getattr(answer.inputs.geometry, limit.field)
            return number

        made = size(plainest)
        sizes = (size(answer) for answer in self._spared(limit, wherever))
        spared = min(sizes, key=lambda other: abs(other - made), default=made)
        while abs(made - spared) > 1:
            middle = (made + spared) // 2
            verdict = self._is_made(wherever, self._answer_at_size(plainest, limit.field, middle))
            if verdict is None:
                return limit
            made, spared = (middle, spared) if verdict else (made, middle)
        if made == spared:
            return limit
        return size_limit(limit.field, spared if limit.above else made, above=limit.above)

    def _exact_scale(
        self, limit: ScaleLimit, wherever: NamedMistake, plainest: BatteryAnswer
    ) -> ScaleLimit:
        """Find the scale with the fewest digits at which answers change."""
        made = plainest.inputs.scale
        scales = [answer.inputs.scale for answer in self._spared(limit, wherever)]
        spared = min((scale for scale in scales if scale is not None), default=None)
        if made is None or spared is None or plainest.problem is None:
            return limit
        for _ in range(HALVINGS):
            middle = (made + spared) / 2.0
            verdict = self._is_made(wherever, self._answer(plainest.problem.replace(scale=middle)))
            if verdict is None:
                return limit
            made, spared = (middle, spared) if verdict else (made, middle)
        return scale_below(roundest(made, spared)) if made > 0.0 else limit

    def _spared(self, limit: Condition, wherever: NamedMistake) -> Iterator[BatteryAnswer]:
        declared = self.subject.declaration.semantics
        return (
            answer
            for answer in self.observed
            if answer.margin <= 1.0
            and not limit.holds(answer.inputs)
            and touches_any((wherever,), answer.inputs, declared)
        )

    def _is_made(self, wherever: NamedMistake, answer: BatteryAnswer | None) -> bool | None:
        """Whether an answer is mistaken (True) or right (False); None for neither or both."""
        if answer is None:
            return None
        right, explained = answer.margin <= 1.0, explains(self.subject, (wherever,), answer)
        return explained if right != explained else None

    def _answer_at_size(self, answer: BatteryAnswer, field: str, size: int) -> BatteryAnswer | None:
        if answer.problem is None:
            return None
        problem = resize_field(self.subject, answer.problem, field, size)
        return None if problem is None else self._answer(problem)

    def _answer(self, problem: Problem) -> BatteryAnswer | None:
        return answer_to(self.subject, self.subject.inputs(problem), problem)


def _length(narrowed: Narrowed) -> int:
    return len(narrowed.mistake.sentence)


def explanations_of(combinations: list[Combination]) -> list[Explanation]:
    """Turn combinations into explanations: each name once, without special cases."""
    names = {frozenset(mistake.name for mistake in made) for made in combinations}
    named: dict[frozenset[str], list[Combination]] = {}
    for made in combinations:
        if not is_special_case(made, names):
            named.setdefault(frozenset(mistake.name for mistake in made), []).append(made)
    return [
        Explanation(
            entry=named_entry(
                "+".join(mistake.name for mistake in made),
                "; ".join(mistake.sentence for mistake in made),
                "; ".join(mistake.fix for mistake in made),
            ),
            made=made,
            others=tuple(others),
        )
        for made, *others in list(named.values())[:MOST_REPORTED]
    ]


def some_wrong(answers: Sequence[BatteryAnswer], least: float = 1.0) -> bool:
    """Whether the error of an answer exceeds ``least`` bounds."""
    return any(answer.margin > least for answer in answers)


def only_one(
    subject: Subject, explanations: Sequence[Explanation], others: Iterator[BatteryAnswer]
) -> list[Explanation]:
    """Drop explanations that further answers contradict, until one is left."""
    left = list(explanations)
    while len(left) > 1 and (answer := next(others, None)) is not None:
        left = [one for one in left if not one.made or explains(subject, one.made, answer)]
    return left


def weights_follow(
    subject: Subject,
    clause: Clause,
    problem: Problem,
    in_their_place: Callable[[], list[dict[str, Any]]],
    of_answers: Callable[[], list[Explanation]],
) -> str:
    """Return the name of a mistake that a clause meets where weights are returned, or "".

    ``in_their_place`` gives what is returned instead of the weights; ``of_answers`` gives
    explanations of the answers that are returned together with the weights.
    """
    answers, refused = answers_with_weights(subject, clause, problem)
    if refused:
        stated = in_their_place()
        return str(stated[0]["name"]) if refuses_alike(subject, stated, refused) else ""
    for one in of_answers() if some_wrong(answers) else ():
        if one.made and all(explains(subject, one.made, answer) for answer in answers):
            return str(one.entry["name"])
    return ""
