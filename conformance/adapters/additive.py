"""Recognises additive attention, which no declaration can turn into dot-product attention."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Final

import torch
from torch import Tensor, nn

from ..tolerance import model
from .calling import Calling
from .filling import fillings
from .trial import duplicate, put_in_dtype

ADDITIVE: Final = (
    "{} is no dot-product attention: a large query no longer changes its answer, as where a tanh "
    "ends the sum of query and key (additive attention). The specification is that of softmax(q "
    "k^T) v, so no clause speaks of it: there is nothing to declare"
)
# Factor of a large query: tanh of the product is 1 or -1 in any dtype.
_LARGE: Final = 1e6
_ITEMS: Final = 2
_KEYS: Final = 7
# Calls tried in one way of calling, and calls whose answers change with the query.
_MOST_CALLS: Final = 3_000
_MOST_HEEDED: Final = 3
_MOST_SIZES: Final = 6


def adds_queries(module: nn.Module, ways: Iterable[Calling]) -> bool:
    """Whether queries are added to keys: a query changes the answer, a large query no longer does.

    In additive attention (Bahdanau et al. 2015) a tanh ends the sum of query and key; in products,
    the direction of a large query decides which key gets weight 1. The shapes of queries are
    ``[B, 1, E]``, ``[B, E]`` and ``[1, B, E]``, with widths from the sizes of the module's
    matrices, or a part of a size, as for concatenated queries and keys.
    """
    copied = put_in_dtype(duplicate(module).eval(), torch.float32)
    generator = torch.Generator().manual_seed(0)
    for parameter in copied.parameters():
        if torch.nn.parameter.is_lazy(parameter):
            return False
        terms = parameter.shape[-1] if parameter.dim() > 1 else 1
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        parameter.data.copy_(drawn / max(1, terms) ** 0.5)
    pairs = _widths(copied)
    return any(_forgets(copied, way, pairs) for way in ways if way.inputs != "self")


def _widths(module: nn.Module) -> list[tuple[int, int]]:
    """Possible pairs of a query width and a key width."""
    axes = [size for one in module.parameters() if one.dim() > 1 for size in one.shape if size > 1]
    sizes = list(dict.fromkeys(axes))[:_MOST_SIZES]
    pairs = [(own, theirs) for own in sizes for theirs in sizes]
    pairs += [(own, size - own) for size in sizes for own in (*sizes, size // 2) if own < size]
    return list(dict.fromkeys(pairs))


def _forgets(module: nn.Module, way: Calling, pairs: Iterable[tuple[int, int]]) -> bool:
    heeded = 0
    for filled_way, (query, *rest) in itertools.islice(_calls(way, pairs), _MOST_CALLS):
        plain = _answer(module, filled_way, (query, *rest))
        if plain is None:
            continue
        other = query.flip(-1)
        asked = (-query, *(_LARGE * one for one in (query, -query, other)))
        turned, *large = (_answer(module, filled_way, (one, *rest)) for one in asked)
        if _is_same(plain, turned):
            continue
        if _is_same(large[0], large[1]) and _is_same(large[0], large[2]):
            return True
        heeded += 1
        if heeded == _MOST_HEEDED:
            break
    return False


def _calls(
    way: Calling, pairs: Iterable[tuple[int, int]]
) -> Iterator[tuple[Calling, tuple[Tensor, ...]]]:
    """Ways of calling with filled parameters, and inputs of all widths and ranks."""
    count = 2 if way.inputs == "memory" else 3
    generator = torch.Generator().manual_seed(1)
    for own, theirs in pairs:
        query = torch.randn(_ITEMS, 1, own, generator=generator, dtype=torch.float32)
        key = torch.randn(_ITEMS, _KEYS, theirs, generator=generator, dtype=torch.float32)
        for fills in fillings(way.wanted, (), guessed=way.guessed):
            filled_way = dataclasses.replace(way, fills=fills)
            for asked in (query[:, 0], query, query.transpose(0, 1)):
                yield filled_way, (asked, key, key)[:count]


def _answer(module: nn.Module, way: Calling, inputs: tuple[Tensor, ...]) -> Tensor | None:
    try:
        with torch.no_grad():
            output = way(module, inputs, {})
    except Exception:  # noqa: BLE001 (the user's code may raise anything)
        return None
    return output if isinstance(output, Tensor) and output.is_floating_point() else None


def _is_same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two outputs are equal up to rounding."""
    if one is None or other is None or one.shape != other.shape or not one.numel():
        return False
    return bool(((other - one).abs() <= model.SAME_READ * one.abs().max()).all())
