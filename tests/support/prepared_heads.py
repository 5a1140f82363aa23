"""Heads that are turned and normalised line by line in their own dtype, to test their bounds."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from conformance._golden import golden

POINTS: Final = [
    golden.STANDARD.replace(rotary="halves"),
    golden.STANDARD.replace(rotary="interleaved", rotary_fraction=0.5),
    golden.STANDARD.replace(qk_norm="rms"),
    golden.STANDARD.replace(qk_norm="l2"),
    golden.STANDARD.replace(qk_norm="layer"),
    golden.STANDARD.replace(qk_norm="rms", rotary="interleaved"),
    golden.STANDARD.replace(qk_norm="layer", rotary="halves", norm_order="after-rotary"),
    golden.STANDARD.replace(alibi=True),
]
PRECISIONS: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def described(point: golden.Semantics) -> str:
    """What is unusual about a point."""
    return f"{point.rotary}-{point.qk_norm}-{point.norm_order}-{point.alibi}"


def prepared(heads: Tensor, start: int, point: golden.Semantics) -> Tensor:
    """``heads [B, H, L, D]`` whose first token stands at ``start``, normalised and turned."""
    if point.normalises_late:
        return normalised(turned(heads, start, point), point)
    return turned(normalised(heads, point), start, point)


def normalised(heads: Tensor, point: golden.Semantics) -> Tensor:
    """As the point says."""
    if point.qk_norm == "none":
        return heads
    if point.qk_norm == "l2":
        return heads / torch.linalg.vector_norm(heads, dim=-1, keepdim=True)
    centred = heads
    if point.qk_norm == "layer":
        centred = heads - heads.mean(-1, keepdim=True)
    square = centred.square().mean(-1, keepdim=True)
    return centred / (square + point.qk_norm_epsilon).sqrt()


def turned(heads: Tensor, start: int, point: golden.Semantics) -> Tensor:
    """By tables that are stored in the dtype of the heads."""
    if point.rotary == "none":
        return heads
    places = torch.arange(start, start + heads.shape[2])
    first, second = golden.rotary_pairs(heads.shape[-1], point)
    angles = golden.rotary_angles(places, heads.shape[-1], point)
    cosine, sine = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first_half, second_half = heads[..., first], heads[..., second]
    result = heads.clone()
    result[..., first] = first_half * cosine - second_half * sine
    result[..., second] = first_half * sine + second_half * cosine
    return result


def with_distances(logits: Tensor, point: golden.Semantics) -> Tensor:
    """``logits [B, H, Lq, Lk]``, the last query at the last key, minus slope times distance."""
    if not point.alibi:
        return logits
    length = logits.shape[-1]
    slopes = golden.alibi_slopes(logits.shape[1]).to(logits.dtype)[:, None, None]
    queries = torch.arange(length - logits.shape[2], length)
    return logits - slopes * (queries[:, None] - torch.arange(length)).abs()
