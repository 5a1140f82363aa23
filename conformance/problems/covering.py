"""Covering arrays: few rows in which every two, or every three, values of parameters meet.

Rules declare the values that must never meet: no row is thrown away afterwards, and combinations
that cannot be covered have a reason. The rows grow parameter by parameter (IPOG: Lei, Kacker,
Kuhn, Okun & Lawrence 2007); sets of values are integers whose bits are values, which lets plain
Python find the triples of twenty parameters in a second or two.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

# Of each side of a rule its values and all values of their parameter, as bits.
Masks = list[tuple[int, int]]


@dataclass(frozen=True)
class CoveringParameter:
    """A name and its values; the first value is the plainest."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """Values of several parameters that never meet in a row, and the reason."""

    reason: str
    sides: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Model:
    """Parameters, and rules for values that never meet."""

    parameters: tuple[CoveringParameter, ...]
    rules: tuple[Rule, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the parameters, in the order of a row's values."""
        return [parameter.name for parameter in self.parameters]


@dataclass(frozen=True, kw_only=True)
class Covering:
    """The rows of a model, and the combinations they cover.

    ``fresh`` counts for each row the combinations missing from earlier rows; ``combinations``
    counts the possible combinations, ``impossible`` the impossible combinations by reason.
    """

    rows: tuple[tuple[str, ...], ...]
    fresh: tuple[int, ...]
    combinations: int
    impossible: Mapping[str, int]


@lru_cache(maxsize=64)
def cover(model: Model, strength: int, plain: tuple[str, ...] = ()) -> Covering:
    """Rows that hold every possible combination of ``strength`` (2 or 3) values, plainest first.

    A model with fewer parameters gives all its rows. Equal models give equal rows. If ``plain`` is
    given, rows for every pair of the remaining parameters come first, with the ``plain`` parameters
    at their plainest values: a value that sends a call down another path would hide mistakes on the
    usual path.
    """
    values = _Values(model)
    strength = min(strength, len(model.parameters))
    rows = _Growth(values, strength).rows()
    if plain and strength > 1:
        rows = list(dict.fromkeys([*map(values.of_row, _usual_rows(model, plain)), *rows]))
    possible, impossible = values.counted(strength)
    return Covering(
        rows=tuple(values.spelled(row) for row in rows),
        fresh=tuple(_fresh(rows, values, strength)),
        combinations=possible,
        impossible=impossible,
    )


def first_row(model: Model, strength: int, plain: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    """The first row of :func:`cover`, found without the rest.

    None where the first row depends on the rest: where each value must be met only once.
    """
    others, fixed = _usual(model, plain)
    if min(strength, len(others.parameters)) <= 1:
        return None
    values, usual = _Values(model), _Values(others)
    row = dict(zip(others.names, usual.spelled(usual.plainest()), strict=True))
    return values.spelled(values.of_row({**row, **fixed}))


def _usual_rows(model: Model, plain: tuple[str, ...]) -> list[dict[str, str]]:
    """Rows for every pair of values of a model while the ``plain`` parameters stay plain."""
    others, fixed = _usual(model, plain)
    rows = cover(others, 2).rows if others.parameters else ((),)
    return [{**dict(zip(others.names, row, strict=True)), **fixed} for row in rows]


def _usual(model: Model, plain: tuple[str, ...]) -> tuple[Model, dict[str, str]]:
    """The model of the free parameters, and the values of the ``plain`` parameters."""
    fixed = {
        parameter.name: parameter.values[0]
        for parameter in model.parameters
        if parameter.name in plain
    }
    rules = []
    for rule in model.rules:
        if any(name in fixed and fixed[name] not in values for name, values in rule.sides):
            continue  # the rule is about values outside of these rows
        sides = tuple(side for side in rule.sides if side[0] not in fixed)
        rules.append(Rule(rule.reason, sides))
    others = tuple(parameter for parameter in model.parameters if parameter.name not in fixed)
    return Model(others, tuple(rules)), fixed


def alone(model: Model) -> list[tuple[str, ...]]:
    """The plainest row with each possible value; rows are distinct."""
    values = _Values(model)
    each = (bit for bits in values.of for bit in bits if values.can_meet(bit))
    return [values.spelled(row) for row in dict.fromkeys(map(values.plainest, each))]


class _Values:
    """The values of a model as bits, and the rules for their meeting."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.of: list[list[int]] = []
        self._bit: dict[tuple[str, str], int] = {}
        for parameter in model.parameters:
            bits = [1 << len(self._bit) + place for place in range(len(parameter.values))]
            self.of.append(bits)
            self._bit |= {
                (parameter.name, value): bit
                for value, bit in zip(parameter.values, bits, strict=True)
            }
        self.whole = [sum(bits) for bits in self.of]
        self._rules = [(self._masks(rule), rule.reason) for rule in model.rules]
        # The rules that may break when a value comes in.
        self._of_value: dict[int, list[Masks]] = {bit: [] for bits in self.of for bit in bits}
        self._ruled = 0
        for masks, _ in self._rules:
            for mask, whole in masks:
                self._ruled |= whole
                for bit in self._of_value:
                    if bit & mask:
                        self._of_value[bit].append(masks)
        self._ruled_wholes = [whole for whole in self.whole if whole & self._ruled]
        # A whole row (of the ruled parameters) by some of its values.
        self._whole_rows: dict[int, int | None] = {}

    def _masks(self, rule: Rule) -> Masks:
        masks = [sum(self._bit[name, value] for value in values) for name, values in rule.sides]
        return [(mask, self._whole_of(mask)) for mask in masks]

    def _whole_of(self, mask: int) -> int:
        return next(whole for whole in self.whole if whole & mask)

    def spelled(self, row: int) -> tuple[str, ...]:
        """The values of a whole row, in the order of the parameters."""
        return tuple(
            next(value for value, bit in zip(parameter.values, bits, strict=True) if row & bit)
            for parameter, bits in zip(self.model.parameters, self.of, strict=True)
        )

    def of_row(self, row: Mapping[str, str]) -> int:
        """The bits of a whole row, from its value for each parameter."""
        return sum(self._bit[name, value] for name, value in row.items())

    def can_meet(self, bits: int) -> bool:
        """Whether a whole row holds these values."""
        return self.can_hold(0, bits)

    def can_hold(self, row: int, wanted: int) -> bool:
        """Whether a possible row can have further values; the values are tried one by one."""
        wanted &= ~row
        while wanted:
            bit = _lowest(wanted)
            if not self.can_join(row, bit):
                return False
            row, wanted = row | bit, wanted & ~bit
        return True

    def can_join(self, row: int, value: int) -> bool:
        """Whether a possible row can have one more value.

        Mostly the remembered completion of the row can take the value, too.
        """
        row, value = row & self._ruled, value & self._ruled
        whole_row = self._whole_rows.get(row)
        if value and whole_row and row | value not in self._whole_rows:
            swapped = whole_row & ~self._whole_of(value)
            if not self._breaks(swapped, value):
                self._whole_rows[row | value] = swapped | value
                return True
        return self._completed(row | value) is not None

    def completed(self, bits: int) -> int | None:
        """Add a value for every ruled parameter; None if there is no possible row."""
        row = self._completed(bits & self._ruled)
        return None if row is None else row | bits

    def plainest(self, bits: int = 0) -> int:
        """The plainest whole row with values that can meet."""
        row = self.completed(bits) or bits
        for own, whole in zip(self.of, self.whole, strict=True):
            row |= 0 if row & whole else own[0]
        return row

    def _completed(self, bits: int) -> int | None:
        if bits not in self._whole_rows:
            self._whole_rows[bits] = self._search(bits, [masks for masks, _ in self._rules])
        return self._whole_rows[bits]

    def _search(self, bits: int, rules: list[Masks]) -> int | None:
        """The plainest possible row over all ruled parameters; None if there is none.

        Only rules that may still break are examined. A rule that leaves a parameter a single value
        decides the parameter; otherwise the parameter with the fewest values is tried.
        """
        left: dict[int, int] = {}
        active = []
        for masks in rules:
            missing = [(mask, whole) for mask, whole in masks if not bits & whole]
            if not all(bits & mask for mask, whole in masks if bits & whole):
                continue
            if not missing:
                return None
            active.append(masks)
            if len(missing) == 1:
                mask, whole = missing[0]
                left[whole] = left.get(whole, whole) & ~mask
        if not all(left.values()):
            return None
        plain = bits + sum(
            _lowest(left.get(whole, whole)) for whole in self._ruled_wholes if not bits & whole
        )
        if not any(all(plain & mask for mask, _ in masks) for masks in active):
            return plain
        open_wholes = {whole for masks in active for _, whole in masks if not bits & whole}
        allowed = {whole: left.get(whole, whole) for whole in sorted(open_wholes)}
        whole = min(allowed, key=lambda each: allowed[each].bit_count())
        values = left.get(whole, whole)
        while values:
            bit = _lowest(values)
            row = self._search(bits | bit, active)
            if row is not None:
                return row
            values &= ~bit
        return None

    def _breaks(self, bits: int, bit: int) -> bool:
        """Whether one more value breaks an unbroken rule."""
        bits |= bit
        return any(all(bits & mask for mask, _ in masks) for masks in self._of_value[bit])

    def _broken(self, bits: int) -> str:
        """The reason of a broken rule, or ""."""
        for masks, reason in self._rules:
            for mask, _ in masks:
                if not bits & mask:
                    break
            else:
                return reason
        return ""

    def _why(self, bits: int) -> str:
        """Why values cannot meet: the rule they break, or the rules broken by all completions."""
        direct = self._broken(bits)
        if direct:
            return direct
        met: dict[str, None] = {}
        for own in self.of:
            if bits & sum(own):
                continue
            reasons = [self._broken(bits | bit) for bit in own]
            if all(reasons):
                met |= dict.fromkeys(reasons)
        return "; ".join(sorted(met)) or "no value of the other parameters goes with them"

    def counted(self, strength: int) -> tuple[int, dict[str, int]]:
        """How many combinations can meet, and how many cannot, by the reason."""
        possible, reasons = 0, Counter[str]()
        for places in itertools.combinations(range(len(self.of)), strength):
            for bits in itertools.product(*(self.of[place] for place in places)):
                together = sum(bits)
                if self.can_meet(together):
                    possible += 1
                else:
                    reasons[self._why(together)] += 1
        return possible, dict(reasons.most_common())


class _Growth:
    """Rows that grow parameter by parameter, starting with the most values."""

    def __init__(self, values: _Values, strength: int) -> None:
        self.values = values
        self.strength = strength
        self.order = sorted(range(len(values.of)), key=lambda place: -len(values.of[place]))
        self._rows: list[int] = []
        # For each value of the parameter that is added: the pairs of values (the values, under the
        # key 0, at strength 2) that it has yet to meet.
        self._needed: dict[int, dict[int, int]] = {}

    def rows(self) -> list[int]:
        """All rows, whole, the plainest first."""
        if self.strength == 1:
            return self._each_once()
        first = self.values.plainest()
        started = self.order[: self.strength]
        mask = sum(self.values.whole[place] for place in started)
        self._rows = [first & mask]
        for bits in itertools.product(*(self.values.of[place] for place in started)):
            row = sum(bits)
            if row != self._rows[0] and self.values.can_meet(row):
                self._rows.append(row)
        for number in range(self.strength, len(self.order)):
            self._add(self.order[number], self.order[:number], first)
        return list(dict.fromkeys(self._whole(row) for row in self._rows))

    def _each_once(self) -> list[int]:
        """A small set of rows that contains every possible value."""
        rows: list[int] = []
        left = sum(bit for bits in self.values.of for bit in bits if self.values.can_meet(bit))
        while left:
            row = 0
            for bits in self.values.of:
                fresh = (bit for bit in bits if bit & left and self.values.can_join(row, bit))
                row |= next(fresh, 0)
            rows.append(self._whole(row))
            left &= ~rows[-1]
        return rows

    def _add(self, place: int, before: list[int], first: int) -> None:
        """Give each row a value of one more parameter; new rows for missing combinations."""
        values = self.values.of[place]
        self._needed = {value: self._combinations(value, before) for value in values}
        used = Counter[int]()
        for number, row in enumerate(self._rows):
            allowed = [value for value in values if self.values.can_join(row, value)]
            if number == 0:
                allowed = [first & self.values.whole[place]]
            best = max(allowed, key=lambda value: (self._gain(row, value), -used[value]))
            if number and not self._gain(row, best):
                continue  # any value: later needs decide
            used[best] += 1
            self._meet(number, best)
        self._fill(place)

    def _combinations(self, value: int, before: list[int]) -> dict[int, int]:
        """The partners that a value must meet, as bits; at strength 3 by the first partner."""
        partners: dict[int, int] = {}
        others = [bit for place in before for bit in self.values.of[place]]
        if self.strength <= 2:  # noqa: PLR2004 (pairs)
            return {0: sum(bit for bit in others if self.values.can_meet(value | bit))}
        for first, second in itertools.combinations(others, 2):
            apart = not any(whole & first and whole & second for whole in self.values.whole)
            if apart and self.values.can_meet(value | first | second):
                partners[first] = partners.get(first, 0) | second
                partners[second] = partners.get(second, 0) | first
        return partners

    def _gain(self, row: int, value: int) -> int:
        needed = self._needed[value]
        if self.strength <= 2:  # noqa: PLR2004 (pairs)
            return (needed[0] & row).bit_count()
        return sum((others & row).bit_count() for first, others in needed.items() if first & row)

    def _meet(self, number: int, value: int) -> None:
        """Give a row a value, and strike out the combinations met there."""
        row = self._rows[number]
        needed = self._needed[value]
        for first in list(needed):
            if first & row or not first:
                needed[first] &= ~row
                if not needed[first]:
                    del needed[first]
        if self.strength <= 2:  # noqa: PLR2004 (pairs)
            needed.setdefault(0, 0)
        self._rows[number] = row | value

    def _fill(self, place: int) -> None:
        """Put the missing combinations into gaps of rows, or into new rows."""
        for value in self.values.of[place]:
            needed = self._needed[value]
            while left := next(
                ((first, others) for first, others in needed.items() if others), None
            ):
                first, others = left
                self._place(place, value, first | _lowest(others))

    def _place(self, place: int, value: int, others: int) -> None:
        wanted = others | value
        for number, row in enumerate(self._rows):
            if number and self._has_room(row, wanted) and self.values.can_hold(row, wanted):
                break
        else:
            number = len(self._rows)
            self._rows.append(0)
        self._rows[number] |= others
        if not self._rows[number] & self.values.whole[place]:
            self._meet(number, value)
        else:
            self._meet_more(number, value)

    def _meet_more(self, number: int, value: int) -> None:
        row = self._rows[number]
        self._rows[number] = row & ~value
        self._meet(number, value)

    def _has_room(self, row: int, wanted: int) -> bool:
        """Whether a row has the wanted values, or none of their parameters."""
        return all(
            not row & whole or row & whole == wanted & whole
            for whole in self.values.whole
            if wanted & whole
        )

    def _whole(self, row: int) -> int:
        """Complete a row with a value of every parameter, in turn among the possible values."""
        for bits, whole in zip(self.values.of, self.values.whole, strict=True):
            if row & whole:
                continue
            turn = row.bit_count() + row % len(bits)
            turned = bits[turn % len(bits) :] + bits[: turn % len(bits)]
            row |= next(bit for bit in turned if self.values.can_join(row, bit))
        return row


def _lowest(bits: int) -> int:
    return bits & -bits


def _fresh(rows: Iterable[int], values: _Values, strength: int) -> Iterator[int]:
    """The number of combinations that each row is the first to cover."""
    covered: dict[int, int] = {}
    for row in rows:
        own = [row & whole for whole in values.whole]
        new = 0
        for some in itertools.combinations(own, strength - 1):
            key = sum(some)
            later = row & ~(2 * some[-1] - 1) if some else row
            earlier = covered.get(key, 0)
            new += (later & ~earlier).bit_count()
            covered[key] = earlier | later
        yield new
