"""Structured masks where each item of a batch has a length of its own: in packed sequences, caches.

The structure of an item counts its own tokens alone, as if no other item were there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Generator, Tensor

from .structured_masks import STRUCTURED_MASKS, Arguments, Structure

# The tokens by which an argument has its second axis; "" for one number an item.
AXES: Final = {
    "parents": "query",
    "query_segments": "query",
    "key_segments": "key",
    "prefix_lengths": "",
    "key_indices": "query",
}
# What stands in rows of no token: no parent, no segment, no key.
NONE: Final = -1


def _items(
    structure: Structure, present: tuple[Tensor, Tensor]
) -> Iterator[tuple[int, Tensor, Tensor, Structure]]:
    """Each item with the places of its queries and of its keys, and its own frame."""
    for item, (rows, columns) in enumerate(zip(*present, strict=True)):
        queries, keys = rows.nonzero().flatten(), columns.nonzero().flatten()
        sizes = structure.geometry.replace(batch=1, query_length=len(queries), key_length=len(keys))
        yield item, queries, keys, dataclasses.replace(structure, geometry=sizes)


def _part(keep: Tensor, item: int, queries: Tensor, keys: Tensor) -> Tensor:
    return keep[item : item + 1].index_select(2, queries).index_select(3, keys)


def table_of_items(
    form: str,
    pattern: str,
    structure: Structure,
    present: tuple[Tensor, Tensor],
    generator: Generator,
) -> Tensor:
    """The keys that queries attend, drawn for each item: bool ``[B, 1, Lq, Lk]``."""
    mask, sizes = STRUCTURED_MASKS[form], structure.geometry
    keep = torch.zeros(sizes.batch, 1, sizes.query_length, sizes.key_length, dtype=torch.bool)
    given = mask.draw(pattern, structure, generator)
    for item, queries, keys, own in _items(structure, present):
        if any(isinstance(value, Tensor) for value in given.values()):  # a number is that of all
            given = mask.draw(pattern, own, generator)
        keep[item, 0, queries[:, None], keys] = mask.read(given, own)[0, 0]
    return keep


def changed_items(
    keep: Tensor,
    structure: Structure,
    present: tuple[Tensor, Tensor],
    change: Callable[[Tensor, Structure], Tensor],
) -> Tensor:
    """A table of items after a function of the part and the frame of each."""
    changed = keep.clone()
    for item, queries, keys, own in _items(structure, present):
        part = change(_part(keep, item, queries, keys), own)
        changed[item, 0, queries[:, None], keys] = part[0, 0]
    return changed


def arguments_of_items(
    form: str, keep: Tensor, structure: Structure, present: tuple[Tensor, Tensor]
) -> Arguments:
    """The arguments of a table of items, by the places of tokens: ``[B]``, ``[B, L]`` or more."""
    mask = STRUCTURED_MASKS[form]
    items = list(_items(structure, present))
    parts = [(_part(keep, item, queries, keys), own) for item, queries, keys, own in items]
    given = [mask.arguments(part, own) for part, own in parts]
    result: Arguments = {}
    for name in given[0] if given else ():
        values = [each[name] for each in given]
        if not isinstance(values[0], Tensor):
            longest = max(structure.geometry.query_length, structure.geometry.key_length, 1)
            fitting = (
                number
                for number in range(1, longest + 1)
                if all(torch.equal(mask.read({name: number}, own), part) for part, own in parts)
            )
            result[name] = next(fitting, longest)
        elif AXES[name]:
            of_queries = AXES[name] == "query"
            places = [queries if of_queries else keys for _, queries, keys, _ in items]
            length = present[0 if of_queries else 1].shape[1]
            result[name] = _placed(values, places, length)
        else:
            result[name] = torch.cat(values)
    return result


def _placed(values: list[Any], places: list[Tensor], length: int) -> Tensor:
    """Rows of items put to their places among as many; the rest of each row holds -1."""
    more = [max(sizes) for sizes in zip(*(value.shape[2:] for value in values), strict=True)]
    whole: Tensor = values[0].new_full((len(values), length, *more), NONE)
    for item, (value, place) in enumerate(zip(values, places, strict=True)):
        own = whole[item, :, : value.shape[2]] if more else whole[item]
        own[place] = value[0]
    return whole
