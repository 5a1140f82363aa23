"""Undeclared functions with the parameters of public ones: right ones, and a mistake."""

# ruff: noqa: ARG001, FBT001, FBT002, PLR0917 (parameters are those of the public functions)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as torch_attention

from candidates.public_signatures import flash_attn_func as declared_flash


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Torch's own, behind a function."""
    return torch_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def inverted(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Tensor:
    """True hides a key, where torch's function attends to it."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = ~attn_mask
    return torch_attention(query, key, value, attn_mask, dropout_p, is_causal)


def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    p: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """XFormers' function of ``[B, L, H, D]`` in plain torch."""
    heads = (part.transpose(1, 2) for part in (query, key, value))
    return torch_attention(*heads, attn_bias, p, scale=scale).transpose(1, 2)


def dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    key_value_seq_lengths: Tensor | None = None,
) -> Tensor:
    """JAX's function of ``[B, L, H, D]`` in plain torch, without its window."""
    group = query.shape[2] // key.shape[2]
    rows, columns = query.shape[1], key.shape[1]
    q, k, v = (part.transpose(1, 2) for part in (query, key, value))
    k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
    visible = torch.ones(rows, columns, dtype=torch.bool)
    if is_causal:
        visible = visible.tril()
    if mask is not None:
        visible = visible & mask
    if key_value_seq_lengths is not None:
        lengths = key_value_seq_lengths[:, None, None, None]
        visible = visible & (torch.arange(columns) < lengths)
    table = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))
    table = table if bias is None else table + bias
    return torch_attention(q, k, v, table, scale=scale).transpose(1, 2)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """FlashAttention's function of ``[tokens, H, D]``, one sequence after another."""
    attend: Callable[..., Any] = declared_flash.function.__wrapped__  # type: ignore[attr-defined]  # of a wrapper
    options = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size}
    ends = (cu_seqlens_q.tolist(), cu_seqlens_k.tolist())
    answers = [q.new_zeros(0, q.shape[1], v.shape[2])]
    for first, last, first_key, last_key in zip(
        ends[0], ends[0][1:], ends[1], ends[1][1:], strict=False
    ):
        keys = slice(first_key, last_key)
        answers += attend(q[None, first:last], k[None, keys], v[None, keys], **options)
    return torch.cat(answers)
