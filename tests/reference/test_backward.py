"""The backward pass as stages gives the gradients that autograd finds of the forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference import Run, Semantics


def drawn(*shape: int, seed: int) -> Tensor:
    """Numbers of float64 from a seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


POINTS: Mapping[str, tuple[Semantics, dict[str, Any]]] = {
    "standard": (Semantics(), {}),
    "causal": (Semantics(), {"causal": True}),
    "window": (Semantics(), {"window": (1, 1)}),
    "scale": (Semantics(), {"scale": 0.7}),
    "softcap": (Semantics(), {"softcap": 1.5}),
    "softcap after the mask": (Semantics(softcap_order="after-mask"), {"softcap": 1.5}),
    "bias": (Semantics(), {"bias": drawn(2, 1, 3, 5, seed=7)}),
    "scaled bias": (Semantics(bias_order="before-scale"), {"bias": drawn(1, 4, 1, 5, seed=8)}),
    "sinks": (Semantics(), {"sinks": drawn(4, seed=9)}),
    "tiled groups": (Semantics(group_order="tile"), {}),
    "distances": (Semantics(alibi=True), {}),
    "function": (Semantics(score_mod=lambda score, *_: score.sin() + score), {}),
    "function and softcap": (
        Semantics(score_mod=lambda score, *_: score * score.abs()),
        {"softcap": 2.0},
    ),
    "rotary halves": (Semantics(rotary="halves"), {}),
    "rotary pairs, aligned top-left": (
        Semantics(rotary="interleaved", causal_alignment="top-left"),
        {"causal": True},
    ),
    "scaled rotary": (
        Semantics(rotary="halves", rotary_scaling=("linear", 2.0), rotary_amplitude=1.3),
        {},
    ),
    "given tables": (
        Semantics(rotary="interleaved", rotary_fraction=0.7),
        {"rotary_tables": torch.complex(drawn(2, 5, 2, seed=10), drawn(2, 5, 2, seed=11))},
    ),
    "given positions": (
        Semantics(rotary="halves", alibi=True, causal_by="positions"),
        {
            "causal": True,
            "query_positions": torch.tensor([[7, 2, 9], [4, 4, 1]]),
            "key_positions": torch.tensor([[5, 6, 0, 1, 2], [3, 3, 3, 8, 1]]),
        },
    ),
    "rms norm": (Semantics(qk_norm="rms"), {}),
    "l2 norm and rotary": (Semantics(qk_norm="l2", rotary="halves"), {}),
    "layer norm behind rotary": (
        Semantics(
            qk_norm="layer", norm_order="after-rotary", rotary="halves", rotary_amplitude=1.3
        ),
        {},
    ),
    "layer norm": (Semantics(qk_norm="layer"), {"scale": 0.9}),
    "learned, by head": (
        Semantics(qk_norm="rms", rotary="halves", alibi=True),
        {
            "learned": {
                "query_norm_weight": drawn(6, seed=12),
                "key_norm_weight": drawn(6, seed=13),
                "temperature": drawn(4, seed=14),
                "alibi_slopes": drawn(4, seed=15),
            }
        },
    ),
    "learned, relative table": (
        Semantics(relative="t5"),
        {
            "causal": True,
            "learned": {"relative_table": drawn(8, 4, seed=12)},
        },
    ),
    "learned, memory": (
        Semantics(group_order="tile"),
        {
            "softcap": 1.5,
            "causal": True,
            "bias": drawn(1, 4, 3, 5, seed=16),
            "learned": {"bias_k": drawn(2, 6, seed=12), "bias_v": drawn(2, 7, seed=13)},
        },
    ),
    "learned, of all heads": (
        Semantics(qk_norm="layer", qk_norm_over="all-heads", group_order="tile", alibi=True),
        {
            "softcap": 1.5,
            "learned": {
                "query_norm_weight": drawn(24, seed=12),
                "key_norm_weight": drawn(12, seed=13),
                "alibi_slopes": drawn(2, 4, seed=15),
            },
        },
    ),
}


@pytest.mark.parametrize("name", POINTS)
def test_the_stages_are_what_autograd_finds(name: str) -> None:
    """Of query, key, value, an additive mask and learned arguments, with groups of heads."""
    point, options = POINTS[name]
    given = [drawn(2, 4, 3, 6, seed=1), drawn(2, 2, 5, 6, seed=2), drawn(2, 2, 5, 7, seed=3)]
    leaves = [each.requires_grad_() for each in given]
    bias = options.get("bias")
    if bias is not None:
        bias = bias.clone().requires_grad_()
        leaves.append(bias)
    learned = {n: each.clone().requires_grad_() for n, each in options.get("learned", {}).items()}
    leaves += learned.values()
    options = {**options, "bias": bias, "learned": learned}
    attention = reference.attend(*given, **options, semantics=point)
    upstream = drawn(*attention.output.shape, seed=4)
    found = torch.autograd.grad(attention.output, leaves, upstream)
    run = Run(
        reference.choose_point(reference.BOTH_PASSES, point),
        {**attention.run.given, "upstream": upstream},
    )
    stages = [f"given_{role}_gradient" for role in ("query", "key", "value")]
    stages += ["bias_gradient"] * (bias is not None) + [f"{name}_gradient" for name in learned]
    for stage, expected in zip(stages, found, strict=True):
        torch.testing.assert_close(run[stage], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("point", [Semantics(), Semantics(qk_norm="rms", rotary="halves")])
def test_the_stages_of_a_layer_are_what_autograd_finds(point: Semantics) -> None:
    """Of its tokens, matrices and biases."""
    tokens = [drawn(2, 3, 5, seed=1), drawn(2, 4, 6, seed=2), drawn(2, 4, 7, seed=3)]
    shapes = {"q": (16, 5), "k": (8, 6), "v": (6, 7), "o": (9, 12)}
    weights = {name: drawn(*shape, seed=len(name) + shape[1]) for name, shape in shapes.items()}
    biases = {f"{name}_bias": drawn(shape[0], seed=shape[0]) for name, shape in shapes.items()}
    leaves = {
        **dict(zip(("query_tokens", "key_tokens", "value_tokens"), tokens, strict=True)),
        **weights,
        **biases,
    }
    for leaf in leaves.values():
        leaf.requires_grad_()
    layer = reference.multi_head_attention(
        *tokens,
        reference.ProjectionWeights(**weights, **biases),
        num_heads=4,
        num_kv_heads=2,
        causal=True,
        semantics=point,
    )
    upstream = drawn(*layer.output.shape, seed=4)
    found = torch.autograd.grad(layer.output, list(leaves.values()), upstream)
    program = reference.choose_point(reference.BOTH_PASSES_OF_LAYER, point)
    run = Run(program, {**layer.core.run.given, "upstream": upstream})
    for name, expected in zip(leaves, found, strict=True):
        torch.testing.assert_close(run[f"{name}_gradient"], expected, rtol=1e-10, atol=1e-12)
