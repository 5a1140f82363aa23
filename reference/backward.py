"""The backward pass of attention in stages, from the output's gradient to the inputs' gradients.

    dV = P^T dO,  dP = dO V^T,  D = rowsum(P * dP),  dL = P * (dP - D),  dS = dL * dL/dS,
    dQ = scale dS K,  dK = scale dS^T Q

Dao et al., arXiv:2205.14135, appendix B.2, with L the logits and S the scaled scores. A sink has no
value: it takes part in P alone.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from .alibi import distances
from .forward import FORWARD, Sizes
from .heads import merge_heads, split_heads
from .layer import LAYER
from .normalisation import temper, weigh
from .program import Program, Rewired, Stage


def score_slope(
    passed: Tensor, squashed: Tensor, softcap: float | None, function_slope: Tensor | None
) -> Tensor:
    """The derivative of each logit by its scaled score ``[B, H, Lq, Lk]``: of cap and function."""
    slope = passed if softcap is None else passed * (1.0 - squashed) * (1.0 + squashed)
    return slope if function_slope is None else slope * function_slope


def summed_groups(heads: Tensor, sizes: Sizes) -> Tensor:
    """Sum the heads of each key/value head's group: ``[B, H, L, D]`` to ``[B, Hkv, L, D]``."""
    if sizes.num_heads == sizes.num_kv_heads:
        return heads
    summed: Tensor = heads.unflatten(-3, (sizes.num_kv_heads, -1)).sum(dim=-3)
    return summed


def outer(gradient: Tensor, tokens: Tensor) -> Tensor:
    """The gradient of a matrix ``[out, in]`` behind which ``gradient [B, L, out]`` flows back."""
    return gradient.flatten(0, 1).mT @ tokens.flatten(0, 1)


def sum_to_temperature(
    gradient: Tensor, heads: Tensor, temperature: Tensor | None
) -> Tensor | None:
    """The gradient of temperatures ``[H]`` from that of heads ``[B, H, L, D]`` times them."""
    return None if temperature is None else (gradient * heads).sum(dim=(-4, -2, -1))


def drop_memory(gradient: Tensor, memory: Tensor | None) -> Tensor:
    """The gradient of the tokens of a call, without that of a memory behind them."""
    return gradient if memory is None else gradient[..., :-1, :]


def sum_to_memory(gradient: Tensor, memory: Tensor | None) -> Tensor | None:
    """The gradient of a memory ``[Hkv, D]``, which stands behind the tokens of every item."""
    return None if memory is None else gradient[..., -1, :].sum(dim=-3)


def sum_to_table(gradient: Tensor, buckets: Tensor | None, table: Tensor | None) -> Tensor | None:
    """The gradient of a table ``[N, H]`` from that of the logits ``[B, H, Lq, Lk]``."""
    if table is None or buckets is None:
        return None
    rows, heads = table.shape
    owners = buckets.expand(gradient.shape) + rows * torch.arange(heads)[:, None, None]
    sums = torch.bincount(owners.flatten(), gradient.flatten(), minlength=rows * heads)
    by_head: Tensor = sums.unflatten(0, (heads, rows))
    return by_head.mT


def sum_to_weight(gradient: Tensor, heads: Tensor, weight: Tensor | None) -> Tensor | None:
    """The gradient of learned factors ``[D]`` or ``[H*D]`` from that of heads times them."""
    if weight is None:
        return None
    by_head = (gradient * heads).sum(dim=(-4, -2))
    of_each_head = weight.shape[-1] == heads.shape[-1]
    return by_head.sum(dim=-2) if of_each_head else by_head.flatten(-2)


# Reads the results of FORWARD's stages, and the gradient of the heads' output.
BACKWARD: Final = Program.unedited(
    Stage(
        "live_weights",
        "BHQK",
        lambda weights, empty: weights.masked_fill(empty.unsqueeze(-1), 0.0),
    ),
    Stage("weight_gradient", "BHQK", lambda output_gradient, value: output_gradient @ value.mT),
    Stage(
        "row_products", "BHQK", lambda live_weights, weight_gradient: live_weights * weight_gradient
    ),
    Stage("row_term", "BHQ1", lambda row_products: row_products.sum(dim=-1, keepdim=True)),
    Stage(
        "logit_gradient",
        "BHQK",
        lambda live_weights, weight_gradient, row_term: live_weights * (weight_gradient - row_term),
    ),
    # Hidden logits do not depend on their scores.
    Stage("passed", "BHQK", lambda allowed: allowed.double()),
    Stage("function_slope", "BHQK", lambda: None),
    Stage("score_slope", "BHQK", score_slope),
    Stage("bias_slope", "BHQK", lambda passed: passed),
    Stage(
        "score_gradient", "BHQK", lambda logit_gradient, score_slope: logit_gradient * score_slope
    ),
    Stage(
        "bias_gradient",
        "BHQK",
        lambda logit_gradient, bias_slope, given_bias, sizes: (
            None
            if given_bias is None
            else (logit_gradient * bias_slope)[..., : sizes.key_length].sum_to_size(
                given_bias.shape
            )
        ),
    ),
    Stage("query_factor", "", lambda scale: scale),
    Stage("key_factor", "", lambda scale: scale),
    Stage(
        "query_gradient",
        "BHQD",
        lambda score_gradient, key, query_factor: query_factor * (score_gradient @ key),
    ),
    Stage(
        "key_gradients",
        "BHKD",
        lambda score_gradient, query, key_factor: key_factor * (score_gradient.mT @ query),
    ),
    Stage("value_gradients", "BHKV", lambda weights, output_gradient: weights.mT @ output_gradient),
    Stage("key_gradient", "BGKD", Rewired(summed_groups, ("key_gradients", "sizes"))),
    Stage("value_gradient", "BGKV", Rewired(summed_groups, ("value_gradients", "sizes"))),
    # Gradients before the rotation, then before the normalisation.
    Stage("turned_query_gradient", "BHQD", lambda query_gradient: query_gradient),
    Stage("turned_key_gradient", "BGKD", Rewired(drop_memory, ("key_gradient", "bias_k"))),
    Stage(
        "weighed_query_gradient", "BHQD", Rewired(temper, ("turned_query_gradient", "temperature"))
    ),
    Stage(
        "normalised_query_gradient",
        "BHQD",
        Rewired(weigh, ("weighed_query_gradient", "query_weight")),
    ),
    Stage("normalised_key_gradient", "BGKD", Rewired(weigh, ("turned_key_gradient", "key_weight"))),
    Stage(
        "given_query_gradient", "BHQD", lambda normalised_query_gradient: normalised_query_gradient
    ),
    Stage("given_key_gradient", "BGKD", lambda normalised_key_gradient: normalised_key_gradient),
    Stage("given_value_gradient", "BGKV", Rewired(drop_memory, ("value_gradient", "bias_v"))),
    # Gradients of learned arguments.
    Stage(
        "temperature_gradient",
        "H",
        Rewired(sum_to_temperature, ("turned_query_gradient", "weighed_query", "temperature")),
    ),
    Stage(
        "query_norm_weight_gradient",
        "D",
        Rewired(sum_to_weight, ("weighed_query_gradient", "normalised_query", "query_norm_weight")),
    ),
    Stage(
        "key_norm_weight_gradient",
        "D",
        Rewired(sum_to_weight, ("turned_key_gradient", "normalised_key", "key_norm_weight")),
    ),
    Stage(
        "relative_table_gradient",
        "NH",
        lambda logit_gradient, bias_slope, buckets, relative_table: sum_to_table(
            logit_gradient * bias_slope, buckets, relative_table
        ),
    ),
    Stage("bias_k_gradient", "GD", Rewired(sum_to_memory, ("key_gradient", "bias_k"))),
    Stage("bias_v_gradient", "GV", Rewired(sum_to_memory, ("value_gradient", "bias_v"))),
    Stage(
        "alibi_slopes_gradient",
        "BH",
        lambda logit_gradient, bias_slope, query_places, key_places, alibi_slopes: (
            None
            if alibi_slopes is None
            else -(logit_gradient * bias_slope * distances(query_places, key_places))
            .sum(dim=(-2, -1))
            .sum_to_size(alibi_slopes.shape)
        ),
    ),
)
BOTH_PASSES: Final = Program.unedited(
    *FORWARD.stages, Stage("output_gradient", "BHQV", lambda upstream: upstream), *BACKWARD.stages
)


def _projection_stages(role: str) -> tuple[Stage, ...]:
    """The gradients of a role's tokens, matrix and bias."""
    behind, tokens = f"projected_{role}_gradient", f"{role}_tokens"
    return (
        Stage(behind, "BQE", Rewired(merge_heads, (f"given_{role}_gradient",))),
        Stage(f"{tokens}_gradient", "BQE", Rewired(torch.matmul, (behind, role[0]))),
        Stage(f"{role[0]}_gradient", "EE", Rewired(outer, (behind, tokens))),
        Stage(f"{role[0]}_bias_gradient", "E", Rewired(_over_tokens, (behind,))),
    )


def _over_tokens(gradient: Tensor) -> Tensor:
    return gradient.sum(dim=(0, 1))


BOTH_PASSES_OF_LAYER: Final = Program.unedited(
    *LAYER.stages,
    Stage("merged_gradient", "BQE", lambda upstream, o: upstream if o is None else upstream @ o),
    Stage("output_gradient", "BHQV", Rewired(split_heads, ("merged_gradient", "num_heads"))),
    *BACKWARD.stages,
    Stage("o_gradient", "EE", Rewired(outer, ("upstream", "merged"))),
    Stage("o_bias_gradient", "E", Rewired(_over_tokens, ("upstream",))),
    *(stage for role in ("query", "key", "value") for stage in _projection_stages(role)),
)
