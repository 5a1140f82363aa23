"""Moves along an axis: each place holds what belongs to another, or what several have together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .operator import PLACES, Operator, axis_of

Order = Callable[[int], Tensor]
# Axes of tokens: some models shift these.
_TOKENS: Final = "LQK"
# Sizes of tiles that loops of kernels have.
TILES: Final = (2, 4, 8, 16, 32, 64, 128)


def _from(order: Order) -> Callable[[Tensor, int], Tensor]:
    """Place i holds what stands at ``order(count)[i]``; ValueError where that moves nothing."""

    def moved(result: Tensor, axis: int) -> Tensor:
        count = result.shape[axis]
        places = order(count)
        if torch.equal(places, torch.arange(count)):
            msg = f"nothing is moved among {count} places"
            raise ValueError(msg)
        return result.index_select(axis % result.dim(), places)

    return moved


def _partner(partner: Callable[[Tensor], Tensor]) -> Order:
    """Each place exchanged with a partner, if it has one."""

    def order(count: int) -> Tensor:
        own = torch.arange(count)
        other = partner(own)
        return torch.where((other >= 0) & (other < count), other, own)

    return order


def _by_parity(count: int) -> Tensor:
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


# In words of which the place is named by ``{}``; the plainest first.
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
    ("with even {}s first, odd ones behind", _by_parity),
    ("with {}s dealt out to even places first", lambda count: _by_parity(count).argsort()),
    ("with the first {} and the last exchanged", _ends_exchanged),
    *((f"those of the {{}} at the same place of the first tile of {n}", _modulo(n)) for n in TILES),
    *((f"with {{}}s reversed in each tile of {size}", _reversed_in_tiles(size)) for size in TILES),
)
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
    """Moves along each axis of a result, and of two axes exchanged."""
    for letter in filter(PLACES.get, dict.fromkeys(axes)):
        for words, order in _ORDERS:
            move = partial(_moved, move=_from(order), axis=axis_of(axes, letter))
            yield Operator(words.format(PLACES[letter]), move, misplaces=letter not in _TOKENS)
    if axes.endswith("QK"):
        yield Operator("those of queries and keys exchanged", _transposed)


def sums(axes: str) -> Iterator[Operator]:
    """What numbers along each axis of a result have together."""
    for letter in filter(PLACES.get, dict.fromkeys(axes)):
        for words, together in _TOGETHER:
            change = partial(_together, together=together, axis=axis_of(axes, letter))
            yield Operator(words.format(PLACES[letter]), change)


def _moved(result: Tensor, *, move: Callable[[Tensor, int], Tensor], axis: int) -> Tensor:
    return move(result, axis)


def _together(result: Tensor, *, together: Callable[[Tensor, int], Tensor], axis: int) -> Tensor:
    return together(result, axis)


def _transposed(result: Tensor) -> Tensor:
    if result.shape[-1] != result.shape[-2]:
        msg = "there are not as many queries as keys"
        raise ValueError(msg)
    return result.mT
