"""Two mistakes at once that explain every answer together and no wrong answer alone.

Most answers show both. Several kinds of calls show only one: with a single head, item, query or
key, without dot products, with values of unit length, or of a layer with identity projections. A
mistake that explains a call of these kinds is soon completed to a pair.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice, permutations
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .._golden import golden
from ..clauses.subject import Subject
from ..oracle.oracle import known_weights
from ..problems.inputs import Inputs
from .agreement import BatteryAnswer, within
from .battery import (
    CUBE,
    BatteryEntry,
    answer_to,
    answers_at_equal_sizes,
    answers_to,
    answers_to_pairs,
    fitted_problem,
)
from .conditions import CONDITIONS
from .entries import named_entry
from .fitted_numbers import families, fitted_mistakes
from .mistaken_answer import Combination, act
from .mistakes import DeclaredCall, NamedMistake, NotExpressible
from .narrowing import made_under, telling_apart
from .neighbours import draw_unseen_sizes
from .precision_diagnosis import precision_entry, spread_over
from .scale_diagnosis import scale_entry
from .search import MOST_PARTIAL, MistakeSearch
from .stage_edits import edits_making
from .statement_reader import StatementReader, statements
from .statement_search import (
    MOST_ROUNDS,
    OTHER_VALUES,
    Explanation,
    StatementSearch,
    answer_alike,
    explains,
    explanations_of,
)

# The most keys that a single tile holds.
FEW_KEYS: Final = 4
# The part of the answers that may stay unexplained if only the first mistake is reported.
FEW_LEFT: Final = 0.1
# The part of the answers that a second mistake under conditions may make wrong.
PART_LEFT: Final = 0.25
# Mistakes that are combined with edited stages: each takes a second.
MOST_EDITED: Final = 1
# Answers with rows of zeros on which mistakes are tried for NaN.
MOST_ZEROED: Final = 2


class PairSearch:
    """Searches for two mistakes that explain every answer together.

    ``searching`` begins a search among answers and reuses another's verdicts. ``unseen`` gives
    fresh answers for confirmation: to all pairs of options, near the first failing problem, at
    unseen sizes.
    """

    def __init__(
        self,
        subject: Subject,
        reader: StatementReader,
        searching: Callable[[Sequence[BatteryAnswer], MistakeSearch | None], MistakeSearch],
        unseen: Callable[[], tuple[list[BatteryAnswer], list[BatteryAnswer], list[BatteryAnswer]]],
    ) -> None:
        self.subject = subject
        self._reader = reader
        self._searching = searching
        self._unseen = unseen
        # Searches know a mistake by its identity, so judged mistakes must outlive them.
        self._kept: list[NamedMistake] = []

    def explained(
        self, search: MistakeSearch, found: Callable[[], list[NamedMistake]]
    ) -> Iterator[list[Explanation]]:
        """Yield pairs, if nothing else explains the answers.

        ``found`` gives stages with operators and numbers that make a few plain errors alone.
        """
        _, near, resized = self._unseen()
        # With a single head, item or query, a mistake that mixes them leaves the second one alone.
        more = self._searching([*search.observed, *near, *resized], search)
        yield self.confirmed(more, more.pairs())
        yield self.confirmed(search, search.supported_pairs())
        yield self.confirmed(search, self._read_besides(search, search.partial))
        # A mistake of the catalogue besides an edited stage or a read statement.
        said = chain.from_iterable(islice(self._reader.statements(search.observed), MOST_PARTIAL))
        plain = sorted(found(), key=lambda one: len(one.sentence))
        alone = search.search_among([*plain, *said]).partial
        partial = [_sparing(one, search) for one in alone]
        self._kept += partial
        yield self.confirmed(search, search.pairs(partial))
        yield self.confirmed(search, self._read_besides(search, partial))
        yield self.confirmed(more, self._besides_under_conditions(more, partial))
        yield self.confirmed(more, more.pairs(orders=True))
        yield self._isolate_one(search)
        yield self.confirmed(search, self._read_besides(search, self._value_edits(search)))
        yield self._name_common(search, search.pairs())

    def besides_nan(self, search: MistakeSearch) -> list[Explanation]:
        """Return the explanation of all answers without NaN in place of promised numbers.

        Another mistake makes the NaN, as torch's attention does for causality with a scale of zero.
        Such answers take no part in the search, and the NaN gets no name.
        """
        left = list(filter(has_no_nan, search.observed))
        if len(left) == len(search.observed) or not any(one.margin > 1.0 for one in left):
            return []
        more = self._searching(left, search)
        combined, near, resized = (list(filter(has_no_nan, some)) for some in self._unseen())
        unseen = [*combined, *near, *resized]
        singles = [made for made in more.singles() if self._explains_all(made, unseen)]
        if singles:
            return explanations_of(singles)
        entry = precision_entry(self.subject, spread_over(more.observed))
        if entry is None and not more.gross:
            entry = scale_entry(self.subject, [(one.inputs, one.output) for one in left])
        if entry is not None:
            return [Explanation(entry=entry)]
        searched = [*left, *near, *resized]
        sources = (self.subject, search.mistakes, search.acted, searched, self._reader, more)
        stated = StatementSearch(*sources, counts=has_no_nan)
        found = chain(stated.explain_every_call(), islice(stated.explain_conditions(), 1))
        return explanations_of(next(filter(None, found), []))

    def singles(self, search: MistakeSearch) -> list[Combination]:
        """Return mistakes that alone explain every answer, if need be with zeros for their NaN."""
        return search.singles() or self._zero_nan(search)

    def _zero_nan(self, search: MistakeSearch) -> list[Combination]:
        zeroed = [answer for answer in search.observed if _has_zeroed_rows(answer)]
        variants: list[NamedMistake] = []
        for one in search.mistakes if zeroed else ():
            with suppress(NotExpressible):
                for answer in zeroed[:MOST_ZEROED]:
                    touched = search.acted.touches(one, answer.inputs)
                    if touched and not search.acted.answer(one, answer.inputs).all_finite:
                        variants.append(_zeros_for_nan(one))
                        break
        self._kept += variants
        found = search.search_among(variants).singles() if variants else []
        wrong = [answer for answer in search.observed if answer.margin > 1.0]
        return [made for made in found if any(_makes_numbers(made, one, search) for one in wrong)]

    def _isolate_one(self, search: MistakeSearch) -> list[Explanation]:
        _, near, resized = self._unseen()
        answers = (answer_to(self.subject, one) for one in _leaving_one(self.subject))
        apart = [one for one in answers if one is not None]
        telling = [*filter(_is_small, resized), *apart]
        more = self._searching([*search.observed, *near, *resized, *apart], search)
        return self.confirmed(more, more.pairs(more.explaining_any(telling), orders=True))

    def _value_edits(self, search: MistakeSearch) -> list[NamedMistake]:
        """Return edits that make the wrong answers to calls of one key, whose weight must be 1."""
        _, near, resized = self._unseen()
        every = (*search.observed, *near, *resized)
        wrong = [a for a in every if a.margin > 1.0 and a.inputs.geometry.key_length == 1]
        found = [one for one in edits_making(wrong) if self._explains_all((one,), wrong)]
        self._kept += found
        return sorted(found, key=lambda one: len(one.sentence))[:MOST_PARTIAL]

    def confirmed(self, search: MistakeSearch, pairs: Sequence[Combination]) -> list[Explanation]:
        """Return the pairs, in the right order, that also explain answers to all pairs of options.

        Empty if pairs of several names differ on these answers: the second mistake then explains
        only open elements, and remains unknown.
        """
        told = search.told_apart(pairs) or self._told_apart_at_equal_sizes(pairs)
        if not told:
            return []
        combined, near, resized = self._unseen()
        orders = chain.from_iterable(map(permutations, told))
        found = [one for one in orders if self._explains_all(one, combined, near)]
        every = (*search.observed, *combined, *near, *resized)
        found = [
            one for one in found if not any(self._fits_by_width(one, answer) for answer in every)
        ]
        explained = explanations_of(found)
        first = explained[0].made if explained else ()
        alike = all(
            answer_alike(self.subject, first, one.made, answer.inputs)
            for one in explained[1:]
            for answer in (*combined, *near)
        )
        return explained if alike else []

    def _fits_by_width(self, made: Combination, answer: BatteryAnswer) -> bool:
        """Whether a pair explains an answer only by the wider bound of its second mistake.

        In this case one mistake alone does not explain the answer, though both answers agree. Rows
        that the second leaves without keys are a change: the pair says nothing of them.
        """
        oracle, declared = self.subject.oracle, self.subject.declaration.semantics
        for one in made if answer.fits else ():
            if explains(self.subject, (one,), answer):
                continue
            with suppress(NotExpressible):
                alone = act(oracle, declared, (one,), answer.inputs)
                both = act(oracle, declared, made, answer.inputs)
                if both.output.shape == alone.output.shape == answer.output.shape:
                    open_alike = answer.leaves_open_alike(alone, both)
                    near = within(both.output, alone.output, answer.exact.bound)
                    if open_alike and bool(near.all()):
                        return True
        return False

    def _name_common(
        self, search: MistakeSearch, pairs: Sequence[Combination]
    ) -> list[Explanation]:
        """Return the mistake common to all pairs, if it alone explains nearly every answer.

        The second mistake is one of several that the remaining answers do not tell apart.
        """
        first = pairs[0] if pairs else ()
        one = next((m for m in first if all(any(m is n for n in pair) for pair in pairs)), None)
        if one is None or len(search.unexplained(one)) > FEW_LEFT * len(search.observed):
            return []
        combined, near, _ = self._unseen()
        found = [pair for pair in pairs if self._explains_all(pair, combined, near)]
        others = list(dict.fromkeys(two.name for pair in found for two in pair if two is not one))
        if not others:
            return []
        listed = ", ".join(others[:MOST_PARTIAL]) + ", …" * (len(others) > MOST_PARTIAL)
        rest = listed if len(others) == 1 else f"one of these: {listed}"
        entry = named_entry(
            one.name, f"{one.sentence}; besides that {rest}", one.fix, 1.0 / len(others)
        )
        return [Explanation(entry=entry, made=(one,), others=tuple(found))]

    def _told_apart_at_equal_sizes(self, pairs: Sequence[Combination]) -> list[Combination]:
        """Return the pairs that explain answers with all sizes equal.

        Mistakes that need equal sizes show there; elsewhere the pairs may agree. Empty if several
        names are left.
        """
        if not pairs:
            return []
        more = self._searching(answers_at_equal_sizes(self.subject), None)
        left = [pair for pair in pairs if more.explains_every(pair)]
        return left if len({frozenset(one.name for one in pair) for pair in left}) == 1 else []

    def _explains_all(self, made: Combination, *answers: Sequence[BatteryAnswer]) -> bool:
        return all(explains(self.subject, made, one) for one in chain.from_iterable(answers))

    def _read_besides(
        self, search: MistakeSearch, partial: Sequence[NamedMistake]
    ) -> list[Combination]:
        for place, one in enumerate(partial[:MOST_PARTIAL]):
            stated = self._besides(one, search.unexplained(one), edited=place < MOST_EDITED)
            pairs = [pair for pair in search.completing(one, stated) if search.explains_every(pair)]
            if pairs:
                return [min(pairs, key=lambda pair: len(pair[1].sentence))]
        return []

    def _besides(
        self, one: NamedMistake, left: Sequence[BatteryAnswer], *, edited: bool
    ) -> list[NamedMistake]:
        stated = statements(self.subject, left, (one,))
        if edited:
            stated += edits_making(left, (one,))
            stated += fitted_mistakes(left, families(), (one,))
        self._kept += stated
        return stated

    def _besides_under_conditions(
        self, search: MistakeSearch, partial: Sequence[NamedMistake]
    ) -> list[Combination]:
        """Return a pair of a mistake that explains nearly all answers and a limited statement.

        The conditions of the statement spare right answers; they are confirmed with new values and
        at new sizes.
        """
        observed = [*search.observed, *self._unseen()[0]]
        for place, one in enumerate(partial[:MOST_PARTIAL]):
            left = [a for a in observed if not explains(self.subject, (one,), a)]
            if not 1 < len(left) <= PART_LEFT * len(observed):
                continue
            stated = self._besides(one, left, edited=place < MOST_EDITED)
            completing = (two for two in stated if self._explains_all((one, two), left))
            for two in sorted(completing, key=lambda two: len(two.sentence))[:MOST_PARTIAL]:
                narrowed = self._narrowed(one, two, left, observed)
                if narrowed is not None:
                    return [(one, narrowed)]
        return []

    def _narrowed(
        self,
        one: NamedMistake,
        two: NamedMistake,
        left: Sequence[BatteryAnswer],
        observed: list[BatteryAnswer],
    ) -> NamedMistake | None:
        """Limit the second mistake to the conditions of answers that the first leaves unexplained.

        Answers that contradict the pair join ``observed`` for the next round.
        """
        for round_number in range(1, MOST_ROUNDS + 1):
            others = [a.inputs for a in observed if not explains(self.subject, (one, two), a)]
            conditions = telling_apart([answer.inputs for answer in left], others)
            if not conditions:
                return None
            narrowed = made_under(two, conditions)
            self._kept.append(narrowed)
            further = self._further(narrowed, left, observed, (round_number + 1) * OTHER_VALUES)
            if self._explains_all((one, narrowed), further):
                return narrowed
            observed += further
        return None

    def _further(
        self,
        two: NamedMistake,
        left: Sequence[BatteryAnswer],
        observed: Sequence[BatteryAnswer],
        seed: int,
    ) -> list[BatteryAnswer]:
        further = answers_to_pairs(self.subject, seed)
        problem = next((one.problem for one in left if one.problem is not None), None)
        if problem is None or not two.sizes:
            return further
        seen = {one.inputs.geometry for one in observed}
        sized = draw_unseen_sizes(self.subject, problem, two.sizes, seen)
        return [*further, *answers_to(self.subject, list(sized))]


def _sparing(one: NamedMistake, search: MistakeSearch) -> NamedMistake:
    """Limit a mistake to a condition of all wrong answers that spares the right ones."""
    wrong = [answer.inputs for answer in search.observed if answer.margin > 1.0]
    spoiled = [answer.inputs for answer in search.unexplained(one) if answer.margin <= 1.0]
    conditions = (
        condition
        for condition in CONDITIONS
        if all(map(condition.holds, wrong)) and not any(map(condition.holds, spoiled))
    )
    sparing = next(conditions, None) if spoiled else None
    return one if sparing is None else made_under(one, [sparing])


def has_no_nan(answer: BatteryAnswer) -> bool:
    """Whether an answer has no NaN where a number is promised."""
    if not answer.fits:
        return True
    promised = answer.exact.output.isfinite() & answer.judged
    return not bool((answer.output.isnan() & promised).any())


def _makes_numbers(made: Combination, answer: BatteryAnswer, search: MistakeSearch) -> bool:
    """Whether a mistake makes nonzero elements wrong: zeroed rows alone prove nothing."""
    acted = search.acted.answer(made[0], answer.inputs).output
    if answer.wrong is None or acted.shape != answer.wrong.shape:
        return False
    return bool((answer.wrong & (acted != 0.0)).any())


def _has_zeroed_rows(answer: BatteryAnswer) -> bool:
    if answer.wrong is None or not bool((rows := answer.wrong.any(dim=-1)).any()):
        return False
    call = DeclaredCall(inputs=answer.inputs, semantics=answer.subject.declaration.semantics)
    nothing = call.answer_of(torch.zeros_like(answer.exact.core.output))
    zeroed = within(answer.output, nothing, answer.exact.bound).all(dim=-1)
    return bool((zeroed & rows).any())


def _zeros_for_nan(one: NamedMistake) -> NamedMistake:
    sentence = f"{one.sentence}, and rows that it makes NaN are set to zero"
    zeroed = golden.Edit("output", change=_zero_nan_rows)
    return dataclasses.replace(one, edits=(*one.edits, zeroed), sentence=sentence)


def _zero_nan_rows(output: Tensor) -> Tensor:
    return output.masked_fill(output.isnan().any(dim=-1, keepdim=True), 0.0)


def _is_small(answer: BatteryAnswer) -> bool:
    sizes = answer.inputs.geometry
    return (
        min(sizes.batch, sizes.num_heads, sizes.query_length) == 1 or sizes.key_length <= FEW_KEYS
    )


def _leaving_one(subject: Subject) -> Iterator[Inputs]:
    """Yield calls in which mistakes of one kind change nothing."""
    problem = fitted_problem(subject, BatteryEntry(sizes=CUBE, seed=51))
    if problem is None:
        return
    inputs = subject.inputs(problem).replace(generic=False)
    if not inputs.is_layer:
        if inputs.mode == "separate":
            yield inputs.with_tokens(query=torch.zeros_like(inputs.query))
            yield inputs.with_tokens(key=torch.zeros_like(inputs.key))
            yield inputs.with_tokens(value=normalize(inputs.value, dim=-1))
    elif subject.candidate.draws_weights:
        weights = known_weights(inputs)
        yield inputs.replace(weights=_change_matrices(weights, torch.zeros_like, "q"))
        if weights.o is not None and weights.o.shape == weights.o.T.shape:
            yield inputs.replace(weights=_change_matrices(weights, _identity, "o"))
        if weights.q.shape == weights.v.shape == weights.q.T.shape:
            yield inputs.replace(weights=_change_matrices(weights, _identity, "q", "k", "v", "o"))


def _change_matrices(
    weights: golden.ProjectionWeights, change: Callable[[Tensor], Tensor], *roles: str
) -> golden.ProjectionWeights:
    """Change the matrices of projections and zero their biases."""
    changed: dict[str, Tensor] = {}
    for role in roles:
        matrix, bias = getattr(weights, role), getattr(weights, f"{role}_bias")
        if matrix is not None:
            changed[role] = change(matrix)
        if bias is not None:
            changed[f"{role}_bias"] = torch.zeros_like(bias)
    return dataclasses.replace(weights, **changed)


def _identity(matrix: Tensor) -> Tensor:
    return torch.eye(*matrix.shape, dtype=matrix.dtype)
