"""Changes of tables of which key a query attends, and of the places that keys have for queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .moves import TILES
from .operator import Operator, axes_of, in_words
from .parts import PARTS, Part, filled

_CHANGES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("left out", torch.ones_like),
    ("inverted", torch.logical_not),
    ("false for every key", torch.zeros_like),
)


def tables(axes: str, *, of_places: bool = False) -> Iterator[Operator]:
    """Changes of a table with some axes, or of places, which are whole numbers."""
    if of_places:
        yield Operator("negated", torch.neg)
        yield Operator("without their sign", torch.abs)
        for size in TILES:
            yield Operator(f"counted in tiles of {size}", partial(_in_tiles, size=size))
        return
    for words, change in _CHANGES:
        yield Operator(words, change)
    for noun, along in axes_of(axes, pairs=True):
        for words, part in PARTS:
            for verb, value in (("false", False), ("true", True)):
                change = along(partial(_set, part=part, value=value))
                yield Operator(f"{verb} for {in_words(words, noun)}", change)


_ZEROS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("whose channels add up to zero", lambda heads: heads.sum(dim=-1) == 0.0),
    ("of zeros alone", lambda heads: (heads == 0.0).all(dim=-1)),
)


def guessed_from_values() -> Iterator[Operator]:
    """Tables that hide what values are taken to say: padding is guessed from zeros."""
    for words, are in _ZEROS:
        for noun, hidden in (("keys", _hidden_keys), ("values", _hidden_values)):
            yield Operator(f"false for {noun} {words}", partial(hidden, are=are))
    for words, is_such in (("is zero", _is_zero), ("is not positive", _is_not_positive)):
        hidden = partial(_hidden_products, is_such=is_such)
        yield Operator(f"false where the dot product {words}", hidden)


def _hidden_keys(table: Tensor, shared_key: Tensor, *, are: Callable[[Tensor], Tensor]) -> Tensor:
    return table & ~are(shared_key).unsqueeze(-2)


def _hidden_values(
    table: Tensor, shared_value: Tensor, *, are: Callable[[Tensor], Tensor]
) -> Tensor:
    return table & ~are(shared_value).unsqueeze(-2)


def _hidden_products(
    table: Tensor, products: Tensor, *, is_such: Callable[[Tensor], Tensor]
) -> Tensor:
    return table & ~is_such(products)


def _is_zero(products: Tensor) -> Tensor:
    return products == 0.0


def _is_not_positive(products: Tensor) -> Tensor:
    return products <= 0.0


def outputs_guessed_from_queries() -> Iterator[Operator]:
    """Outputs that are left out where queries are taken for padding."""
    for words, are in _ZEROS:
        yield Operator(f"zero for queries {words}", partial(_left_out, are=are))


def _left_out(output: Tensor, query: Tensor, *, are: Callable[[Tensor], Tensor]) -> Tensor:
    return output.masked_fill(are(query).unsqueeze(-1), 0.0)


def _in_tiles(result: Tensor, *, size: int) -> Tensor:
    return result.div(size, rounding_mode="floor") * size


def _set(table: Tensor, axis: int, *, part: Part, value: bool) -> Tensor:
    if table.shape[axis] == 1:
        msg = "a table that is the same at every place has no parts"
        raise ValueError(msg)
    return filled(part, value)(table, axis)
