"""Conditions of a call, and rows of the answer, to which a mistake is limited.

A mistake that explains every wrong row may spoil right rows. The condition is a property of all
wrong rows that the spared rows lack.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..base.geometry import PROBE
from ..problems.inputs import Inputs
from .agreement import BatteryAnswer, RowComparison
from .conditions import FINER, SIZES, Condition, SizeLimit, limits, size_limit, size_limits
from .mistakes import NamedMistake

# How many conditions a mistake may have: of calls and rows, and of calls alone (more would be
# chance).
MOST_CONDITIONS: Final = 3
MOST_OF_CALLS: Final = 2
# Answers after which the rows are told apart for the first time; the number doubles each time.
FIRST_LOOK: Final = 4
# The fewest indices that show a step, and sizes of tiles of which every second may be wrong.
_FEWEST_REGULAR: Final = 2
_TILES: Final = (2, 4, 8, 16, 32, 64)
_ORDINALS: Final = ("first, third", "second, fourth")


@dataclass(frozen=True)
class Part:
    """Rows of an answer: ``holds`` gets the inputs and each row's batch, head and query index.

    ``head`` is None for a layer, whose rows are made of all heads.
    """

    name: str
    words: str
    holds: Callable[[Inputs, Tensor, Tensor | None, Tensor], Tensor | None]


Limitation = Condition | Part


def _index(name: str, words: str, holds: Callable[[Tensor, int], Tensor], axis: str) -> Part:
    def holds_in_rows(
        inputs: Inputs, item: Tensor, head: Tensor | None, query: Tensor
    ) -> Tensor | None:
        index = {"item": item, "head": head, "query": query}[axis]
        sizes = inputs.geometry
        count = {"item": sizes.batch, "head": sizes.num_heads, "query": sizes.query_length}[axis]
        return None if index is None else holds(index, count)

    return Part(name, words, holds_in_rows)


def _are_without_keys(
    inputs: Inputs, item: Tensor, head: Tensor | None, query: Tensor
) -> Tensor | None:
    empty = ~inputs.allowed(inputs.point).any(dim=-1)
    if head is None:
        return inputs.answer_rows(empty, inputs.point)[item, query, 0]
    return empty[item, head, query]


def _have_hidden_keys(
    inputs: Inputs, item: Tensor, head: Tensor | None, query: Tensor
) -> Tensor | None:
    hidden = ~inputs.allowed(inputs.point).all(dim=-1)
    if head is None:
        return inputs.answer_rows(hidden, inputs.point)[item, query, 0]
    return hidden[item, head, query]


def _past_the_keys(
    inputs: Inputs, _item: Tensor, _head: Tensor | None, query: Tensor
) -> Tensor | None:
    return query >= inputs.geometry.key_length


_SEVERAL: Final = {"query": "queries", "item": "batch items", "head": "heads"}


def _index_limit(axis: str, number: int, *, above: bool) -> Part:
    if above:
        words = f"for {_SEVERAL[axis]} from index {number + 1} on"
    else:
        words = f"for the first {number + 1} {_SEVERAL[axis]}"
    return _index(words, words, lambda index, _n: (index > number) == above, axis)


def _short_tile_part(size: int) -> Part:
    words = f"for queries past the last whole tile of {size}"
    return _index(f"short tile of {size}", words, lambda i, n: i >= n // size * size, "query")


# The first parts depend on the mask, the others on indices and sizes alone.
OF_MASKS: Final = 2
PARTS: Final[tuple[Part, ...]] = (
    Part("rows without keys", "in rows without keys", _are_without_keys),
    Part("rows with hidden keys", "in rows from which some key is hidden", _have_hidden_keys),
    *(
        part
        for axis, one, several in (
            ("item", "batch item", "batch items"),
            ("head", "head", "heads"),
            ("query", "query", "queries"),
        )
        for part in (
            _index(f"first {axis}", f"for the first {one}", lambda i, _n: i == 0, axis),
            _index(
                f"not first {axis}", f"for {several} after the first", lambda i, _n: i > 0, axis
            ),
            _index(f"last {axis}", f"for the last {one}", lambda i, n: i == n - 1, axis),
            _index(
                f"not last {axis}", f"for {several} before the last", lambda i, n: i < n - 1, axis
            ),
            _index(f"odd {axis}", f"for {several} of odd index", lambda i, _n: i % 2 == 1, axis),
            _index(f"even {axis}", f"for {several} of even index", lambda i, _n: i % 2 == 0, axis),
        )
    ),
    Part("past the keys", "for queries past the number of keys", _past_the_keys),
    *(_short_tile_part(size) for size in (2, 4, 8, 16, 32)),
)


@dataclass(frozen=True, kw_only=True)
class Narrowed:
    """A mistake with the conditions under which it is made.

    ``mistake`` is limited to them, ``everywhere`` is not. ``spared`` counts the rows that
    ``everywhere`` would have spoilt.
    """

    mistake: NamedMistake
    everywhere: NamedMistake
    literals: tuple[Limitation, ...]
    spared: int

    @property
    def conditions(self) -> int:
        """The number of conditions."""
        return len(self.literals)


class Narrowing:
    """Observed answers, from which the conditions of mistakes are learnt."""

    def __init__(self, observed: Sequence[BatteryAnswer], compared: RowComparison) -> None:
        wrong = [answer for answer in observed if answer.margin > 1.0]
        self.observed = [*wrong, *_most_alike_first(observed, wrong)]
        self._compared = compared
        # Wrong answers that refuted a mistake last come first; at the start, those on which most
        # mistakes have been acted out already.
        self._wrong = sorted(wrong, key=lambda answer: -compared.acted.count(answer.inputs))

    def explains_wrong(self, mistake: NamedMistake) -> bool:
        """Whether a mistake explains every wrong row."""
        for place, answer in enumerate(self._wrong):
            rows = self._compared.rows(mistake, answer)
            if rows is None or bool(rows.unexplained.any()):
                self._wrong.insert(0, self._wrong.pop(place))
                return False
        return True

    def narrowed(self, mistake: NamedMistake, most: int = MOST_CONDITIONS) -> Narrowed | None:
        """Return the mistake limited to where it is made; None if it misses a wrong row.

        None as well if more than ``most`` conditions are needed. Right answers most alike the wrong
        ones come first, which ends hopeless cases early: more rows never need fewer conditions.
        """
        made, spared, unable, count, telling, look = [], [], [], 0, 0, FIRST_LOOK
        for answer in self.observed:
            rows = self._compared.rows(mistake, answer)
            if rows is None or bool(rows.unexplained.any()):
                return None
            if rows.unable is not None:
                unable.append(_traits(answer)[rows.unable.flatten()])
            if bool((rows.made | rows.spared).any()):
                traits = _traits(answer)
                made.append(traits[rows.made.flatten()])
                spared.append(traits[rows.spared.flatten()])
                count += len(spared[-1])
                telling += bool(len(spared[-1]))
                if telling >= look:
                    made, spared, look = [_each_once(made)], [_each_once(spared)], 2 * look
                    if len(made[0]) and _telling_apart(made[0], spared[0], most) is None:
                        return None
        if not any(map(len, made)):
            return None
        chosen = _telling_apart(_each_once(made), _each_once(spared), most)
        if chosen is None:
            return None
        if any(map(len, unable)):  # rows where it cannot be made are a condition, too
            others = _each_once([*spared, *unable])
            chosen = _telling_apart(_each_once(made), others, MOST_CONDITIONS) or chosen
        return Narrowed(
            mistake=made_under(mistake, chosen),
            everywhere=mistake,
            literals=chosen,
            spared=count,
        )


def _most_alike_first(
    observed: Sequence[BatteryAnswer], wrong: Sequence[BatteryAnswer]
) -> list[BatteryAnswer]:
    """Sort right answers by the number of conditions shared with all wrong answers.

    Such an answer, if a mistake would spoil it, rules out most conditions at once.
    """
    common = [one for one in _OF_CALLS if all(one.holds(answer.inputs) for answer in wrong)]
    right = (answer for answer in observed if answer.margin <= 1.0)
    return sorted(right, key=lambda answer: -sum(one.holds(answer.inputs) for one in common))


def _traits(answer: BatteryAnswer) -> Tensor:
    """Return whole numbers ``[rows, traits]`` that conditions may be about; remembered.

    The traits of a row: its parts, its query, item and head index, the conditions met by its call,
    and the sizes.
    """
    if answer not in _TRAITS:
        _TRAITS[answer] = _made_traits(answer)
    return _TRAITS[answer]


_TRAITS: Final[WeakKeyDictionary[BatteryAnswer, Tensor]] = WeakKeyDictionary()


def _made_traits(answer: BatteryAnswer) -> Tensor:
    inputs, shape = answer.inputs, tuple(answer.exact.output.shape[:-1])
    sizes = inputs.geometry
    counts = sizes.batch, sizes.num_heads, sizes.query_length, sizes.key_length
    if (shape, counts) not in _rows_of_shapes:
        if len(_rows_of_shapes) >= MOST_SHAPES:
            _rows_of_shapes.clear()
        axes = torch.meshgrid(*(torch.arange(size) for size in shape), indexing="ij")
        flat = [axis.flatten() for axis in axes]
        item, query, head = flat[0], flat[-1], flat[1] if len(flat) == len("BHL") else None
        parts = [part.holds(inputs, item, head, query) for part in PARTS[OF_MASKS:]]
        none = torch.zeros_like(item)
        places = [query, item, none if head is None else head]
        columns = [*(none if part is None else part.long() for part in parts), *places]
        _rows_of_shapes[shape, counts] = item, head, query, torch.stack(columns)
    item, head, query, of_rows = _rows_of_shapes[shape, counts]
    of_masks = [part.holds(inputs, item, head, query) for part in PARTS[:OF_MASKS]]
    masked = torch.stack(
        [torch.zeros_like(item) if one is None else one.long() for one in of_masks]
    )
    of_call = [condition.holds(inputs) for condition in _OF_CALLS]
    of_call += [getattr(inputs.geometry, field) for field in SIZES]
    columns = [masked.T, of_rows.T, torch.tensor(of_call).expand(len(item), -1)]
    return torch.cat(columns, dim=-1)


# Indices and parts of rows, which follow from shapes and sizes alone: a cache, no table that
# decides verdicts.
_rows_of_shapes: Final[dict[Any, tuple[Tensor, Tensor | None, Tensor, Tensor]]] = {}
MOST_SHAPES: Final = 256


_OF_CALLS: Final = tuple(
    literal for condition in FINER for literal in (condition, condition.negated) if literal.words
)
# The columns of traits: the plainest literals first, then limits of numbers.
_PLACES: Final[tuple[tuple[int, Limitation], ...]] = (
    *enumerate(_OF_CALLS, start=len(PARTS) + len(_SEVERAL)),
    *enumerate(PARTS),
)
_NUMBERS: Final = (
    *enumerate(_SEVERAL, start=len(PARTS)),
    *enumerate(SIZES, start=len(PARTS) + len(_SEVERAL) + len(_OF_CALLS)),
)


def _each_once(rows: Sequence[Tensor]) -> Tensor:
    every: Tensor = torch.cat(list(rows)).unique(dim=0)
    return every


def _telling_apart(made: Tensor, spared: Tensor, most: int) -> tuple[Limitation, ...] | None:
    """Return the fewest literals that all rows of ``made`` meet, and no row of ``spared`` fully.

    None if ``most`` literals do not suffice. Ties go to the plainest.
    """
    met = made.bool().all(dim=0).tolist()
    common = [(place, literal) for place, literal in _PLACES if met[place]]
    literals = [literal for _, literal in common]
    left = [_bits_of(spared[:, place].bool()) for place, _ in common]
    for place, field in _NUMBERS:
        sizes, others = made[:, place], spared[:, place]
        for number, above in limits(sizes.tolist(), others.tolist()):
            limited = partial(_index_limit if field in _SEVERAL else size_limit, field)
            literals.append(limited(number, above=above))
            left.append(_bits_of((others > number) == above))
    for place, axis in _NUMBERS[: len(_SEVERAL)]:
        for part in _regular(axis, made[:, place]):
            literals.append(part.literal)
            left.append(_bits_of(part.holds(spared[:, place])))
    chosen = fewest(left, len(spared), most)
    return None if chosen is None else tuple(literals[index] for index in chosen)


@dataclass(frozen=True)
class _Regular:
    """Rows at regular indices along an axis: ``holds`` selects the indices."""

    literal: Part
    holds: Callable[[Tensor], Tensor]


def _regular(axis: str, made: Tensor) -> Iterator[_Regular]:
    """Yield the widest step that contains all indices, and tiles of which every second is hit."""
    indices = made.unique()
    if len(indices) < _FEWEST_REGULAR:
        return
    several, first = _SEVERAL[axis], int(indices[0])
    step = math.gcd(*indices.diff().tolist())
    if step > 2:  # noqa: PLR2004 (odd and even indices have names of their own)
        shown = ", ".join(str(first % step + step * number) for number in range(3))
        yield _regularly(
            axis, f"for {several} {shown}, …", lambda index: index % step == first % step
        )
    for size in _TILES:
        odd = first // size % 2
        if bool((indices // size % 2 == odd).all()):
            words = f"for {several} in the {_ORDINALS[odd]}, … tile of {size}"
            yield _regularly(axis, words, partial(_is_in_tile, size, odd))


def _is_in_tile(size: int, odd: int, index: Tensor) -> Tensor:
    return index // size % 2 == odd


def _regularly(axis: str, words: str, holds: Callable[[Tensor], Tensor]) -> _Regular:
    return _Regular(_index(words, words, lambda index, _n: holds(index), axis), holds)


def telling_apart(made: Sequence[Inputs], spared: Sequence[Inputs]) -> tuple[Condition, ...] | None:
    """Return the fewest conditions that all ``made`` inputs meet, and no ``spared`` input fully.

    Ties go to the plainest; None if two conditions do not suffice.
    """
    sizes = ([inputs.geometry for inputs in some] for some in (made, spared))
    kept = [index for index in range(len(_OF_CALLS)) if all(_met(one)[index] for one in made)]
    limited = [one for one in size_limits(*sizes) if all(map(one.holds, made))]
    common = [*(_OF_CALLS[index] for index in kept), *limited]
    left = [sum(1 << i for i, one in enumerate(spared) if _met(one)[index]) for index in kept]
    left += [sum(1 << i for i, one in enumerate(spared) if limit.holds(one)) for limit in limited]
    chosen = fewest(left, len(spared), MOST_OF_CALLS)
    return None if chosen is None else tuple(common[index] for index in chosen)


def _met(inputs: Inputs) -> list[bool]:
    if inputs not in _MET:
        _MET[inputs] = [condition.holds(inputs) for condition in _OF_CALLS]
    return _MET[inputs]


_MET: Final[WeakKeyDictionary[Inputs, list[bool]]] = WeakKeyDictionary()


def fewest(left: Sequence[int], count: int, most: int) -> tuple[int, ...] | None:
    """Return indices of the fewest properties that none of ``count`` things has together.

    ``left`` holds a bit set for each property, bit i for the thing i. Ties go to the first; None if
    ``most`` properties do not suffice.
    """
    if not count:
        return ()
    plainest: dict[int, int] = {}
    for index, mask in enumerate(left):
        if mask != (1 << count) - 1:
            plainest.setdefault(mask, index)
    masks = list(plainest)
    if masks and _common_bits(masks):
        return None
    for number in range(1, most + 1):
        chosen = min(_excluding(plainest, (1 << count) - 1, number), default=None)
        if chosen is not None:
            return chosen
    return None


def _excluding(plainest: dict[int, int], left: int, number: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of ``number`` properties that no thing in ``left`` has together, as indices.

    ``plainest`` maps the bit set of each property to its index.
    """
    if not left:
        yield ()
    elif number:
        first = left & -left  # a property must exclude this thing
        for mask, index in plainest.items():
            if not mask & first:
                for others in _excluding(plainest, left & mask, number - 1):
                    yield tuple(sorted((index, *others)))


def _common_bits(masks: Sequence[int]) -> int:
    return reduce(and_, masks)


def _bits_of(flags: Tensor) -> int:
    digits = flags.flip(0).to(torch.uint8) + ord("0")
    return int(bytes(digits.tolist()) or b"0", 2)


def made_under(mistake: NamedMistake, literals: Sequence[Limitation]) -> NamedMistake:
    """Limit a mistake, and its text, to conditions and rows."""
    if not literals:
        return mistake
    conditions = [one for one in literals if isinstance(one, Condition)]
    parts = [one for one in literals if isinstance(one, Part)]
    return dataclasses.replace(
        mistake,
        sentence=f"{mistake.sentence} (only {say_limits(literals)})",
        where=lambda inputs: (
            mistake.where(inputs) and all(condition.holds(inputs) for condition in conditions)
        ),
        rows=_rows_of(parts) if parts else mistake.rows,
        sizes=tuple(one.sizes for one in conditions if one.sizes),
    )


# Two conditions that together mean equal widths.
_WIDTHS: Final = frozenset(
    f"where values are no {words} than keys" for words in ("wider", "narrower")
)
_AS_WIDE: Final = "where values are as wide as keys"


def say_limits(literals: Sequence[Limitation]) -> str:
    """Return the words after "only"; limits on one size are merged to a range."""
    said: dict[str, None] = {}
    for one in literals:
        field = _field(one)
        same = [other for other in literals if field and _field(other) == field]
        said[_range_of(field, same) or one.words] = None
    if said.keys() >= _WIDTHS:
        said = {_AS_WIDE: None, **{words: None for words in said if words not in _WIDTHS}}
    return " and ".join(said)


def _field(one: Limitation) -> str:
    fields = one.sizes.fields if isinstance(one, Condition) and one.sizes else ()
    return fields[0] if len(fields) == 1 and fields[0] in SIZES else ""


def _range_of(field: str, same: Sequence[Limitation]) -> str:
    """Return the range of sizes that several conditions leave, if it is contiguous; else ""."""
    highest = (one.number for one in same if isinstance(one, SizeLimit) and not one.above)
    most = min(highest, default=0)
    rules = [one.sizes for one in same if isinstance(one, Condition) and one.sizes]
    sizes = [
        size
        for size in range(1, most + 1)
        if all(rule.holds(PROBE.replace(**{field: size})) for rule in rules)
    ]
    if len(same) == 1 or not sizes or sizes[-1] - sizes[0] >= len(sizes):
        return ""
    several, single = SIZES[field]
    if len(sizes) == 1:
        return f"with exactly {sizes[0]} {single if sizes[0] == 1 else several}"
    return f"with {sizes[0]} to {sizes[-1]} {several}"


def _rows_of(parts: Sequence[Part]) -> Callable[[Inputs, Tensor], Tensor]:
    """Return a function of the rows in every part: bool of the answer's shape without channels."""

    def rows(inputs: Inputs, output: Tensor) -> Tensor:
        shape = output.shape[:-1]
        axes = torch.meshgrid(*(torch.arange(size) for size in shape), indexing="ij")
        head = axes[1] if len(shape) == len("BHL") else None
        held = [part.holds(inputs, axes[0], head, axes[-1]) for part in parts]
        no_rows = torch.zeros(shape, dtype=torch.bool)
        return reduce(and_, (no_rows if one is None else one for one in held))

    return rows
