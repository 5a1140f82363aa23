"""Wrong steps of a backward pass, of which mistakes are made: see ``backward``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._golden import golden
from ...tolerance.golden_gradients import golden_gradients
from .backward_steps import Found, Pass


def cut(*names: str) -> Callable[[Pass, Found], Found]:
    """No gradient for some of the heads, or of the weights."""

    def cut(_asked: Pass, found: Found) -> Found:
        return {n: torch.zeros_like(t) if n in names else t for n, t in found.items()}

    return cut


def times(factor: float) -> Callable[[Pass], Tensor]:
    """The gradient of the output, multiplied."""
    return lambda asked: factor * asked.upstream


def mean_over_items(asked: Pass) -> Tensor:
    """That gradient divided by the number of items."""
    return asked.upstream / asked.upstream.shape[0]


def first_item(asked: Pass) -> Tensor:
    """That of the first item, zeros for the others."""
    found = torch.zeros_like(asked.upstream)
    found[:1] = asked.upstream[:1]
    return found


def without_mask(asked: Pass) -> golden.Attention:
    """Without masks other than additive ones, which hide keys by their values."""
    inputs = asked.inputs
    return asked.other_attention(keep=inputs.keep if inputs.mask_form == "bias" else None)


def unnormalised(asked: Pass, free: golden.Attention) -> Tensor:
    """Weights by the log-sum-exp of the admitted logits: what is hidden comes on top."""
    kept = asked.attention.logits.masked_fill(~asked.attention.allowed, -torch.inf)
    total = kept.logsumexp(dim=-1, keepdim=True)
    weights = torch.exp(free.logits - torch.where(total.isneginf(), torch.inf, total))
    return weights.masked_fill(~free.allowed, 0.0)


def unmasked(asked: Pass) -> Tensor:
    """Weights in which masks other than additive ones hide nothing."""
    return unnormalised(asked, without_mask(asked))


def all_unmasked(asked: Pass) -> Tensor:
    """Weights in which no mask hides anything."""
    return unnormalised(asked, asked.other_attention(keep=None))


def uncausal(asked: Pass) -> Tensor:
    """Weights in which no key comes too late."""
    return unnormalised(asked, asked.other_attention(causal=False))


def without(**changes: Any) -> Callable[[Pass], golden.Attention]:
    """The attention proper with some options changed."""
    return lambda asked: asked.other_attention(**changes)


def top_left(asked: Pass) -> golden.Attention:
    """The attention proper with its causal diagonal in the other corner."""
    other = {"bottom-right": "top-left", "top-left": "bottom-right"}
    point = asked.semantics
    return asked.other_attention(
        semantics=point.replace(causal_alignment=other[point.causal_alignment])
    )


def rolled(asked: Pass, weights: Tensor, gradient: Tensor) -> Tensor:
    """The row term of the row before."""
    del asked
    return (weights * gradient).sum(dim=-1, keepdim=True).roll(1, dims=2)


def of_first_head(asked: Pass, weights: Tensor, gradient: Tensor) -> Tensor:
    """The row term of the first head, for every head."""
    del asked
    return (weights * gradient).sum(dim=-1, keepdim=True)[:, :1].expand_as(weights[..., :1])


def default_scale(asked: Pass) -> tuple[float, float]:
    """The scale of a call that gives none, for query and key."""
    sizes = asked.inputs.geometry
    scale = golden.scale_value(
        asked.semantics,
        head_size=sizes.head_size,
        value_head_size=sizes.value_head_size,
        num_heads=sizes.num_heads,
    )
    return scale, scale


def slope(asked: Pass) -> Tensor:
    """The derivative of cap and function, which are not forgotten."""
    return golden_gradients(asked.attention, asked.upstream).slope


def uncapped_slope(asked: Pass) -> Tensor:
    """The derivative of the function alone, where there is one: that of the cap is forgotten."""
    found = golden_gradients(asked.attention, asked.upstream).function_slope
    return torch.ones_like(asked.attention.scores) if found is None else found


def unmodified(asked: Pass) -> golden.Attention:
    """The attention proper without its function of scores."""
    return asked.other_attention(semantics=asked.semantics.replace(score_mod=None))


def unmodified_slope(asked: Pass) -> Tensor:
    """The derivative of the cap alone: that of the function is forgotten."""
    point = asked.attention.semantics.replace(score_mod=None)
    plain = dataclasses.replace(asked.attention, semantics=point)
    return golden_gradients(plain, asked.upstream).slope


def scales(
    query: Callable[[float], float], key: Callable[[float], float]
) -> Callable[[Pass], tuple[float, float]]:
    """Functions of the scale, for query and key."""
    return lambda asked: (query(asked.attention.scale), key(asked.attention.scale))


def one(_scale: float) -> float:
    """No scale at all."""
    return 1.0


def same(scale: float) -> float:
    """The scale as it is."""
    return scale


def squared(scale: float) -> float:
    """The scale twice."""
    return scale * scale


def grouped(total: Callable[[Tensor], Tensor]) -> Callable[[Pass, Tensor], Tensor]:
    """Of the neighbours ``[B, Hkv, group, L, D]`` that read one head."""

    def shared(asked: Pass, heads: Tensor) -> Tensor:
        return total(heads.unflatten(1, (asked.inputs.geometry.num_kv_heads, -1)))

    return shared


def tiled(asked: Pass, heads: Tensor) -> Tensor:
    """Query heads in turns, added up."""
    tiled: Tensor = heads.unflatten(1, (-1, asked.inputs.geometry.num_kv_heads)).sum(dim=1)
    return tiled


def swapped(_asked: Pass, found: Found) -> Found:
    """Key and value have changed places, where their shapes are one."""
    if found["key"].shape != found["value"].shape:
        return found
    return {**found, "key": found["value"], "value": found["key"]}


def transposed(_asked: Pass, scores: Tensor) -> Tensor:
    """The gradients of the scores transposed, where they are square."""
    return scores.mT if scores.shape[-1] == scores.shape[-2] else scores


def matrix_transposed(gradient: Tensor, tokens: Tensor) -> Tensor:
    """The gradient of a matrix transposed, where that is square."""
    found: Tensor = gradient.flatten(0, 1).mT @ tokens.flatten(0, 1)
    return found.mT if found.shape[0] == found.shape[1] else found


def matrix_of(items: slice) -> Callable[[Tensor, Tensor], Tensor]:
    """The gradient of a matrix from some items of the batch."""

    def matrix(gradient: Tensor, tokens: Tensor) -> Tensor:
        found: Tensor = gradient[items].flatten(0, 1).mT @ tokens[items].flatten(0, 1)
        return found

    return matrix


def matrix_averaged(gradient: Tensor, tokens: Tensor) -> Tensor:
    """The gradient of a matrix as a mean over the batch."""
    return matrix_of(slice(None))(gradient, tokens) / gradient.shape[0]
