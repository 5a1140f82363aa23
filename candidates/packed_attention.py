"""Attention whose inputs lie in one tensor: query, key and value together, or key and value.

Both cut the tensor into views and leave the rest to torch; the promises are what matters here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

import conformance


def _attend(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float | None
) -> Tensor:
    """``[B, S, H, D]`` in and out; the causal diagonal ends at the last query and the last key."""
    one, two, three = (tensor.transpose(1, 2) for tensor in (query, key, value))
    mask = None
    if causal:
        shape = (query.shape[1], key.shape[1])
        mask = torch.ones(shape, dtype=torch.bool, device=query.device)
        mask = mask.tril(key.shape[1] - query.shape[1])
    grouped = one.shape[1] != two.shape[1]
    answer = F.scaled_dot_product_attention(
        one, two, three, attn_mask=mask, scale=scale, enable_gqa=grouped
    )
    return answer.transpose(1, 2)


@conformance.core(
    layout="packed-qkv",
    causal="bottom-right",
    features=["scale"],
    dtypes=["float32", "float64"],
)
def packed_qkv_attention(
    qkv: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Attend within ``qkv [B, S, 3, H, D]``; returns ``[B, S, H, D]``."""
    query, key, value = qkv.unbind(2)
    return _attend(query, key, value, causal=causal, scale=scale)


@conformance.core(
    layout="packed-kv",
    causal="bottom-right",
    empty_rows="zeros",
    features=["scale", "gqa"],
    dtypes=["float32", "float64"],
)
def packed_kv_attention(
    query: Tensor, kv: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Attend ``query [B, Sq, H, D]`` to ``kv [B, Sk, 2, Hkv, D]``; returns ``[B, Sq, H, D]``."""
    key, value = kv.unbind(2)
    return _attend(query, key, value, causal=causal, scale=scale)
