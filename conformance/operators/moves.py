"""Moves along an axis: each place holds the content of another place, or of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import islice, permutations
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .._golden import golden
from .operator import PLACES, Operator, axes_of, axis_of, insert_place

Order = Callable[[int], Tensor]
# Places of tokens, which a model may shift on purpose.
TOKENS: Final = ("query", "key")
# Sizes of tiles that loops of kernels have.
TILES: Final = (2, 4, 8, 16, 32, 64, 128)


def _move_to(order: Order) -> Callable[[Tensor, int], Tensor]:
    """Return the move by which place i holds the content of ``order(count)[i]``."""
    return lambda result, axis: result.index_select(
        axis % result.dim(), _indices(order, result.shape[axis])
    )


# Cached, since stages share lengths.
@lru_cache(maxsize=1 << 14)
def _indices(order: Order, count: int) -> Tensor:
    with torch.inference_mode(mode=False):
        return order(count)


def _partner(partner: Callable[[Tensor], Tensor]) -> Order:
    def order(count: int) -> Tensor:
        own = torch.arange(count)
        other = partner(own)
        return torch.where((other >= 0) & (other < count), other, own)

    return order


def _even_first(count: int) -> Tensor:
    own = torch.arange(count)
    return torch.cat([own[::2], own[1::2]])


def _ends_exchanged(count: int) -> Tensor:
    own = torch.arange(count)
    return torch.where(own == 0, count - 1, torch.where(own == count - 1, 0, own))


def _reversed_in_tiles(size: int) -> Order:
    return lambda count: torch.cat([tile.flip(0) for tile in torch.arange(count).split(size)])


def _clamped(count: int, *, by: int) -> Tensor:
    return (torch.arange(count) + by).clamp(0, count - 1)


def _modulo(size: int) -> Order:
    return lambda count: torch.arange(count) % size


def _first_of_tile(size: int) -> Order:
    return lambda count: torch.arange(count) // size * size


def _reorder_tiles(order: Order, size: int) -> Order:
    """Reorder whole tiles, as pages under a wrong table; the last tile may be smaller."""

    def indices(count: int) -> Tensor:
        tiles = torch.arange(count).split(size)
        return torch.cat([tiles[i] for i in order(len(tiles)).tolist()])

    return indices


_ORDERS_OF_TILES: Final[tuple[tuple[str, Order], ...]] = (
    ("in the reverse order", lambda count: torch.arange(count).flip(0)),
    ("of which the last comes first", lambda count: torch.arange(count).roll(1)),
    ("of which the first comes last", lambda count: torch.arange(count).roll(-1)),
    ("exchanged in pairs", _partner(lambda own: own ^ 1)),
)
# Orders with their words, the plainest first; ``{}`` is the name of a place.
_ORDERS: Final[tuple[tuple[str, Order], ...]] = (
    ("those of the first {}", lambda count: torch.zeros(count, dtype=torch.int64)),
    ("those of the last {}", lambda count: torch.full((count,), count - 1)),
    ("those of the {} before", lambda count: torch.arange(count).roll(1)),
    ("those of the {} after", lambda count: torch.arange(count).roll(-1)),
    ("those of the {} before, of the first its own", lambda n: (torch.arange(n) - 1).clamp_min(0)),
    (
        "those of the {} after, of the last its own",
        lambda n: (torch.arange(n) + 1).clamp_max(n - 1),
    ),
    ("those of the {} counted from the end", lambda count: torch.arange(count).flip(0)),
    ("those of the other {} of each pair", _partner(lambda own: own ^ 1)),
    ("with the {}s' halves exchanged", lambda count: torch.arange(count).roll(count // 2)),
    ("with even {}s first, odd ones behind", _even_first),
    ("with {}s dealt out to even places first", lambda count: _even_first(count).argsort()),
    ("with the first {} and the last exchanged", _ends_exchanged),
    *((f"those of the {{}} at the same place of the first tile of {n}", _modulo(n)) for n in TILES),
    *((f"those of the first {{}} of each tile of {n}", _first_of_tile(n)) for n in TILES),
    *(
        (f"with {{}}s in the reverse order in each tile of {size}", _reversed_in_tiles(size))
        for size in TILES
    ),
)
# The number of main moves, and of all orders.
_MAIN: Final = 8
ORDERS: Final = len(_ORDERS)
_TOGETHER: Final[tuple[tuple[str, Callable[[Tensor, int], Tensor]], ...]] = (
    ("averaged over the {}s", lambda t, axis: t.mean(axis, keepdim=True).expand_as(t)),
    ("summed over the {}s", lambda t, axis: t.sum(axis, keepdim=True).expand_as(t)),
    ("summed up over the {}s so far", lambda t, axis: t.cumsum(axis)),
    ("less their mean over the {}s", lambda t, axis: t - t.mean(axis, keepdim=True)),
    ("the largest of all {}s", lambda t, axis: t.amax(axis, keepdim=True).expand_as(t)),
    ("less the same of the {} before", lambda t, axis: t - t.roll(1, axis)),
    (
        "divided by their length over the {}s",
        lambda t, axis: normalize(t, dim=axis),
    ),
)


def moves(axes: str) -> Iterator[Operator]:
    """Yield moves along each axis of a result, and exchanges of two axes."""
    for noun, along in axes_of(axes, pairs=True):
        for words, order in _ORDERS:
            misplaces = noun not in TOKENS
            yield Operator(insert_place(words, noun), along(_move_to(order)), misplaces=misplaces)
    if axes.endswith("QK"):
        exchanged = partial(_exchanged, one=-2, other=-1)
        yield Operator("those of queries and keys exchanged", exchanged)
    if axes[:2] in ("BH", "BG"):
        one, other = -len(axes), 1 - len(axes)
        exchanged = partial(_exchanged, one=one, other=other)
        yield Operator("those of batch items and heads exchanged", exchanged, misplaces=True)
    if "H" in axes[:2]:
        in_turns = partial(_deal_out, axis=axis_of(axes, "H"))
        yield Operator("those of the head dealt out in turns over the groups", in_turns)
        for words, exchange in OF_GROUPS:
            yield Operator(words, partial(change_groups, axis=axis_of(axes, "H"), order=exchange))


def _by_group(groups: Tensor, of: int, own: int) -> Tensor:
    """Return, for every head of the group g, what the head g has."""
    heads = groups.flatten(of, own)
    return heads.narrow(own, 0, groups.shape[of]).unsqueeze(own).expand_as(groups)


# Of heads of groups in front of their place within a group.
OF_GROUPS: Final[tuple[tuple[str, Callable[[Tensor, int, int], Tensor]], ...]] = (
    ("those of the heads of each group in the reverse order", lambda t, _of, own: t.flip(own)),
    ("those of the first head of the group", lambda t, _of, own: t.narrow(own, 0, 1).expand_as(t)),
    ("those whose index is that of the head's key/value head", _by_group),
    ("those of the heads of the first group", lambda t, of, _own: t.narrow(of, 0, 1).expand_as(t)),
    (
        "laid out by their place in a group, and read group by group",
        lambda t, of, own: t.transpose(of, own).reshape(t.shape),
    ),
    ("those of the group of heads before", lambda t, of, _own: t.roll(1, of)),
    ("those of the group of heads after", lambda t, of, _own: t.roll(-1, of)),
    (
        "averaged over the heads of each group",
        lambda t, _of, own: t.double().mean(own, keepdim=True).expand_as(t),
    ),
)


def change_groups(
    result: Tensor, sizes: golden.Sizes, *, axis: int, order: Callable[[Tensor, int, int], Tensor]
) -> Tensor:
    """Change heads ``[…, H, …]`` as groups of those that share a key/value head."""
    shared = max(sizes.num_kv_heads, 1)
    if result.shape[axis] % shared:
        msg = f"{result.shape[axis]} heads are no whole groups of {shared} key/value heads"
        raise ValueError(msg)
    groups = result.unflatten(axis, (shared, -1))
    return order(groups, axis - 1, axis).flatten(axis - 1, axis)


def main_orders(noun: str) -> Iterator[tuple[str, Order]]:
    """Yield the main moves of things with a name: words, and where the content of each is from."""
    return ((insert_place(words, noun), order) for words, order in _ORDERS[:_MAIN])


def main_moves(axes: str, *, but: str = "") -> Iterator[Operator]:
    """Yield the main moves along each axis but the last, for parts of an axis."""
    for noun, along in islice(axes_of(axes), len(axes) - 1):
        for words, order in _ORDERS[:_MAIN] if noun != PLACES.get(but) else ():
            misplaces = noun not in TOKENS
            yield Operator(insert_place(words, noun), along(_move_to(order)), misplaces=misplaces)


def moves_in_one_head(axes: str) -> Iterator[Operator]:
    """Yield the main moves in the first head alone, or in the last."""
    for move in main_moves(axes, but=axes[1]):
        for words, head in (("first", 0), ("last", -1)):
            change = partial(
                _change_head, change=move.change, axis=axis_of(axes, axes[1]), head=head
            )
            yield Operator(f"{move.words}, in the {words} head alone", change)


def _change_head(
    result: Tensor, *, change: Callable[[Tensor], Tensor], axis: int, head: int
) -> Tensor:
    changed = result.clone()
    changed.select(axis, head).copy_(change(result).select(axis, head))
    return changed


_ORDERS_IN_TILES: Final = tuple(
    (f"with tiles of {size} {{}}s {words}", _reorder_tiles(order, size))
    for words, order in _ORDERS_OF_TILES
    for size in TILES
)


def layouts(axes: str) -> Iterator[Operator]:
    """Yield reordered tiles along each axis, and heads read with another order of axes.

    The causes are pages under a wrong table, and a view in place of a transpose.
    """
    for noun, along in axes_of(axes):
        for words, order in _ORDERS_IN_TILES:
            yield Operator(insert_place(words, noun), along(_move_to(order)))
    if axes[-1] not in "DV" or len(axes) < len("BHQD"):
        return
    names = [insert_place("{}s", PLACES[letter]) for letter in axes]
    own = ", ".join(names)
    for axis_order in islice(permutations(range(4)), 1, None):
        other = ", ".join(names[axis] for axis in axis_order)
        view, back = (partial(each, order=axis_order) for each in (_viewed, _read_back))
        yield Operator(f"laid out as {other} and read as {own}", view, misplaces=True)
        yield Operator(f"laid out as {own} and read as {other}", back, misplaces=True)


def _viewed(result: Tensor, *, order: tuple[int, ...]) -> Tensor:
    return result.permute(order).reshape(result.shape)


def _read_back(result: Tensor, *, order: tuple[int, ...]) -> Tensor:
    shape = [result.shape[axis] for axis in order]
    return result.reshape(shape).permute([order.index(axis) for axis in range(len(order))])


def _deal_out(result: Tensor, sizes: golden.Sizes, *, axis: int) -> Tensor:
    """Put the head ``g * Hkv + j`` in the place of ``j * G + g``, for groups of G heads."""
    count = result.shape[axis]
    if count % max(sizes.num_kv_heads, 1):
        msg = f"{count} heads are no whole groups of {sizes.num_kv_heads} key/value heads"
        raise ValueError(msg)
    heads = torch.arange(count).reshape(-1, sizes.num_kv_heads).T.flatten()
    return result.index_select(axis % result.dim(), heads)


def sums(axes: str) -> Iterator[Operator]:
    """Yield sums, means and similar reductions along each axis of a result."""
    for noun, along in axes_of(axes):
        for words, together in _TOGETHER:
            yield Operator(insert_place(words, noun), along(together))


def _exchanged(result: Tensor, *, one: int, other: int) -> Tensor:
    if result.shape[one] != result.shape[other]:
        msg = f"{result.shape[one]} places are not exchanged with {result.shape[other]}"
        raise ValueError(msg)
    return result.transpose(one, other)
