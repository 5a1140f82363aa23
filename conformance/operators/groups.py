"""Wrong ways to share key/value heads among query heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from .operator import Operator

# Wrong key/value heads of query head h, from the numbers of heads; they may be out of range.
GROUPINGS: Final[tuple[tuple[str, Callable[[Tensor, int, int], Tensor]], ...]] = (
    ("h // their number", lambda h, _of, kv: h // kv),
    ("(h + 1) // group", lambda h, of, kv: (h + 1) // (of // kv)),
    ("(h - 1) // group", lambda h, of, kv: (h - 1) // (of // kv)),
    ("h * their number / the query heads, rounded up", lambda h, of, kv: -(-h * kv // of)),
    ("h * group", lambda h, of, kv: h * (of // kv)),
    ("h modulo group", lambda h, of, kv: h % (of // kv)),
    ("h", lambda h, _of, _kv: h),
)
_PAST_THE_LAST: Final[tuple[tuple[str, Callable[[Tensor, int], Tensor]], ...]] = (
    ("at most the last", lambda read, kv: read.clamp(0, kv - 1)),
    ("modulo their number", lambda read, kv: read % kv),
)


def groupings(_axes: str) -> Iterator[Operator]:
    """Yield wrong choices of the key/value head for each query head."""
    for words, order in GROUPINGS:
        for more, within in _PAST_THE_LAST:
            said = f"those of key/value head {words}, {more}"
            change = partial(_regrouped, order=order, within=within)
            yield Operator(said, change, misplaces=True)
        said = f"those of key/value head {words} of all items, h counting their heads"
        pairs = partial(_regrouped_pairs, order=order)
        yield Operator(said, pairs, misplaces=True)


def _regrouped_pairs(
    result: Tensor, sizes: golden.Sizes, *, order: Callable[[Tensor, int, int], Tensor]
) -> Tensor:
    """Choose among the key/value heads of all items, which are counted on from item to item."""
    (batch, heads), shared = result.shape[-4:-2], max(sizes.num_kv_heads, 1)
    read = order(torch.arange(batch * heads), heads, shared) % (batch * shared)
    index = read // shared * heads + read % shared * (heads // shared)
    chosen: Tensor = result.flatten(-4, -3).index_select(-3, index).unflatten(-3, (batch, heads))
    return chosen


def _regrouped(
    result: Tensor,
    sizes: golden.Sizes,
    *,
    order: Callable[[Tensor, int, int], Tensor],
    within: Callable[[Tensor, int], Tensor],
) -> Tensor:
    heads, shared = result.shape[-3], max(sizes.num_kv_heads, 1)
    if heads % shared:
        msg = f"{heads} heads are no groups that share {shared} key/value heads"
        raise ValueError(msg)
    read = within(order(torch.arange(heads), heads, shared), shared)
    return result.index_select(-3, read * (heads // shared))
