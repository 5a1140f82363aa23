"""Key/value heads shared by query heads in another way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from .operator import Operator

# The key/value head that query head h reads, of their numbers and that of query heads.
GROUPINGS: Final[tuple[tuple[str, Callable[[Tensor, int, int], Tensor]], ...]] = (
    ("h // their number, or the last", lambda h, _of, kv: (h // kv).clamp_max(kv - 1)),
    ("h // their number, modulo it", lambda h, _of, kv: h // kv % kv),
    ("(h + 1) // group, or the first", lambda h, of, kv: (h + 1) // (of // kv) % kv),
    (
        "(h + 1) // group, at most the last",
        lambda h, of, kv: ((h + 1) // (of // kv)).clamp_max(kv - 1),
    ),
    ("(h - 1) // group, or the last", lambda h, of, kv: (h - 1) // (of // kv) % kv),
    ("h * their number / the query heads, rounded up", lambda h, of, kv: -(-h * kv // of) % kv),
    (
        "h * their number / the query heads, rounded up, or the last",
        lambda h, of, kv: (-(-h * kv // of)).clamp_max(kv - 1),
    ),
    ("h * group, modulo their number", lambda h, of, kv: h * (of // kv) % kv),
    ("h modulo group, or the last", lambda h, of, kv: (h % (of // kv)).clamp_max(kv - 1)),
    ("h, or the last", lambda h, _of, kv: h.clamp_max(kv - 1)),
)


def groupings(_axes: str) -> Iterator[Operator]:
    """Keys or values of each query head that are those of another key/value head."""
    for words, order in GROUPINGS:
        said = f"those of key/value head {words}"
        yield Operator(said, partial(_regrouped, order=order), misplaces=True)


def _regrouped(
    result: Tensor, sizes: golden.Sizes, *, order: Callable[[Tensor, int, int], Tensor]
) -> Tensor:
    heads, shared = result.shape[-3], max(sizes.num_kv_heads, 1)
    if heads % shared or heads == shared:
        msg = f"{heads} heads are no groups that share {shared} key/value heads"
        raise ValueError(msg)
    read = order(torch.arange(heads), heads, shared)
    return result.index_select(-3, read * (heads // shared))
