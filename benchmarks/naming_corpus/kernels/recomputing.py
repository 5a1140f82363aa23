"""Attention whose backward pass computes the weights again from the log-sum-exp of each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import conformance

TILE = 16


class Recomputing(torch.autograd.Function):
    """Saves operands, answer and log-sum-exp; the gradients come tile by tile of the keys."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        hidden: Tensor,
        scale: float,
        cap: float | None,
    ) -> Tensor:
        """The weighted sum of the values."""
        logits = query @ key.mT * scale
        if cap is not None:
            logits = cap * torch.tanh(logits / cap)
        logits = logits.masked_fill(hidden, -torch.inf)
        total = torch.logsumexp(logits, dim=-1, keepdim=True)
        total = total.masked_fill(total == -torch.inf, 0.0)
        output = torch.exp(logits - total) @ value
        ctx.save_for_backward(query, key, value, hidden, output, total)
        ctx.scale, ctx.cap = scale, cap
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of query, key and value."""
        query, key, value, hidden, output, total = ctx.saved_tensors
        (upstream,) = gradients
        delta = (upstream * output).sum(-1, keepdim=True)
        of_query = torch.zeros_like(query)
        of_keys, of_values = [], []
        for start in range(0, key.shape[2], TILE):
            keys = key[:, :, start : start + TILE]
            values = value[:, :, start : start + TILE]
            logits = query @ keys.mT * ctx.scale
            slope = torch.ones_like(logits)
            if ctx.cap is not None:
                bent = torch.tanh(logits / ctx.cap)
                logits, slope = ctx.cap * bent, 1.0 - bent.square()
            logits = logits.masked_fill(hidden[..., start : start + TILE], -torch.inf)
            weights = torch.exp(logits - total)
            of_scores = weights * (upstream @ values.mT - delta) * slope
            of_query = of_query + of_scores @ keys * ctx.scale
            of_keys.append(of_scores.mT @ query * ctx.scale)
            of_values.append(weights.mT @ upstream)
        if not of_keys:
            return of_query, torch.zeros_like(key), torch.zeros_like(value), None, None, None
        return of_query, torch.cat(of_keys, 2), torch.cat(of_values, 2), None, None, None


@conformance.core(
    masks=["keep"],
    causal="bottom-right",
    empty_rows="zeros",
    features=["gqa", "scale", "softcap", "gradients"],
)
def recomputing(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to ``[B, Hkv, Lk, D]`` and ``[B, Hkv, Lk, Dv]``."""
    if key.shape[2] != value.shape[2]:
        msg = "keys and values have different lengths"
        raise ValueError(msg)
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    hidden = query.new_zeros((*query.shape[:3], key.shape[2]), dtype=torch.bool)
    if keep is not None:
        hidden = hidden | ~keep
    if causal:
        hidden = hidden | torch.ones_like(hidden).triu(key.shape[2] - query.shape[2] + 1)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    apply: Callable[..., Tensor] = Recomputing.apply
    return apply(query, key, value, hidden, scale, softcap)
