"""Attention in the layout ``[batch, tokens, heads, size]``, written with einsum."""

from __future__ import annotations

import torch
from torch import Tensor

import conformance


@conformance.core(
    layout="BSHD",
    masks=["keep"],
    causal="bottom-right",
    empty_rows="zeros",
    features=["scale", "gqa", "weights"],
)
def bshd(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend ``[B, Sq, H, D]`` to ``[B, Sk, Hkv, D]``; the weights are ``[B, H, Sq, Sk]``."""
    b, sq, h, d = query.shape
    sk, kv = key.shape[1], key.shape[2]
    if value.shape[1] != sk:
        msg = "keys and values have different lengths"
        raise ValueError(msg)
    g, dv = h // kv, value.shape[3]
    key = key.unsqueeze(3).expand(b, sk, kv, g, d).reshape(b, sk, h, d)
    value = value.unsqueeze(3).expand(b, sk, kv, g, dv).reshape(b, sk, h, dv)
    dots = torch.einsum("bqhd,bkhd->bhqk", query, key)
    dots = dots * (d**-0.5 if scale is None else scale)
    mask = torch.ones(b, h, sq, sk, dtype=torch.bool, device=query.device)
    if keep is not None:
        mask = mask & keep
    if causal:
        mask = mask & torch.ones_like(mask).tril(sk - sq)
    dots = dots.masked_fill(~mask, -torch.inf)
    weights = dots.softmax(-1).masked_fill(~mask, 0.0)
    output = torch.einsum("bhqk,bkhd->bqhd", weights, value)
    return (output, weights) if return_weights else output
