"""Normalised queries and keys: each head of each token by itself, or all its heads together.

rms    x / sqrt(mean(x^2) + epsilon)                       Zhang & Sennrich 2019, RMSNorm
l2     x / max(|x|, epsilon)                               Henry et al. 2020, QKNorm
layer  (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon)    Dehghani et al. 2023, ViT-22B
"""

from __future__ import annotations

import torch
from torch import Tensor

from .semantics import Semantics


def normalise_heads(heads: Tensor, semantics: Semantics) -> Tensor:
    """Normalise the channels of ``heads [B, H, L, D]`` as ``qk_norm`` says; float64."""
    heads = heads.double()
    if semantics.qk_norm == "none" or heads.shape[-1] == 0:
        return heads
    centred = joined_heads(heads, semantics)
    if semantics.qk_norm == "layer":
        centred = centred - centred.mean(dim=-1, keepdim=True)
    return parted_heads(centred / norms(centred, semantics), heads, semantics)


def joined_heads(heads: Tensor, semantics: Semantics) -> Tensor:
    """What is normalised together, along the last axis: ``[B, 1, L, H*D]`` of all heads."""
    if semantics.qk_norm_over == "head":
        return heads
    return heads.transpose(-3, -2).flatten(-2).unsqueeze(-3)


def parted_heads(joined: Tensor, like: Tensor, semantics: Semantics) -> Tensor:
    """The inverse of :func:`joined_heads`, for heads of a shape."""
    if semantics.qk_norm_over == "head":
        return joined
    parted: Tensor = joined.squeeze(-3).unflatten(-1, (like.shape[-3], -1))
    return parted.transpose(-3, -2)


def weigh(heads: Tensor, weight: Tensor | None) -> Tensor:
    """Heads ``[B, H, L, D]`` times learned factors of channels, ``[H or 1, D]``, if any."""
    return heads if weight is None else heads * weight.unsqueeze(-2)


def temper(heads: Tensor, temperature: Tensor | None) -> Tensor:
    """Heads ``[B, H, L, D]`` times the temperature of each head, ``[H]``, if any."""
    return heads if temperature is None else heads * temperature[..., None, None]


def split_by_head(weight: Tensor | None, heads: Tensor) -> Tensor | None:
    """Learned factors ``[D]`` of every head, or ``[H*D]``, by head: ``[1, D]`` or ``[H, D]``."""
    return None if weight is None else weight.unflatten(-1, (-1, heads.shape[-1]))


def norms(centred: Tensor, semantics: Semantics) -> Tensor:
    """The divisors of what is normalised together ``[B, H, L, D]``: ``[B, H, L, 1]``."""
    epsilon = semantics.qk_norm_epsilon
    if semantics.qk_norm == "l2":
        length: Tensor = torch.linalg.vector_norm(centred, dim=-1, keepdim=True)
        return length.clamp_min(epsilon)
    return (centred.square().mean(dim=-1, keepdim=True) + epsilon).sqrt()


def normalised_gradient(gradient: Tensor, heads: Tensor, semantics: Semantics) -> Tensor:
    """The gradient of heads ``[B, H, L, D]`` from the gradient of the normalised heads; float64.

    The divisor depends on the heads, too: ``(g - y mean(y g)) / norm``, y being the normalised
    heads.
    """
    if semantics.qk_norm == "none" or heads.shape[-1] == 0:
        return gradient
    own = joined_heads(normalise_heads(heads, semantics), semantics)
    centred, gradient = (joined_heads(each, semantics) for each in (heads, gradient))
    if semantics.qk_norm == "layer":
        centred = centred - centred.mean(dim=-1, keepdim=True)
    divisor = norms(centred, semantics)
    along = own * gradient
    if semantics.qk_norm == "l2":  # epsilon replaces smaller lengths
        along = along.sum(dim=-1, keepdim=True) * (divisor > semantics.qk_norm_epsilon)
    else:
        along = along.mean(dim=-1, keepdim=True)
    back = (gradient - own * along) / divisor
    back = back - back.mean(dim=-1, keepdim=True) if semantics.qk_norm == "layer" else back
    return parted_heads(back, heads, semantics)
