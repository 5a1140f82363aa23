"""Kinds of keys, by their place and the query's, which a table may show or hide by mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from .moves import TILES
from .operator import Operator

# A table ``[Lq, Lk]``, or one for each head, from how far keys lie ahead of queries, the sizes and
# the number of cached keys.
Kind = Callable[[Tensor, golden.Sizes, int], Tensor]
# Thresholds of indices and distances, and steps between keys.
_INDICES: Final = range(2, 160)
_DISTANCES: Final = range(1, 64)
_STEPS: Final = range(3, 34)


def distances_from_first_key(ahead: Tensor) -> Tensor:
    """Return distances from queries to keys, the first query at the first key."""
    queries, keys = ahead.shape[-2:]
    return torch.arange(keys) - torch.arange(queries)[:, None]


def distances_from_last_key(ahead: Tensor) -> Tensor:
    """Return distances from queries to keys, the last query at the last key."""
    queries, keys = ahead.shape[-2:]
    return distances_from_first_key(ahead) - (keys - queries)


# Where the places of queries are counted from, in words.
_COUNTED: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("", torch.clone),
    (", counted from the first key", distances_from_first_key),
    (", counted from the last key", distances_from_last_key),
)
_BY_DISTANCE: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("at the query's own place", lambda ahead: ahead == 0),
    ("after the query", lambda ahead: ahead > 0),
    ("before the query", lambda ahead: ahead < 0),
    ("at or after the query", lambda ahead: ahead >= 0),
    ("at or before the query", lambda ahead: ahead <= 0),
    ("one after the query", lambda ahead: ahead == 1),
    ("one before the query", lambda ahead: ahead == -1),
)
_BY_TILE: Final[tuple[tuple[str, Callable[[Tensor, Tensor], Tensor]], ...]] = (
    ("in the query's own tile of {}", torch.eq),
    ("in the query's own tile of {} or one before it", torch.le),
    ("in a tile of {} after the query's own", torch.gt),
    ("in a tile of {} before the query's own", torch.lt),
)
# By the index of a key and the number of cached ones.
_OF_CACHE: Final[tuple[tuple[str, Callable[[Tensor, int], Tensor]], ...]] = (
    ("that are cached", lambda index, past: index < past),
    ("that are new", lambda index, past: index >= past),
    ("in the last cached place", lambda index, past: (index == past - 1) & (past > 0)),
    ("in the first new place", lambda index, past: (index == past) & (past > 0)),
)
# Wrong ends of a loop over the keys: sizes of other axes.
_OTHER_SIZES: Final[tuple[tuple[str, Callable[[golden.Sizes], int]], ...]] = (
    ("queries", lambda sizes: sizes.query_length),
    ("channels of a head", lambda sizes: sizes.head_size),
    ("channels of a value head", lambda sizes: sizes.value_head_size),
    ("heads", lambda sizes: sizes.num_heads),
    ("batch items", lambda sizes: sizes.batch),
)


def _index(ahead: Tensor) -> Tensor:
    return torch.arange(ahead.shape[-1]).expand(ahead.shape)


def _distance_kind(holds: Callable[[Tensor], Tensor]) -> Kind:
    return lambda ahead, _sizes, _past: holds(ahead)


def _index_kind(holds: Callable[[Tensor], Tensor]) -> Kind:
    return lambda ahead, _sizes, _past: holds(_index(ahead))


def _counted(kind: Kind, ahead_of: Callable[[Tensor], Tensor]) -> Kind:
    return lambda ahead, sizes, past: kind(ahead_of(ahead), sizes, past)


def _tile_kind(size: int, relation: Callable[[Tensor, Tensor], Tensor]) -> Kind:
    return _distance_kind(
        lambda ahead: relation(_index(ahead) // size, (_index(ahead) - ahead) // size)
    )


def _cache_kind(of: Callable[[Tensor, int], Tensor]) -> Kind:
    return lambda ahead, _sizes, past: of(_index(ahead), past)


def _past_size(size_of: Callable[[golden.Sizes], int]) -> Kind:
    return lambda ahead, sizes, _past: _index(ahead) >= size_of(sizes)


def _past(number: int) -> Kind:
    return _index_kind(lambda index: index >= number)


def _first_keys(number: int) -> Kind:
    return _index_kind(lambda index: index < number)


def _stepped_keys(step: int) -> Kind:
    return _index_kind(lambda index: index % step == step - 1)


def _more_than(number: int, sign: int) -> Kind:
    return _distance_kind(lambda ahead: sign * ahead > number)


def _up_to_folded(*, by_query: bool) -> Kind:
    """Select keys up to the row index, with the heads of a group as rows: ``[H, Lq, Lk]``."""

    def kind(ahead: Tensor, sizes: golden.Sizes, _past: int) -> Tensor:
        group = sizes.num_heads // max(sizes.num_kv_heads, 1)
        head = (torch.arange(sizes.num_heads) % group)[:, None, None]
        queries = ahead.shape[-2]
        query = torch.arange(queries)[:, None]
        rows = query * group + head if by_query else head * queries + query
        return ahead <= rows - query

    return kind


def _kinds() -> Iterator[tuple[str, Kind]]:
    of_places = [(words, _distance_kind(holds)) for words, holds in _BY_DISTANCE]
    of_tiles = [
        (words.format(size), _tile_kind(size, relation))
        for size in TILES
        for words, relation in _BY_TILE
    ]
    for more, ahead_of in _COUNTED:
        for words, kind in (*of_places, *of_tiles):
            yield f"{words}{more}", _counted(kind, ahead_of)
    yield from ((words, _cache_kind(of)) for words, of in _OF_CACHE)
    for words, size_of in _OTHER_SIZES:
        yield f"past as many as there are {words}", _past_size(size_of)
    for number in _INDICES:
        if number not in TILES[2:]:  # tiles are parts of any axis
            yield f"past the first {number}", _past(number)
        yield f"among the first {number}", _first_keys(number)
    for number in _DISTANCES:
        yield f"more than {number} after the query", _more_than(number, 1)
        yield f"more than {number} before the query", _more_than(number, -1)
    for step in filter(lambda step: step not in TILES, _STEPS):
        places = ", ".join(str(times * step - 1) for times in (1, 2, 3))
        yield f"at the indices {places}, …", _stepped_keys(step)
    for words, by_query in (("query by query", True), ("head by head", False)):
        said = "up to the index of the row, where a group's heads are folded into rows"
        yield f"{said} {words}", _up_to_folded(by_query=by_query)


_KINDS: Final = tuple(_kinds())
# Fixes: a causal call may be intended, which has to be declared.
_DECLARE: Final = "if every call is meant to be causal, declare it: causal={}, always_causal=True"
_MEANT: Final = {
    "after the query": _DECLARE.format('"bottom-right"'),
    "after the query, counted from the last key": _DECLARE.format('"bottom-right"'),
    "after the query, counted from the first key": _DECLARE.format('"top-left"'),
    "before the query": "if it is meant to be causal, hide those after it: tril, not triu",
    **{
        f"more than {number} after the query": "if it is meant to be causal, hide every key after "
        "the query: triu(1)"
        for number in _DISTANCES
    },
}


@cache
def kinds_of_keys(*verbs: str) -> tuple[Operator, ...]:
    """Return operators that fill kinds of keys; ``verbs`` are of "true", "false" and "zero"."""
    return tuple(
        Operator(
            f"{verb} for keys {words}",
            partial(_filled, kind=kind, verb=verb),
            fix="" if verb == "true" else _MEANT.get(words, ""),
        )
        for words, kind in _KINDS
        for verb in verbs
    )


def _filled(
    result: Tensor, ahead: Tensor, sizes: golden.Sizes, past: int, *, kind: Kind, verb: str
) -> Tensor:
    chosen, result = torch.broadcast_tensors(kind(ahead, sizes, past), result)
    return result.masked_fill(chosen, verb == "true")
