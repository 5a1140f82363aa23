"""Comparisons that decide which keys a query sees, each made in another way than it should be.

Causality, both ends of a window and the mask are compared one by one: with a flag that is read the
wrong way round, with the other sign, or not at all. Places of queries and keys may be counted
otherwise, and queries moved by another number than the declared one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations, product
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...declare.declaration import SEQUENCES
from ...problems.arrangements import there
from ...problems.inputs import Inputs
from ..agreement import BatteryAnswer
from ..mistakes import DeclaredCall, NamedMistake
from ..mistakes._steps import BLOCKS, admitted_by_mask, keys_ahead, unmasked_logits
from .reading import ROOM, Reading, statement
from .visibility import with_table

# Sides of a window that are lost below a number: how far above the one that was read it may lie.
_MOST_ABOVE: Final = 3
# Tiles that places may be counted in.
_TILES: Final = (*range(2, 17), 32, 64, 128)


@dataclass(frozen=True)
class _Tokens:
    """Where queries or keys stand in their sequence, and in all sequences one after another.

    Both broadcast to ``[B, 1, Lq, Lk]``, ``count`` is how many each sequence has.
    """

    place: Tensor
    packed: Tensor
    count: Tensor


def _tokens(inputs: Inputs, name: str) -> _Tokens:
    present = there(inputs, name, getattr(inputs, name))
    length = getattr(inputs.geometry, f"{name}_length")
    if present.shape[1] != length:
        present = torch.ones(len(present), length, dtype=torch.bool)
    count = present.sum(-1)
    place = present.cumsum(-1) - 1
    packed = place + (count.cumsum(0) - count)[:, None]
    shape = (-1, 1, place.shape[1], 1) if name == "query" else (-1, 1, 1, place.shape[1])
    return _Tokens(place.view(shape), packed.view(shape), count.view(-1, 1, 1, 1))


def _anew(size: int, tokens: _Tokens) -> Tensor:
    return tokens.place % size


def _last_of_tile(size: int, tokens: _Tokens) -> Tensor:
    last = tokens.place // size * size + size - 1
    return torch.minimum(last, tokens.count - 1)


Counting = Callable[[_Tokens], Tensor]
Shift = Callable[[Tensor, Tensor], Tensor]
# How tokens may be counted, in words that follow "queries are" or "keys are".
_PLAIN: Final[tuple[str, Counting]] = ("", lambda tokens: tokens.place)
_COUNTED: Final[tuple[tuple[str, Counting], ...]] = (
    ("counted on from one sequence to the next", lambda tokens: tokens.packed),
    ("counted backwards", lambda tokens: -tokens.place),
    *((f"counted anew in each tile of {size}", partial(_anew, size)) for size in _TILES),
)
_OF_QUERIES: Final[tuple[tuple[str, Counting], ...]] = (
    *_COUNTED,
    *(
        (f"taken to stand where the last of their tile of {n} does", partial(_last_of_tile, n))
        for n in _TILES
    ),
)
_COUNTED_OTHERWISE: Final = (*product(("query",), _OF_QUERIES), *product(("key",), _COUNTED))
# How far queries are moved along the keys, from their number and that of keys.
_SHIFTS: Final[dict[str, Shift]] = {
    "bottom-right": lambda queries, keys: keys - queries,
    "top-left": lambda queries, _keys: torch.zeros_like(queries),
}
_OTHER_SHIFTS: Final[tuple[tuple[str, Shift], ...]] = (
    ("the number of queries less that of keys", lambda queries, keys: queries - keys),
    ("the number of queries", lambda queries, _keys: queries),
    ("the number of keys", lambda _queries, keys: keys),
    ("the number of keys, backwards", lambda _queries, keys: -keys),
    ("the number of queries, backwards", lambda queries, _keys: -queries),
    ("nothing", lambda queries, _keys: torch.zeros_like(queries)),
    ("the number of keys less that of queries", lambda queries, keys: keys - queries),
)


@dataclass(frozen=True)
class _Way:
    """How one comparison is made: from how far keys lie ahead, and the number of its side.

    ``shows`` gets the distances, the number (whether the call is causal, a side of the window) and
    gives the keys that are shown. ``words`` are empty for the right way.
    """

    words: str
    shows: Callable[[Tensor, int], Tensor]


def _every(ahead: Tensor) -> Tensor:
    return torch.ones_like(ahead, dtype=torch.bool)


def _where_causal(shows: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int], Tensor]:
    return lambda ahead, causal: shows(ahead) if causal else _every(ahead)


def _where_limited(
    shows: Callable[[Tensor, int], Tensor], least: int = 0
) -> Callable[[Tensor, int], Tensor]:
    return lambda ahead, side: shows(ahead, side) if side >= least else _every(ahead)


_CAUSAL: Final = (
    _Way("", _where_causal(lambda ahead: ahead <= 0)),
    _Way(
        "keys after the query are hidden where the call is not causal, and shown where it is",
        lambda ahead, causal: _every(ahead) if causal else ahead <= 0,
    ),
    _Way(
        "keys after the query are hidden whether the call is causal or not",
        lambda ahead, _causal: ahead <= 0,
    ),
    _Way("keys after the query are not hidden", lambda ahead, _causal: _every(ahead)),
    *(
        _Way(f"a causal call shows the keys {words}", _where_causal(shows))
        for words, shows in (
            ("before the query, without its own", lambda ahead: ahead < 0),
            ("from the query's own on", lambda ahead: ahead >= 0),
            ("after the query", lambda ahead: ahead > 0),
            ("at the query's own place alone", lambda ahead: ahead == 0),
            ("at every place but the query's own", lambda ahead: ahead != 0),
        )
    ),
)
_LEFT: Final = (
    _Way("", _where_limited(lambda ahead, left: ahead >= -left)),
    _Way("a window hides no key before the query", lambda ahead, _left: _every(ahead)),
    *(
        _Way(words, _where_limited(shows))
        for words, shows in (
            (
                "before the query a window shows the keys at its end or beyond, not those within",
                lambda ahead, left: ahead <= -left,
            ),
            (
                "before the query a window shows the keys beyond its end alone",
                lambda ahead, left: ahead < -left,
            ),
            (
                "before the query a window shows the key at its end alone",
                lambda ahead, left: ahead == -left,
            ),
            (
                "a window begins as far after the query as it should begin before it",
                lambda ahead, left: ahead >= left,
            ),
        )
    ),
)
_RIGHT: Final = (
    _Way("", _where_limited(lambda ahead, right: ahead <= right)),
    _Way("a window hides no key after the query", lambda ahead, _right: _every(ahead)),
    *(
        _Way(words, _where_limited(shows))
        for words, shows in (
            (
                "after the query a window shows the keys at its end or beyond, not those within",
                lambda ahead, right: ahead >= right,
            ),
            (
                "after the query a window shows the keys beyond its end alone",
                lambda ahead, right: ahead > right,
            ),
            (
                "after the query a window shows the key at its end alone",
                lambda ahead, right: ahead == right,
            ),
            (
                "a window ends as far before the query as it should end after it",
                lambda ahead, right: ahead <= -right,
            ),
        )
    ),
)


def _in_byte(least: int, number: Tensor) -> Tensor:
    """Numbers that are kept in eight bits, from minus ``least`` on."""
    return (number + least) % 256 - least


def _wrapped(least: int, call: DeclaredCall, kept: Tensor) -> Tensor:
    """Lengths that are kept in eight bits; other masks as they are."""
    if call.inputs.mask_form != "lengths":
        return kept
    return torch.arange(kept.shape[-1]) < _in_byte(least, kept.sum(-1, keepdim=True))


_MASKED: Final[tuple[tuple[str, Callable[[DeclaredCall, Tensor], Tensor]], ...]] = (
    ("", lambda _call, kept: kept),
    (
        "the mask shows what it should hide, and a call without one hides every key",
        lambda _call, kept: ~kept,
    ),
)
_BYTES: Final = (
    ("past 127 are negative, as in a signed byte", 128),
    ("past 255 start from zero again, as in a byte", 0),
)
_LENGTHS: Final = tuple((f"lengths {words}", partial(_wrapped, least)) for words, least in _BYTES)
_PLACES: Final = tuple((f"places {words}", partial(_in_byte, least)) for words, least in _BYTES)
_REACH: Final = "the keys of tiles of {1} are gone over up to the last query of a tile of {0}"
_FIXES: Final = (
    "hide the keys that the mask hides, of any length",
    "hide the keys after each query where the call is causal, and only there",
    "let query i see the keys from i - left on, where left is not -1",
    "let query i see the keys up to i + right, where right is not -1",
    "count queries and keys in their own sequence, and move query i by Lk - Lq or 0, as declared",
    "hide the keys after each query inside of tiles, too",
    "count places in integers of 32 bits or more",
)


@dataclass(frozen=True)
class Comparisons:
    """How each comparison is made, and how queries and keys are counted and moved.

    With a ``reach`` of so many queries and keys a causal call goes over the tiles of keys that
    begin before the end of the query's tile.
    """

    masked: tuple[str, Callable[[DeclaredCall, Tensor], Tensor]] = _MASKED[0]
    causal: _Way = _CAUSAL[0]
    left: _Way = _LEFT[0]
    right: _Way = _RIGHT[0]
    query: tuple[str, Counting] = _PLAIN
    key: tuple[str, Counting] = _PLAIN
    shift: tuple[str, Shift] | None = None
    reach: tuple[int, int] | None = None
    places: tuple[str, Callable[[Tensor], Tensor]] = ("", lambda place: place)

    def shown(self, call: DeclaredCall, tokens: tuple[_Tokens, _Tokens] | None = None) -> Tensor:
        """The keys that each query sees: bool, broadcastable to ``[B, H, Lq, Lk]``.

        ``tokens`` are the queries and keys of the call, where they are known.
        """
        inputs = call.inputs
        queries, keys = tokens or (_tokens(inputs, "query"), _tokens(inputs, "key"))
        move = _SHIFTS[call.semantics.causal_alignment] if self.shift is None else self.shift[1]
        moved = self.query[1](queries) + move(queries.count, keys.count)
        ahead = self.places[1](self.key[1](keys)) - self.places[1](moved)
        left, right = inputs.window or (-1, -1)
        shown = self.causal.shows(ahead, inputs.causal)
        if self.reach is not None and inputs.causal:
            of_queries, of_keys = self.reach
            last = _last_of_tile(of_queries, queries) + move(queries.count, keys.count)
            shown = shown & (keys.place // of_keys * of_keys <= last)
        if inputs.window is not None:
            shown = shown & self.left.shows(ahead, left) & self.right.shows(ahead, right)
        return shown & self.masked[1](call, admitted_by_mask(call))

    def inputs_for(self, call: DeclaredCall) -> Inputs | None:
        """The inputs with what is shown as a table; None where that is what should be."""
        inputs, shown = call.inputs, self.shown(call)
        if torch.equal(*torch.broadcast_tensors(shown, inputs.allowed(call.semantics))):
            return None
        made = with_table(call, shown)
        if inputs.mask_form != SEQUENCES:
            return made
        present = [there(inputs, name, getattr(inputs, name)) for name in ("query", "key")]
        return made.replace(present=tuple(present))

    @property
    def parts(self) -> list[tuple[str, str]]:
        """What is made otherwise, and what to do instead."""
        counted = [f"{n} are {one[0]}" for n, one in (("queries", self.query), ("keys", self.key))]
        plain = (self.query is _PLAIN, self.key is _PLAIN)
        words = [one for one, right in zip(counted, plain, strict=True) if not right]
        if self.shift is not None:
            words.append(f"queries are moved along the keys by {self.shift[0]}")
        ways = (self.masked[0], self.causal.words, self.left.words, self.right.words)
        reach = "" if self.reach is None else _REACH.format(*self.reach)
        said = [*ways, "; ".join(words), reach, self.places[0]]
        return [(one, fix) for one, fix in zip(said, _FIXES, strict=True) if one]

    def statement(self) -> NamedMistake:
        """What is compared otherwise, as a mistake."""
        text, fix = map("; ".join, zip(*self.parts, strict=True))
        return statement(f"band: {text}", text, fix, inputs=self.inputs_for)


def _lost_below(window: tuple[int, int]) -> Iterator[tuple[str, object]]:
    """Windows of which a side counts from some number on, more than that which was read."""
    shows: tuple[Callable[[Tensor, int], Tensor], ...] = (
        lambda ahead, left: ahead >= -left,
        lambda ahead, right: ahead <= right,
    )
    for index, (name, words) in enumerate((("left", "before"), ("right", "after"))):
        if window[index] < 0:
            continue
        for least in range(window[index] + 1, window[index] + 1 + _MOST_ABOVE):
            said = f"a window of fewer than {least} keys {words} the query hides none {words} it"
            yield name, _Way(said, _where_limited(shows[index], least))


def _in_other_ways() -> Iterator[tuple[str, object]]:
    """The parts of comparisons that may be made in another way, each with what it becomes."""
    yield from (("masked", one) for one in _MASKED[1:])
    for name, ways in (("causal", _CAUSAL), ("left", _LEFT), ("right", _RIGHT)):
        yield from ((name, one) for one in ways[1:])


def _pairs() -> Iterator[dict[str, object]]:
    """Two parts that are made in another way."""
    sides, counted = list(_in_other_ways()), _COUNTED_OTHERWISE
    shifts = [("shift", one) for one in _OTHER_SHIFTS]
    for one, other in chain(combinations(sides, 2), product(counted, shifts)):
        if one[0] != other[0]:
            yield dict([one, other])


_ALONE: Final = (
    *_in_other_ways(),
    *(("shift", one) for one in _OTHER_SHIFTS),
    *_COUNTED_OTHERWISE,
)
_PAIRS: Final = tuple(_pairs())


def _by_tiles() -> Iterator[dict[str, object]]:
    """Tiles that causal calls go over, inside of which keys are not hidden or counted anew."""
    never = next(way for way in _CAUSAL if way.words == "keys after the query are not hidden")
    for of_queries, of_keys in product(_TILES, _TILES):
        anew = _COUNTED[_TILES.index(of_keys) + len(_COUNTED) - len(_TILES)]
        yield {"causal": never, "reach": (of_queries, of_keys)}
        yield {"key": anew, "reach": (of_queries, of_keys)}


def long_length_statements(wrong: Sequence[BatteryAnswer]) -> Iterator[NamedMistake]:
    """Lengths and places that eight bits do not hold, of more keys than those hold."""
    inputs = [one.inputs for one in wrong if one.inputs.geometry.key_length > 127]  # noqa: PLR2004
    if any(one.mask_form == "lengths" for one in inputs):
        yield from (Comparisons(masked=one).statement() for one in _LENGTHS)
    if any(one.causal or one.window is not None for one in inputs):
        yield from (Comparisons(places=one).statement() for one in _PLACES)


class _Tables:
    """The keys that comparisons show in one call, and whether each change of them tells."""

    def __init__(self, reading: Reading) -> None:
        self.call = reading.call
        self.shape = reading.weights.shape
        self._tokens = _tokens(self.call.inputs, "query"), _tokens(self.call.inputs, "key")
        self._alone: dict[tuple[str, int], Tensor] = {}

    def of(self, made: Comparisons) -> Tensor:
        """The table of some comparisons."""
        return made.shown(self.call, self._tokens).expand(self.shape)

    def alone(self, name: str, way: object) -> Tensor:
        """The table where one part alone is made in another way."""
        at = (name, id(way))
        if at not in self._alone:
            self._alone[at] = self.of(Comparisons(**{name: way}))  # type: ignore[arg-type]
        return self._alone[at]

    def _counts(self, name: str) -> bool:
        """Whether a part can change what is shown: there is something to compare."""
        inputs = self.call.inputs
        if name in ("left", "right"):
            return inputs.window is not None
        return name in ("masked", "causal") or inputs.causal or inputs.window is not None

    def proposed(self, *, reach: bool) -> Iterator[tuple[Comparisons, Tensor]]:
        """Comparisons of which no part could be right here, with their tables."""
        inputs, allowed = self.call.inputs, self.of(Comparisons())
        limited = [] if inputs.window is None else list(_lost_below(inputs.window))
        plain: list[Tensor] = []
        for name, way in (*_ALONE, *limited):
            if not self._counts(name):
                continue
            table = self.alone(name, way)
            if name in ("masked", "causal"):
                plain.append(table)
            elif any(torch.equal(table, one) for one in plain):
                continue  # keys counted backwards are never hidden: a lost flag says that plainly
            if not torch.equal(table, allowed):
                yield Comparisons(**{name: way}), table  # type: ignore[arg-type]
        for parts in chain(_PAIRS, _by_tiles() if reach else ()):
            if not all(map(self._counts, parts)):
                continue
            made = Comparisons(**parts)  # type: ignore[arg-type]
            table = self.of(made)
            fewer = [self.alone(name, way) for name, way in parts.items() if name != "reach"]
            if not any(torch.equal(table, one) for one in (allowed, *fewer)):
                yield made, table


def comparison_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Comparisons that show the keys that were read, and give them the weights that were read.

    Rows to which they show no key may have any; where there is no other row, none has a weight.
    """
    attention, read = reading.attention, reading.weights
    inputs = reading.call.inputs
    finite = torch.isfinite(read).all(-1)
    absent = torch.zeros_like(finite) if inputs.absent is None else inputs.absent.expand_as(finite)
    rows, seen = finite & ~absent, reading.visible
    lost = (attention.weights > ROOM * reading.error) & ~seen
    otherwise = (seen & ~attention.allowed | lost).any(-1) | ~finite
    if not rows.any() or not bool((otherwise & ~absent).any()):
        return
    logits = unmasked_logits(attention)
    more = inputs.causal and bool((seen & ~attention.allowed)[rows].any())
    for made, table in _Tables(reading).proposed(reach=more):
        some = table.any(-1)
        judged = rows & some
        if bool((some & ~finite & ~absent).any()) or bool((seen & ~table)[judged].any()):
            continue
        if not judged.any():
            if not seen.any() and len(made.parts) == 1:
                yield made.statement()
            continue
        weights = golden.softmax(logits.masked_fill(~table, float("-inf")), sinks=attention.sinks)
        if reading.agree(read[judged], weights[judged]):
            yield made.statement()


@dataclass(frozen=True)
class TiledWindow:
    """A window whose ends lie where tiles of keys do, the sides that are named.

    They are moved ``outwards``, so that tiles are shown whole, or inwards, so that parts are lost.
    """

    size: int
    sides: tuple[str, ...]
    outwards: bool

    @property
    def words(self) -> str:
        """What follows "a window shows"."""
        whole = "the whole tile" if self.outwards else "no part of a tile"
        ends = " and ".join({"before": "begins", "after": "ends"}[side] for side in self.sides)
        return f"{whole} of {self.size} keys in which it {ends}"

    def inputs_for(self, call: DeclaredCall) -> Inputs | None:
        """The keys that are shown, as a table."""
        inputs = call.inputs
        if inputs.window is None:
            return None
        (left, right), sizes = inputs.window, inputs.geometry
        ahead = keys_ahead(call)
        keys = torch.arange(sizes.key_length)
        own = keys - ahead  # where each query stands
        first, end = own - left, own + right + 1
        if "before" in self.sides:
            first = (first if self.outwards else first + self.size - 1) // self.size * self.size
        if "after" in self.sides:
            end = (end + self.size - 1 if self.outwards else end) // self.size * self.size
        kept = ((keys >= first) | (left < 0)) & ((keys < end) | (right < 0))
        return with_table(
            call, admitted_by_mask(call) & kept & ((ahead <= 0) | (not inputs.causal))
        )


def tiled_window_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Windows whose ends are rounded to those of tiles."""
    call, seen = reading.call, reading.visible
    if call.inputs.window is None or bool((seen == reading.attention.allowed).all()):
        return
    for size, sides, outwards in product(
        BLOCKS[1:], (("before",), ("after",), ("before", "after")), (True, False)
    ):
        window = TiledWindow(size, sides, outwards)
        changed = window.inputs_for(call)
        if changed is not None and torch.equal(
            seen, changed.allowed(call.semantics).expand_as(seen)
        ):
            yield statement(
                f"band: {window.words}",
                f"a window shows {window.words}",
                "go over the tiles that a window meets, and hide what lies outside it in each",
                inputs=window.inputs_for,
            )
