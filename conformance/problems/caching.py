"""Keys and values handed over as a cache: how they are drawn, and how a call gets them.

The golden gets all keys of a problem; a candidate gets the first ``past`` keys as heads
``past_key [B, Hkv, P, D]`` and ``past_value [B, Hkv, P, Dv]``, the others as usual. A layer's
cached heads are its projections of the first tokens, rounded once to the working dtype: the bound
of its own projections holds for cached heads, too. They come directly out of the projections,
before any further step (a rotation by positions, say). Where calls give rotary tables the cached
keys are turned already: a call has tables for its own tokens alone. So they are where a call
on one input gives the positions of its tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from ..base.geometry import Geometry
from ..declare.candidate import Candidate
from .inputs import Inputs, most_cached
from .problem import Problem
from .space import can_cross

OFFERED = "kv_cache"


def no_cache(candidate: Candidate) -> str:
    """Why a candidate cannot be called with a cache, or ""."""
    declared = candidate.declaration
    if declared.cache is not None:
        return ""
    if OFFERED not in declared.features:
        return "no cache is declared"
    if not candidate.weights_known:
        return "its weights are unknown, so nobody can project what it would have cached"
    if not declared.positions_known:
        return f"semantics does not say how the {declared.position} positions of cached keys are"
    return ""


def draws_cache(candidate: Candidate) -> bool:
    """Whether ordinary problems may hand over a cache: new queries and all keys differ in number.

    What attends to itself gets caches from the clauses of caches alone.
    """
    return not no_cache(candidate) and can_cross(candidate)


NO_CACHE: Final = "none"
# How many of the keys are cached, by the sizes; cached_length leaves at least one of them new.
CACHED: Final[dict[str, Callable[[Geometry], int]]] = {
    NO_CACHE: lambda _sizes: 0,
    "one key": lambda _sizes: 1,
    "half of the keys": lambda sizes: max(sizes.key_length // 2, 1),
    "the larger half of the keys": lambda sizes: (sizes.key_length + 1) // 2,
    "all keys but one": lambda sizes: sizes.key_length - 1,
    "all keys but as many as queries": lambda sizes: max(sizes.key_length - sizes.query_length, 1),
}


def cached_length(problem: Problem, candidate: Candidate) -> int:
    """The number of a problem's keys that can be handed over as a cache: at least one stays new."""
    if not problem.past or not draws_cache(candidate):
        return 0
    placed = problem.causal or problem.window is not None
    if counts_from_first(candidate) and (placed or candidate.declaration.position is not None):
        return 0
    return min(problem.past, most_cached(problem.geometry.key_length))


def counts_from_first(candidate: Candidate) -> bool:
    """Whether the places of queries are unknown where there is a cache.

    Top-left, ONNX counts from the first new key (onnx#8068), others from the first of all.
    """
    return candidate.declaration.semantics.causal_alignment == "top-left"


def cached(inputs: Inputs, past: int, candidate: Candidate) -> Inputs:
    """The inputs with the first ``past`` keys and values handed over as a cache.

    Where queries and new keys are as many, the queries of cached tokens are left out.
    """
    if not can_cross(candidate):
        inputs = query_rows(inputs, past, inputs.geometry.query_length)
    return inputs.replace(past=past, generic=False)


def without_key_bias(inputs: Inputs, candidate: Candidate) -> Inputs:
    """Drop the key bias of a layer that takes its weights from the inputs.

    A layer that ignores the bias of its keys answers alike, as long as cached keys have no bias.
    """
    if not candidate.draws_weights or inputs.weights is None or inputs.own_cache:
        return inputs
    return inputs.replace(weights=dataclasses.replace(inputs.weights, k_bias=None))


def query_rows(inputs: Inputs, start: int, stop: int) -> Inputs:
    """Some of the queries with their rows of the mask; keys stay."""

    def rows(mask: Tensor | None) -> Tensor | None:
        return mask if mask is None or mask.shape[2] == 1 else mask[:, :, start:stop]

    return inputs.replace(
        geometry=inputs.geometry.replace(query_length=stop - start),
        query=inputs.query[..., start:stop, :],
        positions=inputs.positions and inputs.positions.of_queries(torch.arange(start, stop)),
        keep=rows(inputs.keep),
        bias=rows(inputs.bias),
        generic=False,
    )


def first_keys(inputs: Inputs, count: int) -> Inputs:
    """The first ``count`` keys and values with their columns of the mask; queries stay."""
    return _keys(inputs, slice(0, count))


def without_cache(inputs: Inputs) -> Inputs:
    """The inputs without the keys of the cache, as if they were lost."""
    return _keys(inputs, slice(inputs.past, None)).replace(past=0)


def with_part_of_cache(inputs: Inputs, part: slice) -> Inputs:
    """The inputs with the cached keys in ``part`` alone; the rest of the cache is lost."""
    cached = torch.arange(inputs.past)[part]
    kept = torch.cat([cached, torch.arange(inputs.past, inputs.geometry.key_length)])
    return _keys(inputs, kept).replace(past=len(cached))


def _keys(inputs: Inputs, kept: slice | Tensor) -> Inputs:
    def columns(mask: Tensor | None) -> Tensor | None:
        return None if mask is None else mask[..., kept]

    key, value = inputs.key[..., kept, :], inputs.value[..., kept, :]
    first = kept.start or 0 if isinstance(kept, slice) else 0
    order = torch.arange(inputs.geometry.key_length)[kept]
    return inputs.replace(
        geometry=inputs.geometry.replace(key_length=key.shape[-2]),
        tables=inputs.tables and inputs.tables.from_row(first),
        positions=inputs.positions and inputs.positions.of_keys(order),
        key=key,
        value=value,
        keep=columns(inputs.keep),
        bias=columns(inputs.bias),
        generic=False,
    )


def handed_over(inputs: Inputs) -> Inputs:
    """The inputs with the keys and values alone that are no cache."""
    if not inputs.past:
        return inputs
    key, value = (tensor[..., inputs.past :, :] for tensor in (inputs.key, inputs.value))
    return inputs.replace(key=key, value=key if inputs.value is inputs.key else value)


def cached_heads(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """``past_key [B, Hkv, P, D]`` and ``past_value [B, Hkv, P, Dv]`` in the working dtype."""
    key, value = (tensor[..., : inputs.past, :] for tensor in (inputs.key, inputs.value))
    point, heads = inputs.point, inputs.geometry.num_kv_heads
    with torch.no_grad():
        if inputs.is_layer and inputs.weights is not None:
            weights = inputs.weights.taking_part(point)
            key = golden.split_heads(golden.project(key, weights.k, weights.k_bias), heads, point)
            values = golden.project(value, weights.v, weights.v_bias)
            value = golden.split_heads(values, heads, point).to(inputs.query.dtype)
        if inputs.gets_turned_keys:
            given = inputs.given_positions
            places = torch.arange(inputs.past)
            if given is not None:
                places = given[1][:, None, : inputs.past]
            weight = inputs.learned_arguments.get("key_norm_weight")
            if weight is not None:
                weight = weight.double().unflatten(-1, (-1, key.shape[-1]))
            key = golden.prepare_heads(key, places, point, inputs.rotary_tables, weight)
        return key.to(inputs.query.dtype), value
