"""Legitimate layers: projections in several ways around the legitimate cores, and torch's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from conformance._golden import golden

from . import in_wide
from .arithmetic import wide
from .implementations import EAGER, FUSED, IMPLEMENTATIONS, Core, Promise
from .inputs import Tokens

Projection = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Layer = Callable[[Tokens], Tensor]


@dataclass(frozen=True, kw_only=True)
class LayerImplementation:
    """A layer, what it promises, and which problems it can be given."""

    compute: Layer
    promise: Promise = FUSED
    takes: Callable[[Tokens], bool] = lambda _: True


def unfused(tokens: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """The product is stored before the bias is added."""
    product = tokens @ matrix.T
    return product if bias is None else product + bias


def one_after_the_other(tokens: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """One input channel after the other, rounded at the end."""
    total = torch.zeros(*tokens.shape[:-1], matrix.shape[0], dtype=wide(tokens[:0]).dtype)
    for channel in range(matrix.shape[1]):
        total += wide(tokens[..., channel : channel + 1]) * wide(matrix[:, channel])
    return (total if bias is None else total + wide(bias)).to(tokens.dtype)


def upcast(tokens: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """Product and bias in wide arithmetic."""
    summed = linear(wide(tokens), wide(matrix), None if bias is None else wide(bias))
    return summed.to(tokens.dtype)


def bias_first(tokens: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """The accumulator starts at the bias."""
    if bias is None:
        return linear(tokens, matrix)
    rows = tokens.flatten(0, 1)
    return torch.addmm(bias, rows, matrix.T).view(*tokens.shape[:2], -1)


def layered(core: Core, project: Projection = linear) -> Layer:
    """A layer around a core."""

    def layer(tokens: Tokens) -> Tensor:
        weights = tokens.weights
        heads = tokens.heads(
            project(tokens.query, weights.q, weights.q_bias),
            project(tokens.key, weights.k, weights.k_bias),
            project(tokens.value, weights.v, weights.v_bias),
        )
        merged = golden.merge_heads(core(heads))
        return merged if weights.o is None else project(merged, weights.o, weights.o_bias)

    return layer


def packed(tokens: Tokens) -> Tensor:
    """One matrix for query, key and value of the same tokens, then torch's fused kernel."""
    weights = tokens.weights
    matrix = torch.cat([weights.q, weights.k, weights.v])
    bias = None
    if weights.q_bias is not None and weights.k_bias is not None and weights.v_bias is not None:
        bias = torch.cat([weights.q_bias, weights.k_bias, weights.v_bias])
    sizes = [weights.q.shape[0], weights.k.shape[0], weights.v.shape[0]]
    parts = linear(tokens.query, matrix, bias).split(sizes, dim=-1)
    merged = golden.merge_heads(in_wide.upcast(tokens.heads(*parts)))
    return merged if weights.o is None else linear(merged, weights.o, weights.o_bias)


def summed_over_heads(tokens: Tokens) -> Tensor:
    """Each head meets its own block of the output matrix; their sum is wide."""
    weights = tokens.weights
    answer = in_wide.upcast(tokens.projected())
    if weights.o is None:
        return golden.merge_heads(answer)
    blocks = weights.o.unflatten(1, (answer.shape[1], -1)).permute(1, 2, 0)
    total = (wide(answer) @ wide(blocks)).sum(dim=1)
    return (total if weights.o_bias is None else total + wide(weights.o_bias)).to(tokens.dtype)


def module(*, need_weights: bool) -> Layer:
    """``torch.nn.MultiheadAttention``, with the weights asked for or not."""

    def layer(tokens: Tokens) -> Tensor:
        weights = tokens.weights
        attention = nn.MultiheadAttention(
            weights.q.shape[1],
            tokens.num_heads,
            bias=weights.q_bias is not None,
            batch_first=True,
            dtype=tokens.dtype,
        ).eval()
        attention.load_state_dict(_state(weights))
        added = tokens.heads(tokens.query, tokens.key, tokens.value).additive(tokens.dtype)
        if added is not None:
            shape = (tokens.query.shape[0], tokens.num_heads, *added.shape[2:])
            added = added.expand(shape).flatten(0, 1)
        answer: Tensor = attention(
            tokens.query, tokens.key, tokens.value, attn_mask=added, need_weights=need_weights
        )[0]
        return answer

    return layer


def _state(weights: golden.ProjectionWeights) -> dict[str, Tensor]:
    """The module's parameters by its own names."""
    state = {"in_proj_weight": torch.cat([weights.q, weights.k, weights.v])}
    if weights.o is not None:
        state["out_proj.weight"] = weights.o
    if weights.q_bias is not None and weights.k_bias is not None and weights.v_bias is not None:
        state["in_proj_bias"] = torch.cat([weights.q_bias, weights.k_bias, weights.v_bias])
    if weights.o_bias is not None:
        state["out_proj.bias"] = weights.o_bias
    return state


def _fits_module(tokens: Tokens) -> bool:
    return tokens.softcap is None and tokens.num_heads == tokens.num_kv_heads


def _around(name: str, project: Projection = linear) -> LayerImplementation:
    core = IMPLEMENTATIONS[name]

    def takes(tokens: Tokens) -> bool:
        return core.takes(tokens.projected())

    return LayerImplementation(
        compute=layered(core.compute, project), promise=core.promise, takes=takes
    )


LAYERS: Final[dict[str, LayerImplementation]] = {
    "nn.MultiheadAttention": LayerImplementation(
        compute=module(need_weights=False), promise=EAGER, takes=_fits_module
    ),
    "nn.MultiheadAttention, weights": LayerImplementation(
        compute=module(need_weights=True), promise=EAGER, takes=_fits_module
    ),
    "packed projection": LayerImplementation(compute=packed, takes=lambda tokens: tokens.alike),
    "summed over heads": LayerImplementation(compute=summed_over_heads),
    "eager, bias unfused": _around("eager", unfused),
    "upcast, upcast projections": _around("upcast", upcast),
    "flash, bias first": _around("sdpa flash", bias_first),
    "sequential throughout": _around("sequential", one_after_the_other),
    **{f"layer: {name}": _around(name) for name in IMPLEMENTATIONS if name != "tf32 operands"},
}
