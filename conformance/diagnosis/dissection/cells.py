"""Kinds of keys that a query may lose or see: by place, by tile, by mask and by structure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from ..mistakes import DeclaredCall
from ..mistakes._steps import (
    BLOCKS,
    admitted_by_mask,
    admitted_by_structure,
    keys_ahead,
    past_window,
    up_to_folded_place,
)


@dataclass(frozen=True)
class Cells:
    """Some keys of some queries: ``words`` follow "the keys"; bool ``[B, H, Lq, Lk]``.

    ``of_mask`` says that they are what a mask keeps or hides, in its own place or in another; they
    are None for calls without a mask.
    """

    words: str
    holds: Callable[[DeclaredCall], Tensor | None]
    of_mask: bool = False


def _index(axis: int, words: str, holds: Callable[[Tensor, int], Tensor]) -> Cells:
    def cells(call: DeclaredCall) -> Tensor:
        shape = call.inputs.score_shape
        index = torch.arange(shape[axis])
        view = [1, 1, 1, 1]
        view[axis] = -1
        return holds(index, shape[axis]).reshape(view).expand(shape)

    return Cells(words, cells)


def _ahead(
    words: str, holds: Callable[[Tensor], Tensor], *, bottom_right: bool | None = None
) -> Cells:
    """Keys by how far they lie ahead, queries counted from where it is declared, or from an end."""

    def cells(call: DeclaredCall) -> Tensor:
        ahead = keys_ahead(call, bottom_right=bottom_right)
        return holds(ahead).expand(call.inputs.score_shape)

    return Cells(words, cells)


def _mask(words: str, change: Callable[[Tensor], Tensor]) -> Cells:
    """Keys that a changed mask keeps."""

    def cells(call: DeclaredCall) -> Tensor | None:
        shape = call.inputs.score_shape
        if not call.inputs.masked:
            return None
        changed = change(admitted_by_mask(call).expand(shape))
        return changed if changed.shape == shape else None

    return Cells(words, cells, of_mask=True)


def _not(cells: Cells, words: str) -> Cells:
    def holds(call: DeclaredCall) -> Tensor | None:
        table = cells.holds(call)
        return None if table is None else ~table

    return Cells(words, holds, of_mask=cells.of_mask)


def _moved_by_cache(call: DeclaredCall) -> Tensor | None:
    kept = KEPT.holds(call)
    return None if kept is None or not call.inputs.past else kept.roll(call.inputs.past, -1)


# Sizes of another axis up to which a loop may run, or at which keys may be cut.
_OTHER_SIZES: Final = (
    ("queries", "query_length"),
    ("channels of a head", "head_size"),
    ("channels of a value head", "value_head_size"),
    ("heads", "num_heads"),
    ("batch items", "batch"),
)


def _past_size(words: str, size: str) -> Cells:
    """Keys beyond a size of the call that is not their number."""

    def cells(call: DeclaredCall) -> Tensor:
        shape, least = call.inputs.score_shape, int(getattr(call.inputs.geometry, size))
        return (torch.arange(shape[-1]) >= least).expand(shape)

    return Cells(f"past as many as there are {words}", cells)


def _cached(call: DeclaredCall) -> Tensor:
    shape = call.inputs.score_shape
    return (torch.arange(shape[-1]) < call.inputs.past).expand(shape)


def _place(*, last: bool) -> Callable[[DeclaredCall], Tensor]:
    """The last cached key, or the first new one, of calls with a cache."""

    def cells(call: DeclaredCall) -> Tensor:
        shape = call.inputs.score_shape
        index = call.inputs.past - 1 if last else call.inputs.past
        return ((torch.arange(shape[-1]) == index) & (call.inputs.past > 0)).expand(shape)

    return cells


def _kept_length(call: DeclaredCall) -> Tensor:
    """How many keys there are up to the last that the mask keeps: ``[B, H, Lq, 1]``."""
    table = admitted_by_mask(call).expand(call.inputs.score_shape)
    return (torch.arange(1, table.shape[-1] + 1) * table).amax(-1, keepdim=True)


def _past_kept_length(call: DeclaredCall) -> Tensor | None:
    """Keys after the query where the last query stands at the last key that the mask keeps."""
    shape = call.inputs.score_shape
    if not call.inputs.masked or not shape[-1]:
        return None
    place = torch.arange(shape[2])[:, None] - shape[2] + _kept_length(call)
    return (torch.arange(shape[3]) > place).expand(shape)


def _of_hidden_places(*, bottom_right: bool, own: bool) -> Callable[[DeclaredCall], Tensor | None]:
    """Queries whose own place the mask hides from them, or behind the last key that it keeps."""

    def cells(call: DeclaredCall) -> Tensor | None:
        shape = call.inputs.score_shape
        if not call.inputs.masked or not shape[-1]:
            return None
        place = torch.arange(shape[2])[:, None] + (shape[3] - shape[2] if bottom_right else 0)
        table = place >= _kept_length(call)
        if own:
            kept = admitted_by_mask(call).expand(shape)
            index = place.clamp(0, shape[3] - 1).expand(*shape[:3], 1)
            table = ~kept.gather(-1, index)
        return table.expand(shape)

    return cells


def _by_structure(call: DeclaredCall) -> Tensor:
    return admitted_by_structure(call).expand(call.inputs.score_shape)


EVERY: Final = Cells("of every kind", lambda call: torch.ones(call.inputs.score_shape).bool())
KEPT: Final = _mask("that the mask keeps", lambda table: table)
REACHED: Final = Cells("that causality and window leave", _by_structure)
CACHED: Final = Cells("that are cached", _cached)


def key_indices(call: DeclaredCall) -> Tensor:
    """The index of each key: ``[Lk]``."""
    return torch.arange(call.inputs.geometry.key_length)


def from_index(number: int, *, above: bool) -> Cells:
    """The keys whose index is above a number, or at most that."""
    words = f"past the first {number + 1}" if above else f"among the first {number + 1}"
    return _index(3, words, lambda i, _n: (i > number) == above)


def before_last(number: int) -> Cells:
    """The keys but for so many at the end."""
    words = "the last one" if number == 1 else f"the last {number}"
    return _index(3, f"before {words}", lambda i, n: i < n - number)


def at_steps(first: int, step: int) -> Cells:
    """The keys at every so many indices, from a first one on."""
    words = f"at the indices {first}, {first + step}, {first + 2 * step}, …"
    return _index(3, words, lambda i, _n: (i >= first) & ((i - first) % step == 0))


def from_distance(number: int, *, above: bool) -> Cells:
    """The keys that lie more than a number of places ahead of the query, or at most that."""
    return _ahead(_distance_words(number, above=above), lambda ahead: (ahead > number) == above)


def _distance_words(number: int, *, above: bool) -> str:
    if above and number >= 0:
        return f"more than {number} after the query"
    if not above and number < 0:
        return f"at least {-number} before the query"
    if above:
        return f"after the query or less than {-number} before it"
    return f"before the query or at most {number} after it"


def _tiles(size: int) -> Iterator[Cells]:
    """Keys by their place in tiles of a size."""
    yield _index(3, f"past the last whole tile of {size}", lambda i, n: i >= n // size * size)
    yield _index(3, f"in the last tile of {size}", lambda i, n: i >= (n - 1) // size * size)
    yield _index(3, f"before the last tile of {size}", lambda i, n: i < (n - 1) // size * size)
    yield _index(3, f"that end a tile of {size}", lambda i, _n: i % size == size - 1)
    yield _index(3, f"that begin a tile of {size}", lambda i, _n: i % size == 0)
    yield _index(3, f"in the second, fourth, … tile of {size}", lambda i, _n: i // size % 2 == 1)
    for words, holds in (
        (f"in the query's own tile of {size}", torch.eq),
        (f"in the query's own tile of {size} or one before it", torch.le),
        (f"in a tile of {size} after the query's own", torch.gt),
        (f"in a tile of {size} before the query's own", torch.lt),
    ):
        yield Cells(words, _of_tiles(size, holds, bottom_right=False))
        yield Cells(f"{words}, by its place,", _of_tiles(size, holds, bottom_right=None))
    yield Cells(
        f"before a tile of {size} that is hidden as a whole, with a visible one behind it,",
        _before_a_hidden_tile(size),
    )


def _of_hidden_half(call: DeclaredCall) -> Tensor:
    allowed = call.inputs.allowed(call.semantics).expand(call.inputs.score_shape)
    hidden = ~allowed[..., : allowed.shape[-1] // 2].any(-1, keepdim=True)
    return hidden.expand(allowed.shape)


def _of_tiles(
    size: int, holds: Callable[[Tensor, Tensor], Tensor], *, bottom_right: bool | None
) -> Callable[[DeclaredCall], Tensor]:
    """Keys by the numbers of their tile and of that in which the query's index or place lies."""

    def cells(call: DeclaredCall) -> Tensor:
        keys = torch.arange(call.inputs.score_shape[-1])
        queries = keys - keys_ahead(call, bottom_right=bottom_right)
        return holds(keys // size, queries // size).expand(call.inputs.score_shape)

    return cells


def _before_a_hidden_tile(size: int) -> Callable[[DeclaredCall], Tensor]:
    """Keys behind which a whole tile is hidden from the query and a later one is not."""

    def cells(call: DeclaredCall) -> Tensor:
        allowed = call.inputs.allowed(call.semantics).expand(call.inputs.score_shape)
        tile = torch.arange(allowed.shape[-1]) // size
        tiles = int(tile[-1]) + 1 if len(tile) else 0
        table = torch.zeros_like(allowed)
        for number in range(1, tiles - 1):
            hidden = ~allowed[..., tile == number].any(dim=-1, keepdim=True)
            later = allowed[..., tile > number].any(dim=-1, keepdim=True)
            table = table | (hidden & later & (tile < number))
        return table

    return cells


def _of_first_tiles() -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Masks whose part for the first tile of queries, or of keys, serves for every tile.

    Or whose part for the tile before does.
    """
    for size in BLOCKS[3:]:
        yield f"of the same place in the first tile of {size} queries", _repeated(2, size)
        yield f"of the same place in the first tile of {size} keys", _repeated(3, size)
        yield f"of the same place in the tile of {size} keys before", _of_tile_before(size)


def _along(axis: int, of: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda table: of(table, axis, keepdim=True).expand_as(table)


def _repeated(axis: int, size: int) -> Callable[[Tensor], Tensor]:
    return lambda table: table.index_select(axis, torch.arange(table.shape[axis]) % size)


def _of_tile_before(size: int) -> Callable[[Tensor], Tensor]:
    def before(table: Tensor) -> Tensor:
        index = torch.arange(table.shape[3])
        return table.index_select(3, torch.where(index < size, index, index - size))

    return before


def _both(one: Cells, other: Cells, words: str, join: Callable[[Tensor, Tensor], Tensor]) -> Cells:
    """What two tables make together; None where one of them is."""

    def holds(call: DeclaredCall) -> Tensor | None:
        table, others = one.holds(call), other.holds(call)
        return None if table is None or others is None else join(table, others)

    return Cells(words, holds, of_mask=one.of_mask or other.of_mask)


def _exchanged(axis: int) -> Callable[[Tensor], Tensor]:
    """Tables that are broadcast along the queries in place of another axis of the same size."""
    return lambda t: t.transpose(axis, 2) if t.shape[axis] == t.shape[2] else t


# What may stand for the table of a mask, or of a bias: other places of it.
TABLE_MOVES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("of the first batch item", lambda t: t[:1].expand_as(t)),
    ("of the last batch item", lambda t: t[-1:].expand_as(t)),
    ("of the first head", lambda t: t[:, :1].expand_as(t)),
    ("of the last head", lambda t: t[:, -1:].expand_as(t)),
    ("of the first query", lambda t: t[:, :, :1].expand_as(t)),
    ("of the last query", lambda t: t[:, :, -1:].expand_as(t)),
    ("of the first key", lambda t: t[..., :1].expand_as(t)),
    ("with queries and keys exchanged", lambda t: t.mT),
    ("read from the last key to the first", lambda t: t.flip(-1)),
    ("moved by one key", lambda t: t.roll(1, -1)),
    ("moved back by one key", lambda t: t.roll(-1, -1)),
    ("of the opposite batch item", lambda t: t.flip(0)),
    ("of the opposite head", lambda t: t.flip(1)),
    ("of the batch item before", lambda t: t.roll(1, 0)),
    ("of the batch item after", lambda t: t.roll(-1, 0)),
    ("of the head before", lambda t: t.roll(1, 1)),
    ("of the head after", lambda t: t.roll(-1, 1)),
    *_of_first_tiles(),
    ("of the query before", lambda t: t.roll(1, 2)),
    ("of the query after", lambda t: t.roll(-1, 2)),
    ("with batch items and heads exchanged", lambda t: t.transpose(0, 1).reshape(t.shape)),
    ("with batch items and as many queries exchanged", _exchanged(0)),
    ("with heads and as many queries exchanged", _exchanged(1)),
)


def _averaged(axis: int) -> Callable[[Tensor], Tensor]:
    """Means of numbers along an axis; what is hidden anywhere along it is minus infinity then."""
    return lambda t: _along(axis, torch.all if t.dtype == torch.bool else torch.mean)(t)


# What may stand for the numbers of an additive mask and for its table of minus infinities.
BIAS_MOVES: Final = (
    *TABLE_MOVES,
    ("averaged over the heads", _averaged(1)),
    ("averaged over the batch items", _averaged(0)),
    ("averaged over the queries", _averaged(2)),
)
# The same of boolean tables alone: what they keep in words, what they hide, and the change.
_TABLE_CHANGES: Final[tuple[tuple[str, str, Callable[[Tensor], Tensor]], ...]] = (
    *(
        entry
        for axis, name in ((2, "query"), (1, "head"), (0, "batch item"))
        for entry in (
            (f"keeps for some {name}", f"hides for every {name}", _along(axis, torch.any)),
            (f"keeps for every {name}", f"hides for some {name}", _along(axis, torch.all)),
        )
    ),
    (
        "keeps before the first that it hides",
        "has from the first that it hides on",
        lambda t: t.cumprod(-1).bool(),
    ),
    (
        "has from the first that it keeps on",
        "hides before the first that it keeps",
        lambda t: t.cumsum(-1) > 0,
    ),
    (
        "has up to the last that it keeps",
        "hides behind the last that it keeps",
        lambda t: t.flip(-1).cumsum(-1).flip(-1) > 0,
    ),
    (
        "keeps behind the last that it hides",
        "has up to the last that it hides",
        lambda t: t.flip(-1).cumprod(-1).bool().flip(-1),
    ),
)


def _every_kind() -> Iterator[Cells]:
    yield from (KEPT, _not(KEPT, "that the mask hides"))
    yield from (REACHED, _not(REACHED, "that causality or window hides"))
    yield from (CACHED, _not(CACHED, "that are new"))  # before indices that they may have, too
    yield _both(
        KEPT, REACHED, "that the mask keeps, or causality and window leave", torch.logical_or
    )
    for axis, of, ofs in (
        (3, "(the {} key)", "({} keys)"),
        (2, "of the {} query", "of {} queries"),
    ):
        yield _index(axis, of.format("first"), lambda i, _n: i == 0)
        yield _index(axis, of.format("last"), lambda i, n: i == n - 1)
        yield _index(axis, ofs.format("all but the first"), lambda i, _n: i > 0)
        yield _index(axis, ofs.format("all but the last"), lambda i, n: i < n - 1)
        yield _index(axis, ofs.format("odd"), lambda i, _n: i % 2 == 1)
        yield _index(axis, ofs.format("even"), lambda i, _n: i % 2 == 0)
    for block in BLOCKS[1:]:
        yield from _tiles(block)
    yield _index(3, "in the second half", lambda i, n: i >= n // 2)
    yield _index(3, "in the first half", lambda i, n: i < n // 2)
    yield Cells("of queries from which the first half of the keys is hidden", _of_hidden_half)
    yield from (_past_size(*other) for other in _OTHER_SIZES)
    first, last = ", counted from the first key,", ", counted from the last key,"
    for words, aligned in (("", None), (first, False), (last, True)):
        make = partial(_ahead, bottom_right=aligned)
        yield make(f"at the query's own place{words}", lambda ahead: ahead == 0)
        yield make(f"after the query{words}", lambda ahead: ahead > 0)
        yield make(f"before the query{words}", lambda ahead: ahead < 0)
        yield make(f"at or after the query{words}", lambda ahead: ahead >= 0)
        yield make(f"at or before the query{words}", lambda ahead: ahead <= 0)
        yield make(f"one after the query{words}", lambda ahead: ahead == 1)
        yield make(f"more than one after the query{words}", lambda ahead: ahead > 1)
        yield make(f"one before the query{words}", lambda ahead: ahead == -1)
    for by_query, by in ((True, "query by query"), (False, "head by head")):
        words = f"up to the index of the row, where a group's heads are folded into rows {by},"
        yield Cells(words, partial(up_to_folded_place, by_query=by_query))
    yield Cells("in the last cached place", _place(last=True))
    yield Cells("in the first new place", _place(last=False))
    yield Cells(
        "after the query, where the last query stands at the last key that the mask keeps,",
        _past_kept_length,
        of_mask=True,
    )
    for bottom_right, end in ((False, "first"), (True, "last")):
        counted = f"counted from the {end} one,"
        behind = Cells(
            f"of queries whose place, {counted} lies behind the last key that the mask keeps",
            _of_hidden_places(bottom_right=bottom_right, own=False),
            of_mask=True,
        )
        yield behind
        yield _not(behind, behind.words.replace("behind", "before or at"))
        yield Cells(
            f"of queries whose own place, {counted} the mask hides",
            _of_hidden_places(bottom_right=bottom_right, own=True),
            of_mask=True,
        )
    yield Cells(
        "that the mask keeps with its columns moved by the number of cached keys",
        _moved_by_cache,
        of_mask=True,
    )
    moves = [(f"{words} keeps", f"{words} hides", change) for words, change in TABLE_MOVES]
    for keeps, hides, change in (*moves, *_TABLE_CHANGES):
        kept = _mask(f"that the mask {keeps}", change)
        yield kept
        yield _not(kept, f"that the mask {hides}")


# What the mask keeps: without one, every key.
_LEFT: Final = Cells(
    "that no mask hides",
    lambda call: admitted_by_mask(call).expand(call.inputs.score_shape),
)
# Ways in which keys are hidden: a part of them may be uncovered.
HIDDEN: Final = (
    Cells("that are hidden", lambda call: ~call.inputs.allowed(call.semantics)),
    _both(KEPT, REACHED, "that only the mask hides", lambda kept, reached: ~kept & reached),
    _both(REACHED, _LEFT, "that only causality or the window hides", lambda r, left: ~r & left),
    _both(
        KEPT,
        REACHED,
        "that the mask hides, and causality or the window too",
        lambda kept, reached: ~kept & ~reached,
    ),
    Cells("before the window", past_window),
)
CELLS: Final = tuple(_every_kind())


def keys_in_words(some: Sequence[Cells], hidden: Cells | None = None) -> str:
    """A noun phrase for the keys that have some properties, and are hidden in one way."""
    words = " ".join(one.words for one in some)
    if hidden is None or hidden is HIDDEN[0]:
        keys = "keys" if hidden is None else "hidden keys"
        if words == EVERY.words:
            return f"all {keys}"
        return words[1:-1] if _is_noun(words) and hidden is None else f"{keys} {words}".rstrip()
    if words.startswith("that "):
        joined = " and" if hidden.words.startswith("that ") else ""
        return f"keys {hidden.words}{joined} {words}"
    return f"keys {words} {hidden.words}" if words else f"keys {hidden.words}"


def _is_noun(words: str) -> bool:
    """Whether words are those of keys themselves, such as "(the last key)", and of nothing else."""
    return words.startswith("(") and words.find(")") == len(words) - 1


def of_queries(some: Sequence[Cells]) -> str:
    """The queries all of whose keys are meant, "" where it is not all of some queries' keys."""
    words = " ".join(one.words for one in some)
    whole = len(some) == 1 and words.startswith("of ") and words != EVERY.words
    return words.removeprefix("of ") if whole else ""


def have_of(keys: str) -> str:
    """The verb of what :func:`keys_in_words` says."""
    return "has" if keys.startswith("the ") else "have"


def it_of(keys: str) -> str:
    """The pronoun of what :func:`keys_in_words` says."""
    return "it" if keys.startswith("the ") else "them"
