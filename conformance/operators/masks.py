"""Masks that are read at another place: by another axis' index, or at a wrong offset.

Along each axis a mask ``[b, h, q, Lk]`` has length one, or the number of items, heads, queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, combinations
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from .operator import PLACES, Operator, insert_place

_AXES: Final = "BHQ"
# Indices that may replace an axis' own, by axis.
_OTHERS: Final = {
    "B": ("head", "key/value head", "query"),
    "H": ("batch item", "query"),
    "Q": ("batch item", "head", "key"),
}
_PAST_THE_END: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("its last number", lambda memory: memory[-1:]),
    # Zero keeps keys in an additive mask.
    ("what keeps keys", lambda memory: memory.new_full((1,), memory.dtype == torch.bool)),
    ("what hides keys", lambda memory: memory.new_full((1,), _hiding(memory))),
)


def _hiding(memory: Tensor) -> float:
    return 0.0 if memory.dtype == torch.bool else -math.inf


def misread_masks() -> Iterator[Operator]:
    """Yield masks, full or broadcast, that are indexed wrongly; of the shape of the scores."""
    for axis, others in _OTHERS.items():
        for other in others:
            words = f"indexed along {insert_place('{}s', PLACES[axis])} by the {other}"
            yield Operator(words, partial(_indexed, axis=axis, by=other))
    for count in range(1, len(_AXES) + 1):
        for counted in combinations(_AXES, count):
            kept = chain.from_iterable(combinations(counted, n) for n in range(count + 1))
            for read in kept:
                if ("B" in counted) == ("B" in read):  # no axis lies outside of that of the items
                    yield from _misread_layouts(counted, read)


def _misread_layouts(counted: tuple[str, ...], read: tuple[str, ...]) -> Iterator[Operator]:
    named = " and ".join(insert_place("{}s", PLACES[letter]) for letter in counted)
    first = " and ".join(PLACES[letter] for letter in counted if letter not in read)
    words = f"read in memory as if it had all {named}" + (
        f", of the first {first}" if first else ""
    )
    for beyond, behind in _PAST_THE_END:
        change = partial(_read_at_offsets, counted=counted, read=read, behind=behind)
        yield Operator(f"{words}; past its end comes {beyond}", change)


def _numbers(mask: Tensor, sizes: golden.Sizes) -> dict[str, Tensor]:
    """Return the index of each score along each axis; ValueError for a mask of another call."""
    shape = (sizes.batch, sizes.num_heads, sizes.query_length, sizes.key_length)
    if any(length not in (1, size) for length, size in zip(mask.shape, shape, strict=True)):
        msg = f"a mask {list(mask.shape)} is none of scores {list(shape)}"
        raise ValueError(msg)
    item, head, query, key = torch.meshgrid(*map(torch.arange, shape), indexing="ij")
    group = max(sizes.num_heads // max(sizes.num_kv_heads, 1), 1)
    return {
        "batch item": item,
        "head": head,
        "key/value head": head // group,
        "query": query,
        "key": key,
    }


def _indexed(mask: Tensor, sizes: golden.Sizes, *, axis: str, by: str) -> Tensor:
    if mask.shape[_AXES.index(axis)] == 1:
        msg = f"a mask without an axis of {axis} is not indexed along it"
        raise ValueError(msg)
    numbers = _numbers(mask, sizes)
    own = [numbers[PLACES[letter]] for letter in _AXES]
    own[_AXES.index(axis)] = numbers[by]
    index = (*own, numbers["key"])
    return mask[tuple(number % length for number, length in zip(index, mask.shape, strict=True))]


def _read_at_offsets(
    mask: Tensor,
    sizes: golden.Sizes,
    *,
    counted: tuple[str, ...],
    read: tuple[str, ...],
    behind: Callable[[Tensor], Tensor],
) -> Tensor:
    numbers = _numbers(mask, sizes)
    offset, stride = numbers["key"], sizes.key_length
    for axis, letter in reversed(list(enumerate(_AXES))):
        if letter in read or mask.shape[axis] > 1:
            offset = offset + numbers[PLACES[letter]] * stride
        if letter in counted or mask.shape[axis] > 1:
            stride *= offset.shape[axis]
    memory = mask.flatten()
    return torch.cat([memory, behind(memory)])[offset.clamp_max(len(memory))]
