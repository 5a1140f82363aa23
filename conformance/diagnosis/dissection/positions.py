"""What rotary positions may be in place of those that are declared.

Numbers are read: the base of the frequencies, a factor of all angles, the place from which
positions are counted otherwise. What is left is which channels are turned together, and how.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ..mistakes import DeclaredCall
from .reading import MOST_KEYS
from .terms import Term

Angles = Callable[[Tensor], Tensor]
Places = Callable[[Tensor, "PositionSizes"], Tensor]
Base = Callable[[int, golden.Semantics], float]


@dataclass(frozen=True)
class PositionSizes:
    """Where positions are needed: how many queries and keys there are, and whether of queries."""

    queries: int
    keys: int
    heads: int
    batch: int
    of_query: bool


@dataclass(frozen=True)
class Turn:
    """One way to turn heads by positions.

    queries, keys
        Whether they are turned at all.
    places
        Other positions ``[L]`` or ``[B, H, L]``, from the right ones.
    base
        The base of the frequencies, from the head size and the declared point.
    factor
        What angles are multiplied by.
    pairs
        Whether channels are turned together in the "other" pairs than those that are declared.
    angles
        Which frequency each channel has: that of its pair, or "halves" or "interleaved".
    form
        The 2x2 matrix of cosine and sine by which a pair is multiplied.
    whole
        Whether heads are turned as one wide head, before they are cut.
    fraction
        Another part of the channels that is turned.
    of_head
        Whether exponents of frequencies count all channels of a head, not those that are turned.
    rounded, steps
        The dtype that some of :data:`_ROUNDED` are rounded to, one after another.
    late
        Whether queries and keys are normalised after they are turned.
    cached
        Whether of keys the cached ones alone are turned, where there are any.
    """

    queries: bool = True
    keys: bool = True
    places: Places | None = None
    base: Base | None = None
    factor: float = 1.0
    pairs: str = ""
    angles: str = ""
    form: str = "turn"
    whole: bool = False
    fraction: float | None = None
    of_head: bool = False
    rounded: torch.dtype = torch.float64
    steps: str = ""
    late: bool = False
    cached: bool = False

    def scores(self, call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        """The scaled products of queries and keys that are turned so."""
        if call.semantics.rotary == "none":
            return None
        query, key, _ = call.projected_heads()
        queries, keys = query.shape[-2], key.shape[-2]
        sizes = (queries, keys, query.shape[1], query.shape[0])
        at = golden.query_positions(queries, keys, call.semantics)
        query = self._side(
            query, at, call, PositionSizes(*sizes, of_query=True), turned=self.queries
        )
        places, of_keys = torch.arange(keys), PositionSizes(*sizes, of_query=False)
        plain = self._side(key, places, call, of_keys, turned=False) if self.cached else key
        key = self._side(key, places, call, of_keys, turned=self.keys)
        if self.cached and call.inputs.past:
            key = torch.where((places < call.inputs.past)[:, None], key, plain)
        key = golden.repeat_heads(key, query.shape[1], call.semantics)
        return query @ key.mT * attention.scale

    def _side(
        self, heads: Tensor, at: Tensor, call: DeclaredCall, place: PositionSizes, *, turned: bool
    ) -> Tensor:
        point = call.semantics
        heads = heads.double()
        if not self.late:
            heads = golden.normalise_heads(heads, point)
        if turned:
            places = at.double() if self.places is None else self.places(at.double(), place)
            heads = self._turned(heads, places, point)
        return golden.normalise_heads(heads, point) if self.late else heads

    def _turned(self, heads: Tensor, places: Tensor, point: golden.Semantics) -> Tensor:
        if self.whole:
            count = heads.shape[1]
            wide = golden.merge_heads(heads)[:, None]
            narrow = replace(self, whole=False)
            wide = narrow._turned(wide, places, point)  # noqa: SLF001 (of the same class)
            return golden.split_heads(wide[:, 0], count)
        if self.fraction is not None:
            point = point.replace(rotary_fraction=self.fraction)
        pairs = point
        if self.pairs:
            pairs = point.replace(rotary="halves" if point.rotary != "halves" else "interleaved")
        first, second = golden.rotary_pairs(heads.shape[-1], pairs)
        if not len(first):
            return heads
        if self.base is not None:
            point = point.replace(rotary_base=self.base(heads.shape[-1], point))
        frequencies = golden.rotary_frequencies(heads.shape[-1], point)
        if self.of_head:
            frequencies = frequencies ** (2 * len(first) / heads.shape[-1])
        frequencies = self._round(frequencies, "frequencies") * self.factor
        angles = self._round(self._round(places, "positions")[..., None] * frequencies, "angles")
        if angles.dim() > 2 and angles.shape[1] != heads.shape[1]:  # noqa: PLR2004 (heads alike)
            angles = angles[:, : heads.shape[1]]
        one, two = self._angles_of(angles, first, second)
        a, b = heads[..., first], heads[..., second]
        turned = heads.clone()
        form = _FORMS[self.form] if _TABLES not in self.steps else self._by_tables
        turned[..., first], turned[..., second] = form(a, b, one, two)
        return turned

    def _round(self, made: Tensor, step: str) -> Tensor:
        return made.to(self.rounded).double() if step in self.steps else made

    def _by_tables(self, a: Tensor, b: Tensor, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = (self._round(table, _TABLES) for table in (s.cos(), t.sin()))
        return a * cos - b * sin, b * cos + a * sin

    def _angles_of(self, angles: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """The angles of the first and the second channel of each pair."""
        if not self.angles:
            return angles, angles
        every = (
            torch.cat([angles, angles], dim=-1)
            if self.angles == "halves"
            else angles.repeat_interleave(2, dim=-1)
        )
        return every[..., first], every[..., second]


# What half precision may round of the tables by which heads are turned, and how that is said.
_TABLES: Final = "sines"
_ROUNDED: Final = (
    "positions",
    "frequencies",
    "angles",
    "sines and cosines",
    "angles, sines and cosines",
    "positions, frequencies and angles",
    "positions, frequencies, angles, sines and cosines",
)
Form = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
_FORMS: Final[dict[str, Form]] = {
    "turn": lambda a, b, s, t: (a * s.cos() - b * s.sin(), b * t.cos() + a * t.sin()),
    "not negated": lambda a, b, s, t: (a * s.cos() + b * s.sin(), b * t.cos() + a * t.sin()),
    "both negated": lambda a, b, s, t: (a * s.cos() - b * s.sin(), b * t.cos() - a * t.sin()),
    "no sine": lambda a, b, s, t: (a * s.cos(), b * t.cos()),
    "no cosine": lambda a, b, s, t: (a - b * s.sin(), b + a * t.sin()),
    "sine alone": lambda a, b, s, t: (-b * s.sin(), a * t.sin()),
    "own sine": lambda a, b, s, t: (a * (s.cos() - s.sin()), b * (t.cos() + t.sin())),
    "first alone": lambda a, b, s, _t: (a * s.cos() - b * s.sin(), b),
    "second alone": lambda a, b, _s, t: (a, b * t.cos() + a * t.sin()),
}
_FORM_WORDS: Final = {
    "not negated": "the sine is added in both channels of a pair, though one takes it off",
    "both negated": "the sine is taken off in both channels of a pair, though one adds it",
    "no sine": "channels are multiplied by their cosine, and the part with the sine is missing",
    "no cosine": "the part with the sine is added, and channels keep their size without the cosine",
    "sine alone": "the part with the cosine is missing",
    "own sine": "each channel meets its own sine instead of that of its partner",
    "first alone": "only the first channel of each pair is turned",
    "second alone": "only the second channel of each pair is turned",
}


def turned(words: str, turn: Turn) -> Term:
    """Products of queries and keys that are turned in a way."""
    text = f"queries and keys are not turned as declared: {words}"
    return Term(words, words, turn.scores, operand=True, fix=_instead(turn), text=text)


def _instead(turn: Turn) -> str:
    """What to do where queries and keys are turned in a way."""
    if turn.angles and turn.pairs != "other":
        # The declared pairs read the angles of the other layout.
        apart = turn.angles == "interleaved"
        laid, instead = (_LAID[apart], _LAID[not apart])
        return f"give both channels of a pair one angle: {instead}, not {laid}, for such pairs"
    if turn.cached:
        return "turn every key once by its own position: cached ones before they are kept"
    if not turn.queries or not turn.keys:
        both = (("queries", turn.queries), ("keys", turn.keys))
        sides = [name for name, done in both if not done]
        return f"turn the {' and '.join(sides)} as well, each token by its own position"
    if turn.form in _FORM_WORDS:
        return (
            "turn a pair (a, b) to (a cos t - b sin t, b cos t + a sin t): halves by "
            "x cos + cat([-second half, first half]) sin"
        )
    others = (
        (turn.whole, "cut the projection into heads first, and turn the channels of each head"),
        (turn.of_head, "divide by the number of channels that are turned: base ** (-2 i / R)"),
        (turn.late, "normalise queries and keys first, and turn them after that"),
        (turn.steps, "keep positions, frequencies, angles and tables in float32 at least"),
    )
    return next((fix for made, fix in others if made), FIX)


# How the angles of R/2 frequencies are laid out over R channels, by whether neighbours share one.
_LAID: Final = {
    True: "frequencies.repeat_interleave(2, -1)",
    False: "torch.cat([frequencies, frequencies], -1)",
}


FIX: Final = "turn queries and keys by position * base ** (-2 i / R), in the declared pairs"


def _of(side: str, change: Callable[[Tensor], Tensor]) -> Places:
    def places(at: Tensor, place: PositionSizes) -> Tensor:
        mine = side == "both" or (side == "query") == place.of_query
        return change(at) if mine else at

    return places


# Of both in the fewest words: they are tried first.
_SIDES: Final = {"both": "positions", "query": "positions of queries", "key": "positions of keys"}


def turn_terms(sizes: Geometry) -> Iterator[Term]:
    """Ways to turn heads, at some sizes: what is lost or exchanged, and other positions."""
    yield turned("queries and keys without positions", Turn(queries=False, keys=False))
    for words, turn in _TURNS:
        yield turned(words, turn)
    corner = "queries whose positions are counted from the other end than declared"
    yield turned(corner, Turn(places=_from_the_other_end))
    if sizes.query_length != sizes.key_length:
        for words, turn in _TURNS:
            yield turned(f"{words}, and {corner}", replace(turn, places=_from_the_other_end))
    yield from _of_places(sizes)


def _turns() -> Iterator[tuple[str, Turn]]:
    """Ways to turn heads at the right places, with a noun phrase for each."""
    yield "queries that are turned and keys that are not", Turn(keys=False)
    yield "keys that are turned and queries that are not", Turn(queries=False)
    yield "cached keys that are turned, and new ones that are not", Turn(cached=True)
    for form, words in _FORM_WORDS.items():
        yield f"positions by which {words}", Turn(form=form)
    yield "channels turned in other pairs than the declared ones", Turn(pairs="other")
    for factor in (-1.0, 2.0, 0.5):
        yield _factor_words(factor), Turn(factor=factor)
    yield from _of_angles()
    yield "rotary frequencies whose exponents are divided by the head size", Turn(of_head=True)
    yield "heads that are turned as one wide head, before they are cut", Turn(whole=True)
    yield "queries and keys that are normalised after they are turned", Turn(late=True)
    for fraction, words in ((0.5, "the first half"), (1.0, "all"), (0.25, "a quarter")):
        yield f"{words} of the channels turned", Turn(fraction=fraction)
    dtypes = ((torch.bfloat16, "bfloat16"), (torch.float16, "float16"))
    for steps, (dtype, name) in product(_ROUNDED, dtypes):
        yield f"rotary {steps} rounded to {name}", Turn(rounded=dtype, steps=steps)


def _of_angles() -> Iterator[tuple[str, Turn]]:
    for kind, which in (("interleaved", "c // 2"), ("halves", "c modulo R/2")):
        words = f"rotary angles by which channel c has the frequency of index {which}"
        yield words, Turn(angles=kind)
        yield f"{words}, in pairs other than the declared ones", Turn(angles=kind, pairs="other")


def _of_places(sizes: Geometry) -> Iterator[Term]:
    longest = max(sizes.query_length, sizes.key_length)
    for side, name in _SIDES.items():
        for number in _up_to(longest - 1):
            yield turned(
                f"{name} that end at {number - 1}",
                Turn(places=_of(side, partial(torch.clamp, max=number - 1))),
            )
            yield turned(
                f"{name} counted modulo {number}",
                Turn(places=_of(side, partial(torch.remainder, other=number))),
            )
            yield turned(
                f"{name} divided by {number} and rounded down",
                Turn(places=_of(side, partial(torch.floor_divide, other=number))),
            )
        if side != "both" or sizes.query_length != sizes.key_length:  # else angles are negative
            yield turned(
                f"{name} counted from the last token",
                Turn(places=_of(side, lambda at: at.flip(0))),
            )
    for number in (n for size in _up_to(max(longest, 4)) for n in (size - 1, 1 - size)):
        ahead = "ahead" if number > 0 else "behind"
        yield turned(
            f"queries that stand {abs(number)} {ahead} of their positions",
            Turn(places=_of("query", partial(operator.add, number))),
        )
    yield turned("the head's index as the position of each token", Turn(places=_by_head))
    yield turned("the batch item's index as the position of each token", Turn(places=_by_item))
    for side, name in (("query", "queries"), ("key", "keys")):
        yield turned(
            f"positions of {name} at the batch item's index", Turn(places=_one_side(side, _by_item))
        )


def _up_to(most: int) -> Iterator[int]:
    """Whole numbers from two to ``most``; of more than are read, powers of two from 16 on."""
    powers = (2**power for power in range(4, most.bit_length()))
    yield from range(2, most + 1) if most <= MOST_KEYS else powers


def _from_the_other_end(at: Tensor, place: PositionSizes) -> Tensor:
    """Places of queries from the first key where they are counted from the last, and the reverse.

    Those of the keys stay.
    """
    more = place.keys - place.queries
    return at if not place.of_query else at - more if at[:1].any() else at + more


def _by_head(at: Tensor, place: PositionSizes) -> Tensor:
    return torch.arange(place.heads).double()[None, :, None].expand(1, -1, len(at))


def _by_item(at: Tensor, place: PositionSizes) -> Tensor:
    return torch.arange(place.batch).double()[:, None, None].expand(-1, 1, len(at))


def _one_side(side: str, places: Places) -> Places:
    return lambda at, place: places(at, place) if (side == "query") == place.of_query else at


Turns = Iterator[tuple[str, Turn]]


@dataclass(frozen=True)
class Fitted:
    """A family of turns by one number: its words for a number, and the numbers that are tried.

    ``angles`` are those of queries and keys, of several numbers ``[N]``, the declared frequencies,
    and the places of queries and keys; ``rounded`` are numbers near one that was read, the plainest
    first. ``others`` are other families to which it is another number, by the head size that it was
    read at: turns by that, the plainest first.
    """

    words: Callable[[float], str]
    turn: Callable[[float], Turn]
    angles: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    rounded: Callable[[float], Iterator[float]]
    grid: tuple[float, ...]
    others: Callable[[float, int], Iterator[Turns]] = lambda _read, _size: iter(())


def families(point: golden.Semantics) -> Iterator[Fitted]:
    """Ways to turn heads whose number is read."""
    base = float(point.rotary_base)
    if base != 1.0:
        yield Fitted(
            words=lambda number: _base_words(number, base),
            turn=lambda number: Turn(base=lambda _size, _point: base**number),
            angles=_by_exponent,
            rounded=lambda number: _rounded_exponents(number, base),
            grid=tuple(step / 100 for step in range(-100, 251)),
            others=partial(_stretched, point),
        )
    factors = tuple(step / 40 for step in range(-160, 161))
    yield Fitted(
        words=_factor_words,
        turn=lambda number: Turn(factor=number),
        angles=partial(_by_factor, side="both"),
        rounded=_rounded,
        grid=factors,
    )
    for side, name in (("query", "queries"), ("key", "keys")):
        yield Fitted(
            words=partial("{0} turned by {1:.6g} times their angles".format, name),
            turn=partial(_turn_of, side),
            angles=partial(_by_factor, side=side),
            rounded=_rounded,
            grid=factors,
        )


def _stretched(point: golden.Semantics, exponent: float, size: int) -> Iterator[Turns]:
    """Bases that grow with an exponent of the head size or of the channels that are turned."""
    yield from (_powers(point, exponent, size, *dimension) for dimension in _DIMENSIONS)


def _powers(
    point: golden.Semantics, exponent: float, size: int, words: str, of: Dimension
) -> Turns:
    channels = of(size, point)
    if channels <= 2:  # noqa: PLR2004 (one pair turns by whole positions, whatever the base)
        return
    read = float(point.rotary_base) ** ((exponent - 1.0) * (channels - 2) / channels)
    for number in _rounded(read):
        if number > 0.0:
            base = f"rotary positions of base {point.rotary_base:g} times {number:g} to the power"
            turn = Turn(base=partial(_stretched_base, of, number))
            yield f"{base} of d / (d - 2), d being {words}", turn


Dimension = Callable[[int, golden.Semantics], int]
_DIMENSIONS: Final[tuple[tuple[str, Dimension], ...]] = (
    ("the head size", lambda size, _point: size),
    ("the number of channels that are turned", golden.rotary_size),
)


def _stretched_base(of: Dimension, number: float, size: int, point: golden.Semantics) -> float:
    return float(point.rotary_base * number ** (of(size, point) / max(of(size, point) - 2, 1)))


def _turn_of(side: str, number: float) -> Turn:
    return Turn(places=_of(side, partial(operator.mul, number)))


def _by_exponent(
    numbers: Tensor, frequencies: Tensor, queries: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    powers = frequencies ** numbers[:, None, None]
    return queries[None, :, None] * powers, keys[None, :, None] * powers


def _by_factor(
    numbers: Tensor, frequencies: Tensor, queries: Tensor, keys: Tensor, side: str
) -> tuple[Tensor, Tensor]:
    factors, ones = numbers[:, None, None], torch.ones(len(numbers), 1, 1).double()
    return (
        queries[None, :, None] * frequencies * (ones if side == "key" else factors),
        keys[None, :, None] * frequencies * (ones if side == "query" else factors),
    )


def _base_words(exponent: float, base: float) -> str:
    also = {2.0: " (exponents twice as large)", 0.5: " (exponents half as large)"}
    if exponent == -1.0:
        return "rotary positions whose exponents lack their sign"
    more = also.get(exponent, f" instead of {base:g}")
    return f"rotary positions of base {base**exponent:.6g}{more}"


def _factor_words(factor: float) -> str:
    if factor == -1.0:
        return "rotary positions by negative angles: turned backwards"
    return f"rotary angles multiplied by {factor:.6g}"


def _rounded(read: float) -> Iterator[float]:
    """A number that was read, rounded to ever more digits."""
    for digits in range(1, MOST_DIGITS):
        yield float(f"{read:.{digits}g}")


def _rounded_exponents(read: float, base: float) -> Iterator[float]:
    """The exponents near one that was read that make a plain base of another."""
    yield from (2.0, 0.5, -1.0)
    for number in _rounded(base**read):
        if number > 0.0:
            yield math.log(number) / math.log(base)


_TURNS: Final = tuple(_turns())
# Digits to which a number is said that was read.
MOST_DIGITS: Final = 7
