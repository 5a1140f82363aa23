"""Softmaxes made tile by tile, with wrong rescaling or a wrong combination of tiles.

A kernel that loops over tiles of keys keeps the largest logit so far, and multiplies its sums by
``exp(old - new)`` whenever this maximum grows (Milakov and Gimelshein, 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._golden import golden
from .moves import OF_GROUPS, TILES, Order, change_groups, main_orders
from .operator import Operator

# A factor of a running sum, from the largest logit before a tile and after it.
Factor = Callable[[Tensor, Tensor], Tensor]
_FIX: Final = (
    "take exponentials less the largest logit so far, and multiply both sums once by "
    "exp(old maximum - new maximum)"
)
_FIX_OF_TILES: Final = (
    "weigh the answer of each tile by exp(its log-sum-exp - that of the whole row)"
)
# Sizes of tiles that are no power of two.
_SIZES: Final = (*TILES, 3, 5, 6, 10, 12, 24, 48, 96)


def _right(old: Tensor, new: Tensor) -> Tensor:
    return (old - new).exp()


_NOT: Final[tuple[tuple[str, Factor], ...]] = (
    ("not rescaled", lambda old, _new: torch.ones_like(old)),
)
_FACTORS: Final[tuple[tuple[str, Factor], ...]] = (
    *_NOT,
    ("rescaled twice", lambda old, new: (2.0 * (old - new)).exp()),
    *(
        (f"multiplied by {words}, not by exp(old maximum - new maximum)", factor)
        for words, factor in (
            ("exp(the new maximum)", lambda _old, new: new.exp()),
            ("exp(minus the new maximum)", lambda _old, new: (-new).exp()),
            ("exp(the old maximum)", lambda old, _new: old.exp()),
            ("exp(old maximum + new maximum)", lambda old, new: (old + new).exp()),
            ("exp(old maximum times new maximum)", lambda old, new: (old * new).exp()),
            ("2^(old maximum - new maximum)", lambda old, new: ((old - new) * math.log(2)).exp()),
            ("zero", lambda old, _new: torch.zeros_like(old)),
        )
    ),
)
# Flags: whether the weighted sum, and whether the sum of the weights.
_SUMS: Final = {
    "the weighted sum so far": (True, False),
    "the sum of the weights so far": (False, True),
    "both sums so far": (True, True),
}
# Selections of tiles, from their indices and their count.
At = Callable[[Tensor, int], Tensor]
_AT: Final[tuple[tuple[str, At], ...]] = (
    ("", lambda tile, _count: tile >= 0),
    (" from the third tile on", lambda tile, _count: tile > 1),
    (" from the fourth tile on", lambda tile, _count: tile > 2),  # noqa: PLR2004 (counted from 0)
    (" at the second tile", lambda tile, _count: tile == 1),
    (" at the last tile", lambda tile, count: tile == count - 1),
)


def loops() -> Iterator[Operator]:
    """Yield softmaxes in tiles of each size, and in fixed numbers of parts."""
    for size, (sums, wrong) in product(_SIZES, _SUMS.items()):
        for where, at in _AT:
            for words, factor in _NOT if where else _FACTORS:
                made = partial(_online_softmax, size=size, wrong=wrong, factor=factor, at=at)
                verb = "are" if sums.startswith("both") else "is"
                said = f"made in tiles of {size} keys, of which {sums} {verb} {words}{where}"
                yield Operator(said, made, fix=_FIX)
    for size in TILES:
        tiles = f"made in tiles of {size} keys"
        peaks = partial(_online_softmax, size=size, wrong=(False, False), of_tile=True)
        yield Operator(
            f"{tiles}, each less its own largest logit and not that so far", peaks, fix=_FIX
        )
        for words, wrong in (
            ("", (False, False)),
            *((f", and {s} not rescaled", w) for s, w in _SUMS.items()),
        ):
            plain = partial(_online_softmax, size=size, wrong=wrong, relative=False)
            said = f"{tiles}, of exponentials that are not less the largest logit so far{words}"
            yield Operator(said, plain, fix=_FIX)
    for (cut, lengths), (words, share) in product(_cuts(), _SHARES.items()):
        apart = partial(_put_together, lengths=lengths, share=share)
        yield Operator(f"made of a softmax of each {cut}, {words}", apart, fix=_FIX_OF_TILES)


def _online_softmax(
    _shares: Tensor,
    logits: Tensor,
    sinks: Tensor | None,
    inputs: Any,
    *,
    size: int,
    wrong: tuple[bool, bool],
    factor: Factor = _NOT[0][1],
    at: At = _AT[0][1],
    of_tile: bool = False,
    relative: bool = True,
) -> Tensor:
    """Return the quotient of both sums; ``wrong`` sums are multiplied by another factor."""
    keys = logits.shape[-1]
    count = -(-keys // size)
    if relative and count < 2:  # noqa: PLR2004 (one tile has no sums so far)
        msg = f"{keys} keys are one tile of {size}"
        raise ValueError(msg)
    padded = pad(logits, (0, count * size - keys), value=-math.inf)
    largest = padded.unflatten(-1, (count, size)).amax(-1)
    largest = largest if of_tile else largest.cummax(-1).values
    new = largest.masked_fill(largest.isneginf(), 0.0)
    old = pad(largest[..., :-1], (1, 0), value=-math.inf)
    right = (old - new).exp()
    other = torch.where(at(torch.arange(count), count), factor(old, new), right)
    tile = torch.arange(keys) // size
    # Exponentials of plain logits overflow in the working dtype.
    plain = logits.to(inputs.query.dtype).exp().double()
    powers = (logits - new[..., tile]).exp() if relative else plain

    def rescaled(factors: Tensor) -> Tensor:
        later = pad(factors[..., 1:], (0, 1), value=1.0).flip(-1).cumprod(-1).flip(-1)
        return powers * later[..., tile]

    mixed, summed = (rescaled(other if one else right) for one in wrong)
    total = summed.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks[:, None, None] - new[..., -1:]).exp()
    return mixed / total.where(total != 0.0, 1.0)


Tiles = Sequence[Tensor]
# The lengths of parts, from the number of keys and the keys of a page (0 without pages).
Lengths = Callable[[int, int], list[int]]


def _cuts() -> Iterator[tuple[str, Lengths]]:
    yield "page of keys", lambda keys, page: _tiles_of(page, keys)
    yield from ((f"tile of {size} keys", partial(_tiles_of, size)) for size in TILES)
    for count in (2, 3, 4, 8):
        yield f"of {count} parts of the keys", partial(_longest_first, count)
        yield f"of {count} parts of the keys, longer ones last", partial(_even, count)


def _tiles_of(size: int, keys: int, _page: int = 0) -> list[int]:
    return [min(size, keys - start) for start in range(0, keys, size)]


def _even(count: int, keys: int, _page: int) -> list[int]:
    return [(part + 1) * keys // count - part * keys // count for part in range(count)]


def _longest_first(count: int, keys: int, _page: int) -> list[int]:
    return _tiles_of(-(-keys // count), keys) if keys else []


def _log_sums(tiles: Tiles) -> list[Tensor]:
    return [tile.logsumexp(-1, keepdim=True) for tile in tiles]


def _largest(tiles: Tiles) -> list[Tensor]:
    return [tile.amax(-1, keepdim=True) for tile in tiles]


def _rescaled(
    tiles: Tiles, _scale: float, _sizes: golden.Sizes, *, at_each: bool, divisions: int
) -> Tiles:
    """Return shares of tiles in a loop with a rescaled running result.

    Exponentials are divided by the sum of their own tile, or with ``at_each`` the running result is
    divided by the running sum; ``divisions`` divisions by the total sum follow.
    """
    own = torch.cat(_log_sums(tiles), -1)
    most = torch.cat(_largest(tiles), -1).cummax(-1).values
    most = most.masked_fill(most.isneginf(), 0.0)
    sums = own.logcumsumexp(-1) - most  # logarithms of the running sums
    sums = sums.masked_fill(sums.isneginf(), 0.0)
    shares = most - most[..., -1:] - divisions * sums[..., -1:]
    if at_each:
        shares = shares + own - most - sums.flip(-1).cumsum(-1).flip(-1)
    parts: Tiles = shares.exp().split(1, -1)
    return parts


_NONE: Final = "no"
# Units of the largest logit of a part, and of the logarithm of its sum, from the scale.
_UNITS: Final[dict[str, Callable[[float], float]]] = {
    "": lambda _scale: 1.0,
    _NONE: lambda _scale: 0.0,
    "the scale times": lambda scale: scale,
    "one divided by the scale times": lambda scale: 1.0 / scale,
    "the logarithm of two times": lambda _scale: math.log(2.0),
    "the binary logarithm of e times": lambda _scale: 1.0 / math.log(2.0),
}


def _weighed(
    tiles: Tiles,
    scale: float,
    sizes: golden.Sizes,
    *,
    most: str = "",
    total: str = "",
    move: Callable[[Tensor, golden.Sizes], Tensor] | None = None,
) -> Tiles:
    """Return the softmax of what are taken for the log-sum-exps ``[B, H, Lq, parts]`` of parts."""
    largest, sums = (torch.cat(each(tiles), -1) for each in (_largest, _log_sums))
    finite = largest.masked_fill(largest.isneginf(), 0.0)
    taken = _UNITS[most](scale) * finite + _UNITS[total](scale) * (sums - finite)
    taken = torch.where(largest.isneginf(), largest, taken)
    shares = (taken if move is None else move(taken, sizes)).softmax(-1)
    parts: Tiles = shares.nan_to_num(0.0).split(1, -1)  # of rows without keys
    return parts


def _weighings() -> Iterator[tuple[str, Share]]:
    """Yield wrong log-sum-exps by which parts are weighed, in words."""
    yield "weighed by the exponentials of their largest logits", partial(_weighed, total=_NONE)
    said = "weighed by sums of exponentials that are less the largest logit of each, and not of all"
    yield said, partial(_weighed, most=_NONE)
    for unit in _UNITS:
        if unit not in ("", _NONE):
            most = f"weighed by exp({unit} the largest logit + the logarithm of the sum beside it)"
            yield most, partial(_weighed, most=unit)
            total = f"weighed by exp(the largest logit + {unit} the logarithm of the sum beside it)"
            yield total, partial(_weighed, total=unit)
            both = f"weighed by exp({unit} their log-sum-exps)"
            yield both, partial(_weighed, most=unit, total=unit)
    for noun, axis in (("head", -3), ("query", -2), ("part", -1)):
        for words, order in main_orders(noun):
            moved = partial(_ordered, order=order, axis=axis)
            yield f"weighed by log-sum-exps that are {words}", partial(_weighed, move=moved)
    for words, exchange in OF_GROUPS:
        moved = partial(change_groups, axis=-3, order=exchange)
        yield f"weighed by log-sum-exps that are {words}", partial(_weighed, move=moved)


def _ordered(result: Tensor, _sizes: golden.Sizes, *, order: Order, axis: int) -> Tensor:
    return result.index_select(axis, order(result.shape[axis]))


Share = Callable[[Tiles, float, golden.Sizes], Tiles]
_SHARES: Final[dict[str, Share]] = {
    "averaged": lambda tiles, *_: [torch.ones(()) / len(tiles)] * len(tiles),
    "added": lambda tiles, *_: [torch.ones(())] * len(tiles),
    "averaged over those with a key for the query": lambda tiles, *_: (
        torch.cat([torch.where(most.isneginf(), most, 0.0) for most in _largest(tiles)], -1)
        .softmax(-1)
        .nan_to_num(0.0)
        .split(1, -1)
    ),
    "averaged by their numbers of keys": lambda tiles, *_: [
        torch.tensor(tile.shape[-1] / sum(one.shape[-1] for one in tiles)) for tile in tiles
    ],
    **dict(_weighings()),
    "rescaled in turn, then divided by the sum of all": partial(
        _rescaled, at_each=False, divisions=1
    ),
    "rescaled in turn and added": partial(_rescaled, at_each=False, divisions=0),
    "added in turn, each time divided by the sum so far": partial(
        _rescaled, at_each=True, divisions=0
    ),
    "added in turn, each time divided by the sum so far, then by that of all": partial(
        _rescaled, at_each=True, divisions=1
    ),
}


def _put_together(
    _shares: Tensor,
    logits: Tensor,
    inputs: Any,
    scale: float,
    sizes: golden.Sizes,
    *,
    lengths: Lengths,
    share: Share,
) -> Tensor:
    page = 0 if inputs.store is None else inputs.store.page_size
    tiles = logits.split([one for one in lengths(logits.shape[-1], page) if one], -1)
    if len(tiles) == 1:
        msg = f"{logits.shape[-1]} keys are one tile"
        raise ValueError(msg)
    softmaxes = (tile.softmax(-1).nan_to_num(0.0) for tile in tiles)
    shares = share(tiles, scale, sizes)
    return torch.cat([own * one for own, one in zip(softmaxes, shares, strict=True)], -1)
