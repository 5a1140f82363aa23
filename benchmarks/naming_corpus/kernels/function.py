"""Attention as an autograd function with a backward pass by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import conformance


class AttentionFunction(torch.autograd.Function):
    """Saves the weights, and computes the gradients of query, key, value and bias from them."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        causal: bool,  # noqa: FBT001 (autograd functions take no keywords)
        scale: float,
    ) -> Tensor:
        """The weighted sum of the values."""
        logits = query @ key.transpose(-1, -2) * scale
        hidden = torch.zeros(logits.shape, dtype=torch.bool, device=query.device)
        if bias is not None:
            logits = logits + bias
            hidden = hidden | bias.isneginf()
        if causal:
            offset = key.shape[2] - query.shape[2]
            hidden = hidden | hidden.new_ones(logits.shape[-2:]).triu(offset + 1)
        weights = logits.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden, 0.0)
        ctx.save_for_backward(query, key, value, weights)
        ctx.scale = scale
        ctx.bias_shape = None if bias is None else bias.shape
        return weights @ value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients, as in the appendix of the paper on flash attention."""
        query, key, value, weights = ctx.saved_tensors
        (grad_output,) = gradients
        grad_value = weights.transpose(-1, -2) @ grad_output
        grad_weights = grad_output @ value.transpose(-1, -2)
        delta = (grad_weights * weights).sum(dim=-1, keepdim=True)
        grad_logits = weights * (grad_weights - delta)
        grad_query = grad_logits @ key * ctx.scale
        grad_key = grad_logits.transpose(-1, -2) @ query * ctx.scale
        grad_bias = None
        if ctx.bias_shape is not None:
            grad_bias = grad_logits.sum_to_size(ctx.bias_shape)
        return grad_query, grad_key, grad_value, grad_bias, None, None


@conformance.core(
    masks=["bias"],
    causal="bottom-right",
    empty_rows="zeros",
    features=["gqa", "scale", "gradients", "grad_bias"],
)
def function(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to ``[B, Hkv, Lk, D]`` and ``[B, Hkv, Lk, Dv]``."""
    if key.shape[2] != value.shape[2]:
        msg = "keys and values have different lengths"
        raise ValueError(msg)
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    apply: Callable[..., Tensor] = AttentionFunction.apply
    return apply(query, key, value, bias, causal, scale)
