"""Normalised queries and keys: each head of each token by itself, without a learned factor.

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
    centred = heads
    if semantics.qk_norm == "layer":
        centred = heads - heads.mean(dim=-1, keepdim=True)
    return centred / norms(centred, semantics)


def norms(centred: Tensor, semantics: Semantics) -> Tensor:
    """The divisors of the channels of heads ``[B, H, L, D]``: ``[B, H, L, 1]``."""
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
    own = normalise_heads(heads, semantics)
    centred = heads - heads.mean(dim=-1, keepdim=True) if semantics.qk_norm == "layer" else heads
    divisor = norms(centred, semantics)
    along = own * gradient
    if semantics.qk_norm == "l2":  # epsilon replaces smaller lengths
        along = along.sum(dim=-1, keepdim=True) * (divisor > semantics.qk_norm_epsilon)
    else:
        along = along.mean(dim=-1, keepdim=True)
    back = (gradient - own * along) / divisor
    return back - back.mean(dim=-1, keepdim=True) if semantics.qk_norm == "layer" else back
