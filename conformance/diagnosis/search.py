"""The search for mistakes whose acted answers are the candidate's on every problem."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property, reduce
from itertools import chain, islice, takewhile
from operator import or_
from typing import Final

import torch

from ..clauses.subject import Subject
from ..oracle.comparison import GROSS
from ..problems.inputs import Inputs
from ..tolerance import model
from .agreement import BatteryAnswer, RowComparison, within
from .conditions import plainness
from .mistaken_answer import ActedAnswers, Combination, MistakenAnswer, act, acted_answers
from .mistakes import NamedMistake, NotExpressible, Where, deciding_properties
from .narrowing import MOST_CONDITIONS, Narrowed, Narrowing

USUAL_WAYS: Final = 3
# The fewest wrong answers from which conditions are learnt.
FEWEST_WRONG: Final = 3
# Mistakes that explain a part of the wrong answers and for which a second one is sought.
MOST_PARTIAL: Final = 4
# Answers that preselect the mistakes which explain the most.
COUNTED: Final = 48
# Mistakes for which conditions are learnt: those of the shortest text.
MOST_NARROWED: Final = 12
# Logits that are acted out in search of pairs, each problem counted as no smaller than the least. A
# count and not a time: a slow machine gives the same names. Some 1,200 problems, or a second.
MOST_LOGITS: Final = 300_000
LEAST_LOGITS: Final = 256
# A mistake with the problems whose answer it may change.
Touching = tuple[NamedMistake, int]
# The part of the logits that is left for equivalents of the first pair.
REST_OF_LOGITS: Final = 0.2
# Logits that are acted out in search of a second mistake beside one that explains the plainest.
MOST_LOGITS_OF_COMPLETED: Final = 5 * MOST_LOGITS


class MistakeSearch:
    """Verdicts on mistakes, one problem after another, each computed once.

    Sets of problems are integers with bit ``i`` for the problem ``observed[i]``. Verdicts of an
    ``earlier`` search on shared answers are reused.
    """

    def __init__(
        self,
        subject: Subject,
        observed: Sequence[BatteryAnswer],
        mistakes: Sequence[NamedMistake],
        acted: ActedAnswers | None = None,
        *,
        earlier: MistakeSearch | None = None,
    ) -> None:
        self.subject = subject
        self.declared = subject.declaration.semantics
        self.acted = acted or acted_answers(subject)
        self._given = observed
        # Gross errors first: a mistake that changes nothing would pass the rest.
        self.observed = sorted(observed, key=_order)
        sizes = [answer.margin for answer in self.observed]
        self.right = _bits(size <= 1.0 for size in sizes)
        self.wrong = _bits(size > 1.0 for size in sizes)
        self._gross = _bits(size > GROSS for size in sizes)
        self.gross = bool(self._gross)
        self.mistakes = self._possible(mistakes)
        # Indices of answers: the first is grossly wrong and cheap and refutes most mistakes; those
        # that refuted a mistake last follow.
        self._refuting = sorted(range(len(self.observed)), key=self._dearness)
        self._touched: dict[tuple[int, int], bool] = {}
        self._touching: dict[int, int] = {}
        self._properties: dict[Where, int] = {}
        self._judged: dict[int, int] = {}
        self._explained: dict[int, int] = {}
        self._unable: dict[int, int] = {}  # problems on which a mistake cannot be made
        self._in_part: set[tuple[int, ...]] = set()  # pairs that cannot be made on all problems
        self._logits = 0  # of all problems acted out so far
        # The pair acted out last, with its answers by the inputs' numbers.
        self._pair: tuple[Combination, dict[int, MistakenAnswer]] = ((), {})
        self._compared = RowComparison(subject, self.acted)
        if earlier is not None:
            self._take_over(earlier)

    def search_among(self, mistakes: Sequence[NamedMistake]) -> MistakeSearch:
        """Return the search among other mistakes, which must outlive it."""
        _ = self._narrowing  # rows are compared once for all searches among these answers
        other = copy(self)
        other.mistakes = self._possible(mistakes)
        other.__dict__.pop("partial", None)
        return other

    def _possible(self, mistakes: Sequence[NamedMistake]) -> list[NamedMistake]:
        return [
            mistake
            for mistake in mistakes
            if mistake.speaks_at(self.declared)
            and (not mistake.changes or mistake.changed_point(self.declared) != self.declared)
            and mistake.is_about(self.subject.declaration)
        ]

    def singles(self) -> list[Combination]:
        """Return the mistakes that alone explain every answer."""
        return [
            (one,)
            for one in self.mistakes
            if not self._refuted(one) and self.explains_every((one,))
        ]

    def explaining(self) -> Iterator[NamedMistake]:
        """Yield the mistakes that alone explain every answer, shortest text first."""
        shortest = sorted(self.mistakes, key=lambda one: len(one.sentence))
        return (one for one in shortest if self.explains_every((one,)))

    def narrowed(self, most: int = MOST_CONDITIONS) -> list[Narrowed]:
        """Return the mistakes that explain every wrong row, under the fewest sufficient conditions.

        At most ``most`` conditions are used. Ties go to mistakes that are no special cases, then to
        the fewest spared rows.
        """
        if self.wrong.bit_count() < FEWEST_WRONG:
            return []
        narrowing = self._narrowing
        plainest = sorted(self.mistakes, key=lambda one: len(one.sentence))
        return self._plainest_narrowed(filter(narrowing.explains_wrong, plainest), most)

    def limited(self) -> list[Narrowed]:
        """Return the mistakes made wherever possible, with the condition that says where."""
        if self.wrong.bit_count() < FEWEST_WRONG:
            return []
        every = (1 << len(self.observed)) - 1
        likely = [one for one in self.mistakes if not self._fails(one, every)]
        limited = [one for one in likely if self._unable.get(id(one))]
        return self._plainest_narrowed(sorted(limited, key=lambda one: len(one.sentence)), 1)

    def _plainest_narrowed(self, likely: Iterable[NamedMistake], most: int) -> list[Narrowed]:
        narrowed: dict[str, Narrowed] = {}
        for mistake in islice(likely, MOST_NARROWED):
            # A further way to make a known mistake adds nothing.
            learnt = None if mistake.name in narrowed else self._narrowing.narrowed(mistake, most)
            if learnt is not None:
                narrowed[mistake.name] = learnt
                most = min(most, learnt.conditions)  # what takes more is not the plainest
        fewest = min(map(_plainness, narrowed.values()), default=None)
        chosen = [one for one in narrowed.values() if _plainness(one) == fewest]
        if len(chosen) == 1 and any(one.name == "one query" for one in chosen[0].literals):
            # At a single size, a size and a constant are alike: the first is the plainest.
            alike = (one for one in narrowed.values() if one.literals == chosen[0].literals)
            chosen = [next(alike)]
        return chosen

    @cached_property
    def _narrowing(self) -> Narrowing:
        """The rows of the answers: wrong ones first, at informative sizes.

        Other searches have acted out on these answers already.
        """
        return Narrowing(sorted(self._given, key=_telling), self._compared)

    def pairs(
        self, partial: Sequence[NamedMistake] | None = None, *, orders: bool = False
    ) -> list[Combination]:
        """Return pairs that explain every answer; one mistake alone explains the plainest answer.

        This mistake comes from ``partial``, else from the searched mistakes, as many as the budget
        of logits allows. With ``orders`` both orders of a pair are tried.
        """
        end = self._logits + MOST_LOGITS_OF_COMPLETED
        for one in (self.partial if partial is None else partial)[:MOST_PARTIAL]:
            completing = self.completing(one, self._usual_ways(), orders=orders)
            tried = takewhile(lambda _pair: self._logits <= end, completing)
            pairs = [pair for pair in tried if self.explains_every(pair)]
            if pairs:
                return pairs
        return []

    def told_apart(self, pairs: Sequence[Combination]) -> list[Combination]:
        """Drop pairs that cannot be made where they would differ, if pairs have several names."""
        several = len({frozenset(one.name for one in made) for made in pairs}) > 1
        return [one for one in pairs if not several or tuple(map(id, one)) not in self._in_part]

    def supported_pairs(self) -> list[Combination]:
        """Return the pairs that explain every answer, as many as the budget of logits allows."""
        end = self._logits + MOST_LOGITS
        pairs: list[Combination] = []
        for pair in self._promising(end):
            if self._logits > end:
                break
            if self.explains_every(pair):
                pairs.append(pair)
                # Equivalent pairs have equal support, so they come soon.
                end = min(end, self._logits + int(MOST_LOGITS * REST_OF_LOGITS))
        return pairs

    @cached_property
    def partial(self) -> list[NamedMistake]:
        """Mistakes that explain the plainest wrong answer, the most explaining first.

        The more frequent of two mistakes is likely among these. Of mistakes that explain the same
        answers one is kept.
        """
        return self._explaining_any([0]) if self.gross else []  # gross errors come first

    def explaining_any(self, answers: Sequence[BatteryAnswer]) -> list[NamedMistake]:
        """Return mistakes that alone explain any of the gross errors, the most explaining first."""
        chosen, every = set(answers), enumerate(self.observed)
        return self._explaining_any([i for i, a in every if a in chosen and self._gross >> i & 1])

    def _explaining_any(self, places: Sequence[int]) -> list[NamedMistake]:
        """Return the few best of the mistakes that explain an answer at any of the places.

        Answers spread over all preselect the mistakes that are tried on all.
        """
        some: dict[int, list[NamedMistake]] = defaultdict(list)
        spread = range(0, len(self.observed), len(self.observed) // COUNTED + 1)
        for one in self._usual_ways():
            if any(self._may_change(one, i) and self._explains(one, i) for i in places):
                some[self._explained_among(one, spread)].append(one)
        near = islice(sorted(some, key=_fewest_last), MOST_PARTIAL)
        kept: dict[int, NamedMistake] = {}
        for one in chain.from_iterable(some[explained][:MOST_PARTIAL] for explained in near):
            kept.setdefault(self._explained_among(one, range(len(self.observed))), one)
        return [kept[explained] for explained in sorted(kept, key=_fewest_last)]

    def _explained_among(self, mistake: NamedMistake, places: Sequence[int]) -> int:
        return _bits_at(index for index in places if self._explains(mistake, index))

    def unexplained(self, mistake: NamedMistake) -> list[BatteryAnswer]:
        """Return the answers that a mistake alone does not explain."""
        return [one for i, one in enumerate(self.observed) if not self._explains(mistake, i)]

    def completing(
        self, one: NamedMistake, others: Sequence[NamedMistake], *, orders: bool = False
    ) -> Iterator[Combination]:
        """Yield pairs that explain an answer unexplained by the first mistake.

        The cheapest answer that the first mistake cannot affect is tested: only the second acts
        there. The other answers remain to be judged.
        """
        every = range(len(self.observed))
        left = [index for index in every if not self._explains(one, index)]
        if not left:
            return
        apart = [index for index in left if not self._may_change(one, index)]
        place = min(apart or left, key=self._cost)
        for two in others:
            if one.name == two.name or not self._may_change(two, place):
                continue
            turned = orders and one.changes_stage_of(two)
            for pair in ((one, two), (two, one)) if turned else ((one, two),):
                if self._explains(two, place) if apart else self._judge(pair, place):
                    yield pair

    def _promising(self, end: int) -> list[Combination]:
        supported: list[tuple[int, Combination]] = []
        for (one, first), (two, second) in self._covering():
            alone = ((one, first & ~second), (two, second & ~first))
            if not any(self._fails(mistake, problems) for mistake, problems in alone):
                # Support: wrong answers that only one of the two may change.
                supported.append(((self.wrong & (first ^ second)).bit_count(), (one, two)))
            if self._logits > end:
                break
        return [pair for _, pair in sorted(supported, key=lambda entry: -entry[0])]

    def _covering(self) -> Iterator[tuple[Touching, Touching]]:
        """Yield pairs that may change every wrong answer, with the problems of each mistake."""
        ways = self._usual_ways()
        # One must change an answer that refutes the other; few answers are looked at.
        against = [self._refuted(one) & -self._refuted(one) for one in ways]
        telling = [bit.bit_length() - 1 for bit in set(against) if bit]
        changed = [_bits_at(i for i in telling if self._may_change(one, i)) for one in ways]
        some = list(zip(ways, against, changed, strict=True))
        for place, (one, needed, offered) in enumerate(some, start=1):
            for two, other, change in some[place:]:
                if needed & ~change or other & ~offered or one.name == two.name:
                    continue
                first, second = self._touches(one), self._touches(two)
                if not (first & self.wrong and second & self.wrong):
                    continue
                if self.wrong & ~(first | second):
                    continue
                if one.changes.keys().isdisjoint(two.changes):
                    yield (one, first), (two, second)

    def _usual_ways(self) -> list[NamedMistake]:
        """Drop rare ways to make a mistake: their pairs are too many."""
        ways: Counter[str] = Counter()
        usual = []
        for mistake in self.mistakes:
            ways[mistake.name] += 1
            if ways[mistake.name] <= USUAL_WAYS:
                usual.append(mistake)
        return usual

    def _take_over(self, earlier: MistakeSearch) -> None:
        self._compared = earlier._compared
        places = {answer: index for index, answer in enumerate(self.observed)}
        moved = [(i, places[one]) for i, one in enumerate(earlier.observed) if one in places]
        for name in ("_judged", "_explained", "_unable"):
            before, now = getattr(earlier, name), getattr(self, name)
            # Most mistakes were refuted by the same few answers: each set is translated once.
            sets = {b: _bits_at(to for i, to in moved if b >> i & 1) for b in set(before.values())}
            now.update((key, sets[bits]) for key, bits in before.items())

    def _refuted(self, mistake: NamedMistake) -> int:
        return self._judged.get(id(mistake), 0) & ~self._explained.get(id(mistake), 0)

    def _fails(self, mistake: NamedMistake, problems: int) -> bool:
        if problems & self._refuted(mistake):
            return True
        unknown = problems & ~self._judged.get(id(mistake), 0)
        while unknown:
            lowest = unknown & -unknown
            if not self._explains(mistake, lowest.bit_length() - 1):
                return True
            unknown ^= lowest
        return False

    def _explains(self, mistake: NamedMistake, index: int) -> bool:
        bit, key = 1 << index, id(mistake)
        if not self._judged.get(key, 0) & bit:
            touched = self._may_change(mistake, index)
            good = self._judge((mistake,), index) if touched else bool(self.right & bit)
            self._judged[key] = self._judged.get(key, 0) | bit
            self._explained[key] = self._explained.get(key, 0) | (bit if good else 0)
        return bool(self._explained[key] & bit)

    def explains_every(self, made: Combination) -> bool:
        """Whether mistakes together explain every answer, and not only because errors are small."""
        for place, index in enumerate(self._refuting):
            alone = len(made) == 1
            if not (self._explains(made[0], index) if alone else self._judge(made, index)):
                self._refuting.insert(min(place, 1), self._refuting.pop(place))
                return False
        if len(made) == 1 and self._unable.get(id(made[0])):
            return False  # it is made under a condition
        return self._leaves_little(made) and self._each_matters(made)

    def _each_matters(self, made: Combination) -> bool:
        wrong = [i for i in range(len(self.observed)) if self.wrong >> i & 1]
        return len(made) == 1 or all(
            any(self._matters(one, made, i) for i in wrong) for one in made
        )

    def _matters(self, left: NamedMistake, made: Combination, index: int) -> bool:
        answer, rest = self.observed[index], tuple(one for one in made if one is not left)
        acted = other = None
        with suppress(NotExpressible):
            acted, other = (self._acted(each, answer.inputs) for each in (made, rest))
        # Only one of the two can be made.
        if acted is None or other is None or acted.output.shape != answer.output.shape:
            if not self._explains(left, index) or all(self._explains(one, index) for one in rest):
                return False
            return answer.closeness(self._acted((left,), answer.inputs))[-1] > 0.0
        both, one = acted.output, other.output
        if both.shape != one.shape:
            return True
        fits = both.shape == answer.exact.output.shape
        bound = answer.exact.bound if fits else torch.zeros_like(both)
        differ, judged = ~within(both, one, bound), answer.judged_with(acted)
        if judged is not None:  # open elements count where they match the acted answer
            differ &= torch.from_numpy(judged) | within(answer.output, both, bound)
        return bool(differ.any())

    def _leaves_little(self, made: Combination) -> bool:
        """Whether next to nothing of all errors is left; otherwise any small error would fit."""
        every = [answer for i, answer in enumerate(self.observed) if self.wrong >> i & 1]
        wrong, acted = [], []
        for answer in every:
            with suppress(NotExpressible):  # a single mistake explains the answer
                acted.append(self._acted(made, answer.inputs))
                wrong.append(answer)
        if not wrong:
            return False
        if all(map(BatteryAnswer.leaves_little, wrong, acted)):
            return True
        closeness = map(BatteryAnswer.closeness, wrong, acted)
        left, total, more = map(sum, zip(*closeness, strict=True))
        # A mistake that is judged at few of the wrong elements explains nothing.
        return more > 0.0 and left <= model.LARGEST_UNEXPLAINED * total

    def _judge(self, made: Combination, index: int) -> bool:
        answer = self.observed[index]
        self._logits += self._cost(index)
        with suppress(NotExpressible):
            acted = self._acted(made, answer.inputs)
            if acted.output.shape == answer.output.shape:
                return answer.agrees(acted)
        # If one of two cannot be made, the candidate may make the other alone, or none.
        right = bool(self.right >> index & 1)
        if len(made) > 1:
            self._in_part.add(tuple(map(id, made)))
            return right or any(self._explains(one, index) for one in made)
        self._unable[id(made[0])] = self._unable.get(id(made[0]), 0) | 1 << index
        return right

    def _acted(self, made: Combination, inputs: Inputs) -> MistakenAnswer:
        if len(made) == 1:
            return self.acted.answer(made[0], inputs)
        if made is not self._pair[0]:
            self._pair = made, {}
        answers = self._pair[1]
        if id(inputs) not in answers:
            answers[id(inputs)] = act(self.subject.oracle, self.declared, made, inputs)
        return answers[id(inputs)]

    def _cost(self, index: int) -> int:
        return max(LEAST_LOGITS, self.observed[index].inputs.geometry.logits)

    def _dearness(self, index: int) -> tuple[bool, int]:
        """Order answers: those on which mistakes are refuted sooner come first."""
        gross = bool(self._gross >> index & 1)
        return not gross, self._cost(index) if gross else 0

    def _touches(self, mistake: NamedMistake) -> int:
        key = id(mistake)
        if key not in self._touching:
            deciding = deciding_properties(mistake)
            if deciding is None:
                every = range(len(self.observed))
                self._touching[key] = _bits(self._may_change(mistake, index) for index in every)
            elif mistake.speaks_at(self.declared):
                having = reduce(or_, map(self._having, deciding), 0)
                self._touching[key] = self._having(mistake.where) & having
            else:
                self._touching[key] = 0
        return self._touching[key]

    def _having(self, holds: Where) -> int:
        """Return the problems with a property, which many mistakes share; remembered."""
        if holds not in self._properties:
            self._properties[holds] = _bits(holds(answer.inputs) for answer in self.observed)
        return self._properties[holds]

    def _may_change(self, mistake: NamedMistake, index: int) -> bool:
        if mistake.is_everywhere and mistake.speaks_at(self.declared):
            return True
        key = id(mistake), index
        if key not in self._touched:
            self._touched[key] = self.acted.touches(mistake, self.observed[index].inputs)
        return self._touched[key]


def is_special_case(made: Combination, names: set[frozenset[str]]) -> bool:
    """Whether mistakes are a special case of others, whose ``names`` explain as much."""
    for mistake in made:
        others = {other.name for other in made if other is not mistake}
        if mistake.special_of and frozenset({mistake.special_of, *others}) in names:
            return True
    return False


def _plainness(narrowed: Narrowed) -> tuple[int, bool, int]:
    return narrowed.conditions, bool(narrowed.mistake.special_of), narrowed.spared


def _order(answer: BatteryAnswer) -> tuple[bool, bool, tuple[int, int]]:
    """Order answers: gross errors, other errors, right answers; plain calls before others."""
    return answer.margin <= GROSS, answer.margin <= 1.0, plainness(answer.inputs)


def _telling(answer: BatteryAnswer) -> tuple[bool, bool, bool, tuple[int, int]]:
    """Order answers: wrong ones first, among them calls with a single item, query or key last."""
    sizes = answer.inputs.geometry
    least = min(sizes.batch, sizes.query_length, sizes.key_length, sizes.head_size)
    return answer.margin <= 1.0, least == 1, answer.margin <= GROSS, _order(answer)[-1]


def _fewest_last(bits: int) -> int:
    return -bits.bit_count()


def _bits(flags: Iterable[bool]) -> int:
    return _bits_at(index for index, flag in enumerate(flags) if flag)


def _bits_at(indices: Iterable[int]) -> int:
    return sum(1 << index for index in indices)
