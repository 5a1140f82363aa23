"""The gradients of learned arguments and their bounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from conformance._golden import golden
from conformance.declare.promises import declare
from conformance.tolerance import contract_for, core_gradients

ITEMS, HEADS, GROUPS, ROWS, KEYS, SIZE = 2, 4, 2, 3, 5, 6
POINTS = {
    "each head": golden.STANDARD.replace(qk_norm="rms", rotary="halves", alibi=True),
    "all heads": golden.STANDARD.replace(
        qk_norm="layer", qk_norm_over="all-heads", group_order="tile", alibi=True
    ),
}


def drawn(*shape: int, seed: int) -> Tensor:
    """Normal numbers in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def problem(point: Any, dtype: torch.dtype) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Heads and learned arguments that a dtype holds."""
    together = point.qk_norm_over == "all-heads"
    heads = [
        drawn(ITEMS, count, length, SIZE, seed=place)
        for place, (count, length) in enumerate(((HEADS, ROWS), (GROUPS, KEYS), (GROUPS, KEYS)))
    ]
    made = {
        "query_norm_weight": drawn(SIZE * (HEADS if together else 1), seed=4),
        "key_norm_weight": drawn(SIZE * (GROUPS if together else 1), seed=5),
        "temperature": drawn(HEADS, seed=6),
        "alibi_slopes": drawn(*((ITEMS, HEADS) if together else (HEADS,)), seed=7),
    }
    rounded = {name: value.to(dtype).double() for name, value in made.items()}
    return [each.to(dtype).double() for each in heads], rounded


@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounded_gradients_are_within_their_bounds(name: str, dtype: torch.dtype) -> None:
    """Autograd in the working dtype, through an attention that stores every step."""
    point = POINTS[name]
    heads, learned = problem(point, dtype)
    plain = golden.attend(*heads, learned=learned, semantics=point)
    upstream = drawn(*plain.output.shape, seed=9).to(dtype)
    word = str(dtype).removeprefix("torch.")
    contract = contract_for(declare("core", dtypes=[word]), word, plain.scale)
    made = core_gradients(plain, upstream.double(), contract, num_kv_heads=GROUPS)
    leaves = {n: value.to(dtype).requires_grad_() for n, value in learned.items()}
    answer = stored_attention([each.to(dtype) for each in heads], leaves, point)
    found = torch.autograd.grad(answer, list(leaves.values()), upstream)
    for argument, got in zip(learned, found, strict=True):
        error = (got.double() - made[argument].value).abs()
        assert bool((error <= made[argument].worst).all()), argument


def stored_attention(heads: list[Tensor], learned: dict[str, Tensor], point: Any) -> Tensor:
    """Attention in the dtype of its heads, without a mask."""
    query, key, value = heads
    query = weighed(query, learned["query_norm_weight"], point)
    key = weighed(key, learned["key_norm_weight"], point)
    if point.rotary != "none":
        places = [torch.arange(KEYS - ROWS, KEYS), torch.arange(KEYS)]
        query, key = (turned(h, at) for h, at in zip((query, key), places, strict=True))
    if point.group_order == "tile":
        key, value = key.repeat(1, 2, 1, 1), value.repeat(1, 2, 1, 1)
    else:
        key, value = key.repeat_interleave(2, dim=1), value.repeat_interleave(2, dim=1)
    scores = (query @ key.mT) * SIZE**-0.5 * learned["temperature"][:, None, None]
    apart = (torch.arange(KEYS - ROWS, KEYS)[:, None] - torch.arange(KEYS)).abs().to(scores.dtype)
    logits = scores - learned["alibi_slopes"][..., None, None] * apart
    return logits.softmax(dim=-1) @ value


def weighed(heads: Tensor, weight: Tensor, point: Any) -> Tensor:
    """Heads by torch's own norms, times their weight."""
    joined = heads
    if point.qk_norm_over == "all-heads":
        joined = heads.transpose(1, 2).flatten(2)
    norms = torch.nn.functional
    norm = norms.layer_norm if point.qk_norm == "layer" else norms.rms_norm
    made = norm(joined, joined.shape[-1:], eps=point.qk_norm_epsilon) * weight
    if point.qk_norm_over == "all-heads":
        return made.unflatten(-1, (heads.shape[1], -1)).transpose(1, 2)
    return made


def turned(heads: Tensor, places: Tensor) -> Tensor:
    """Halves of channels turned together."""
    angles = reference.rotary_angles(places, SIZE, reference.STANDARD.replace(rotary="halves"))
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    one, two = heads.chunk(2, dim=-1)
    return torch.cat((one * cos - two * sin, one * sin + two * cos), dim=-1)
