"""Places of queries among the keys, and what causality and windows make of the distances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from .keys import distances_from_first_key
from .moves import TILES
from .numbers import SIZES
from .operator import Operator

Sides = tuple[int, int]
# How far the first query stands from the first key, by the sizes and the number of cached keys.
Shift = Callable[[golden.Sizes, int], int]
# Wrong ends by numbers of keys, and limits of shifts.
_FEW: Final = (1, 2, 3)
_LIMITS: Final = range(1, 33)


def _more_keys(sizes: golden.Sizes, _past: int = 0) -> int:
    return sizes.key_length - sizes.query_length


_SHIFTS: Final[tuple[tuple[str, Shift], ...]] = (
    ("from the first key", lambda _sizes, _past: 0),
    ("from the last key", _more_keys),
    ("from the first key that is not cached", lambda _sizes, past: past),
    (
        "from the last key, less the number of cached keys",
        lambda sizes, past: _more_keys(sizes) - past,
    ),
    ("from the middle of the keys", lambda sizes, _past: _more_keys(sizes) // 2),
    (
        "from the last key, or the first one where there are more queries than keys",
        lambda sizes, _past: max(_more_keys(sizes), 0),
    ),
    (
        "from the first key, less the number by which keys are more than queries",
        lambda sizes, _past: -_more_keys(sizes),
    ),
    (
        "from the last key, with the cached keys counted twice",
        lambda sizes, past: _more_keys(sizes) + past,
    ),
    *((f"from {noun} on", lambda sizes, _past, size=size: size(sizes)) for noun, size in SIZES),
    ("from as many keys before the first as there are", lambda sizes, _past: -sizes.key_length),
    (
        "from as many keys before the first as there are queries",
        lambda sizes, _past: -sizes.query_length,
    ),
)


def places(stage: str) -> Iterator[Operator]:
    """Yield changes of the places of queries, or of their distances to keys."""
    yield Operator("negated", torch.neg)
    yield Operator("without their sign", torch.abs)
    for size in TILES:
        yield Operator(f"counted in tiles of {size}", partial(_round_to_tiles, size=size))
    shifted = _places_from if stage == "positions" else _distances_from
    for words, shift in _SHIFTS:
        yield Operator(f"counted {words}", partial(shifted, shift=shift))
    if stage == "positions":
        return
    yield Operator("taken modulo the number of keys", _modulo_keys)
    for words, least in (
        ("negative past 127, as in a signed byte", 128),
        ("counted from zero again past 255, as in a byte", 0),
    ):
        yield Operator(words, partial(_wrap_in_bytes, least=least))
    for most in _LIMITS:
        before, behind = partial(_no_more, most=most), partial(_no_less, least=-most)
        said = f"counted from the last key, but from no more than {most} keys"
        yield Operator(f"{said} after the first", partial(_distances_from, shift=before))
        yield Operator(f"{said} before the first", partial(_distances_from, shift=behind))
    for size in TILES[2:]:
        for words, by in (("one less", -1), ("one more", 1)):
            said = f"counted {words} for each tile of {size} queries before"
            yield Operator(said, partial(_shift_by_tiles, size=size, by=by))
        said = f"those of the last query of its tile of {size}"
        yield Operator(said, partial(_last_of_tile, size=size))


def _round_to_tiles(result: Tensor, *, size: int) -> Tensor:
    return result.div(size, rounding_mode="floor") * size


def _places_from(result: Tensor, sizes: golden.Sizes, past: int, *, shift: Shift) -> Tensor:
    return torch.arange(len(result)) + shift(sizes, past)


def _distances_from(result: Tensor, sizes: golden.Sizes, past: int, *, shift: Shift) -> Tensor:
    queries, keys = result.shape[-2:]
    return torch.arange(keys) - torch.arange(queries)[:, None] - shift(sizes, past)


def _no_more(sizes: golden.Sizes, _past: int, *, most: int) -> int:
    return min(_more_keys(sizes), most)


def _no_less(sizes: golden.Sizes, _past: int, *, least: int) -> int:
    return max(_more_keys(sizes), least)


def _modulo_keys(ahead: Tensor) -> Tensor:
    return -((-ahead) % max(ahead.shape[-1], 1))


def _wrap_in_bytes(ahead: Tensor, *, least: int) -> Tensor:
    """Return distances of places stored in eight bits, from minus ``least`` on."""
    keys = torch.arange(ahead.shape[-1])
    kept, places = ((each + least) % 256 - least for each in (keys, keys - ahead))
    return kept - places


def _shift_by_tiles(ahead: Tensor, *, size: int, by: int) -> Tensor:
    return ahead - by * (torch.arange(ahead.shape[-2]) // size)[:, None]


def _last_of_tile(ahead: Tensor, *, size: int) -> Tensor:
    queries = torch.arange(ahead.shape[-2])
    last = (queries // size * size + size - 1).clamp_max(max(ahead.shape[-2] - 1, 0))
    return ahead.index_select(-2, last)


_BY_CAUSALITY: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("the keys before the query, without its own", lambda ahead: ahead < 0),
    ("the keys from the query's own on", lambda ahead: ahead >= 0),
    ("the keys after the query", lambda ahead: ahead > 0),
    ("the key at the query's own place", lambda ahead: ahead == 0),
    ("the keys at every place but the query's own", lambda ahead: ahead != 0),
)


def _inverted(counted: tuple[bool, bool]) -> tuple[bool, bool]:
    return not counted[0], counted[1]


# Operators on the two flags: causality counts, and the mask counts.
FLAGS: Final = (Operator("inverted", _inverted),)


def causal_tables() -> Iterator[Operator]:
    """Yield tables that a causal call may show in place of keys up to the query's own."""
    for words, shows in _BY_CAUSALITY:
        yield Operator(f"made of {words} alone", partial(_where_causal, shows=shows))
    yield Operator("made with the last query at the last key that the mask keeps", _up_to_kept)
    for number in _FEW:
        words = f"made with {number} more {'key' if number == 1 else 'keys'} after the query"
        yield Operator(words, partial(_where_causal, shows=partial(_up_to, number=number)))
    for number in _FEW[1:]:
        fewer = partial(_where_causal, shows=partial(_up_to, number=-number))
        yield Operator(f"made with {number} fewer keys up to the query's own", fewer)


def _kept_length(by_mask: Tensor, table: Tensor) -> Tensor:
    """Return the number of keys up to the last that the mask keeps: ``[B, H, Lq, 1]``."""
    queries, keys = table.shape[-2:]
    kept = by_mask.expand(*by_mask.shape[:-2], queries, keys)
    return (torch.arange(1, keys + 1) * kept).amax(-1, keepdim=True)


def _up_to_kept(table: Tensor, by_mask: Tensor, counted: tuple[bool, bool]) -> Tensor:
    queries, keys = table.shape[-2:]
    if not counted[0] or not keys:
        return table
    place = torch.arange(queries)[:, None] - queries + _kept_length(by_mask, table)
    return torch.arange(keys) <= place


def _where_causal(
    table: Tensor, ahead: Tensor, counted: tuple[bool, bool], *, shows: Callable[[Tensor], Tensor]
) -> Tensor:
    return shows(ahead) if counted[0] else table


def _up_to(ahead: Tensor, *, number: int) -> Tensor:
    return ahead <= number


def _difference_text(number: int) -> str:
    keys = "key" if abs(number) == 1 else "keys"
    return f"{abs(number)} {'more' if number > 0 else 'fewer'} {keys}"


def _moved(side: int, _past: int, *, number: int) -> int:
    return side + number


# Windows of other numbers of keys, made of the right ones; -1 is no limit on a side.
_WINDOWS: Final[tuple[tuple[str, Callable[[int, int], Sides]], ...]] = (
    ("without a limit before the query", lambda _left, right: (-1, right)),
    ("without a limit after the query", lambda left, _right: (left, -1)),
    ("without a limit of zero keys", lambda left, right: (left or -1, right or -1)),
    ("without a limit of zero keys before the query", lambda left, right: (left or -1, right)),
    ("without a limit of zero keys after the query", lambda left, right: (left, right or -1)),
    ("as it is", lambda left, right: (left, right)),
    ("with both sides exchanged", lambda left, right: (right, left)),
    ("with as many keys after the query as before it", lambda left, _right: (left, left)),
    ("with as many keys before the query as after it", lambda _left, right: (right, right)),
    (
        "with no more keys after the query than before it",
        lambda left, right: (
            (left, min((s for s in (left, right) if s >= 0), default=-1))
            if left >= 0
            else (left, right)
        ),
    ),
    ("with the larger side on both", lambda left, right: (max(left, right),) * 2),
    ("with the smaller side on both", lambda left, right: (min(left, right),) * 2),
    (
        "with the larger side on both, where both have a limit",
        lambda left, right: (left, right) if min(left, right) < 0 else (max(left, right),) * 2,
    ),
)
# Numbers of keys of a side that has a limit, in words, from the right one and that of cached keys.
_NUMBERS: Final[tuple[tuple[str, Callable[[int, int], int]], ...]] = (
    ("half as many keys", lambda side, _past: side // 2),
    ("twice as many keys", lambda side, _past: 2 * side),
    ("as many keys more as are cached", lambda side, past: side + past),
    *(
        (_difference_text(number), partial(_moved, number=number))
        for number in (-3, -2, -1, 1, 2, 3)
    ),
)
# The ends of a window: words, verb, and flags for before and after the query.
_SIDES: Final = (
    ("before the query", "begins", (True, False)),
    ("after the query", "ends", (False, True)),
    ("on both sides", "begins and ends", (True, True)),
)
# Sides whose -1 is taken as a number of keys, and whether after the query in causal calls, too.
_LITERAL: Final = (
    ("as a number of keys", (True, True), True),
    ("before the query as a number of keys", (True, False), True),
    ("after the query as a number of keys", (False, True), True),
    ("after the query as a number of keys where the call is not causal", (False, True), False),
    (
        "as a number of keys, after the query only where the call is not causal",
        (True, True),
        False,
    ),
)
# Keys that an end may show, by their distance from the query on its side.
_ENDS: Final[tuple[tuple[str, Callable[[Tensor, int], Tensor]], ...]] = (
    ("the keys at its end or beyond, not those within", lambda off, side: off >= side),
    ("the keys beyond its end alone", lambda off, side: off > side),
    ("the key at its end alone", lambda off, side: off == side),
    ("the keys from as far on the other side on", lambda off, side: off <= -side),
)


def window_tables() -> Iterator[Operator]:
    """Yield tables that a window may show in place of the keys within its sides."""
    for anew in (False, True):
        more = ", counted from the first key" if anew else ""
        for words, change in _WINDOWS if anew else filter(_is_changed, _WINDOWS):
            yield Operator(f"made {words}{more}", partial(_change_window, change=change, anew=anew))
        for (words, of), (where, _, sides) in product(_NUMBERS, _SIDES):
            counted = partial(_change_sides, of=of, sides=sides, anew=anew)
            yield Operator(f"made with {words} {where}{more}", counted)
    yield Operator("made without a limit before the query for cached keys", _show_cached)
    for words, sides, causal in _LITERAL:
        literal = partial(_taken_literally, sides=sides, causal=causal)
        yield Operator(f"made with -1 {words}", literal)
    for (words, shows), (where, _, sides) in product(_ENDS, _SIDES[:2]):
        yield Operator(f"made {where} of {words}", partial(_change_end, shows=shows, sides=sides))
    for size, (_, ends, sides), outwards in product(TILES, _SIDES, (True, False)):
        tile = "the whole tile" if outwards else "no part of the tile"
        tiled = partial(_move_ends_to_tiles, size=size, sides=sides, outwards=outwards)
        yield Operator(f"made with {tile} of {size} keys in which it {ends}", tiled)


def _is_changed(window: tuple[str, Callable[[int, int], Sides]]) -> bool:
    return window[0] != "as it is"


def _within(ahead: Tensor, left: int, right: int) -> Tensor:
    return ((left == -1) | (ahead >= -left)) & ((right == -1) | (ahead <= right))


def _change_window(
    table: Tensor,
    ahead: Tensor,
    window: Sides | None,
    *,
    change: Callable[[int, int], Sides],
    anew: bool,
) -> Tensor:
    if window is None:
        return table
    return _within(distances_from_first_key(ahead) if anew else ahead, *change(*window))


def _change_sides(
    table: Tensor,
    ahead: Tensor,
    window: Sides | None,
    past: int,
    *,
    of: Callable[[int, int], int],
    sides: tuple[bool, bool],
    anew: bool,
) -> Tensor:
    if window is None:
        return table
    ahead = distances_from_first_key(ahead) if anew else ahead
    left, right = (
        torch.inf if side < 0 else of(side, past) if changed else side
        for side, changed in zip(window, sides, strict=True)
    )
    return (ahead >= -left) & (ahead <= right)


def _show_cached(table: Tensor, ahead: Tensor, window: Sides | None, past: int) -> Tensor:
    if window is None:
        return table
    return table | (_within(ahead, -1, window[1]) & (torch.arange(ahead.shape[-1]) < past))


def _taken_literally(
    table: Tensor,
    ahead: Tensor,
    window: Sides | None,
    counted: tuple[bool, bool],
    *,
    sides: tuple[bool, bool],
    causal: bool,
) -> Tensor:
    """Take -1 as a number of keys; without ``causal``, not after the query of causal calls."""
    if window is None:
        return table
    literal = sides[0], sides[1] and (causal or not counted[0])
    left, right = (
        side if side >= 0 or taken else torch.inf
        for side, taken in zip(window, literal, strict=True)
    )
    return (ahead >= -left) & (ahead <= right)


def _change_end(
    table: Tensor,
    ahead: Tensor,
    window: Sides | None,
    *,
    shows: Callable[[Tensor, int], Tensor],
    sides: tuple[bool, bool],
) -> Tensor:
    left, right = window or (-1, -1)
    before = sides[0]
    if (left if before else right) < 0:
        return table
    if before:
        return _within(ahead, -1, right) & shows(-ahead, left)
    return _within(ahead, left, -1) & shows(ahead, right)


def _move_ends_to_tiles(
    table: Tensor,
    ahead: Tensor,
    window: Sides | None,
    *,
    size: int,
    sides: tuple[bool, bool],
    outwards: bool,
) -> Tensor:
    if window is None:
        return table
    left, right = window
    keys = torch.arange(ahead.shape[-1])
    own = keys - ahead  # where each query stands
    first, end = own - left, own + right + 1
    if sides[0]:
        first = (first if outwards else first + size - 1) // size * size
    if sides[1]:
        end = (end + size - 1 if outwards else end) // size * size
    return ((keys >= first) | (left < 0)) & ((keys < end) | (right < 0))
