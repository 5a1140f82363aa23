"""Reads a tensor inside a graph, whose axes nobody declared, as a stage of the golden."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from torch import Tensor

Shape = tuple[int, ...]


def views(tensor: Tensor, shape: Shape) -> Iterator[Tensor]:
    """Every way to see a tensor as ``[B, H, L, D]`` of a shape.

    Axes in any order; items and heads folded into one axis, items first; heads and head size packed
    into one, heads first; heads cut into groups; without an axis of items where there is one item.
    """
    items, heads, length, size = shape
    if tensor.numel() != items * heads * length * size:
        return
    for folded in (shape, (items * heads, length, size), (items, length, heads * size)):
        for seen in _in_order(tensor, folded):
            yield _unfolded(seen, folded, shape)
    yield from _leaner(tensor, shape)


def _in_order(tensor: Tensor, wanted: Shape) -> Iterator[Tensor]:
    if sorted(tensor.shape) != sorted(wanted):
        return
    for order in itertools.permutations(range(tensor.dim())):
        if all(tensor.shape[axis] == size for axis, size in zip(order, wanted, strict=True)):
            yield tensor.permute(order)


def _unfolded(seen: Tensor, folded: Shape, shape: Shape) -> Tensor:
    items, heads, length, size = shape
    if len(folded) == len(shape):
        return seen
    if folded == (items * heads, length, size):
        return seen.reshape(shape)
    return seen.reshape(items, length, heads, size).transpose(1, 2)


def _leaner(tensor: Tensor, shape: Shape) -> Iterator[Tensor]:
    """More axes than four, or none of items."""
    items, heads, length, size = shape
    if tensor.dim() > len(shape):
        yield tensor.reshape(shape)
    elif items == 1:
        for seen in _in_order(tensor, (heads, length, size)):
            yield seen.reshape(shape)
        for seen in _in_order(tensor, (length, heads * size)):
            yield seen.reshape(length, heads, size).transpose(0, 1).reshape(shape)
