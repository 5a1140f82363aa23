"""Sequences of different lengths, one after another in one tensor, as FlashAttention takes them.

``cu_seqlens_q`` and ``cu_seqlens_k`` (int32, one more than there are sequences) say where each
begins. The causal diagonal ends at the last query and the last key of each sequence.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

import conformance


@conformance.core(
    layout="varlen",
    causal="bottom-right",
    empty_rows="zeros",
    features=["scale", "gqa"],
    dtypes=["float32", "float64"],
)
def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attend ``query [total_q, H, D]`` to ``key [total_k, Hkv, D]`` and ``value``.

    Returns ``[total_q, H, Dv]``. Raises ValueError for offsets that the tensors do not fit.
    """
    for offsets, tensor in ((cu_seqlens_q, query), (cu_seqlens_k, key), (cu_seqlens_k, value)):
        if int(offsets[-1]) != tensor.shape[0]:
            msg = f"the offsets end at {int(offsets[-1])}, but there are {tensor.shape[0]} tokens"
            raise ValueError(msg)
    if cu_seqlens_q.shape != cu_seqlens_k.shape:
        msg = f"there are offsets for {len(cu_seqlens_q)} and for {len(cu_seqlens_k)} sequences"
        raise ValueError(msg)
    del max_seqlen_q, max_seqlen_k  # for kernels that launch as many blocks as the longest needs
    answers = [query.new_zeros(0, query.shape[1], value.shape[2])]
    ends = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
    for (first, last), (first_key, last_key) in ends:
        rows, keys = slice(first, last), slice(first_key, last_key)
        one = _attend(query[rows], key[keys], value[keys], causal=causal, scale=scale)
        answers.append(one)
    return torch.cat(answers)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float | None
) -> Tensor:
    """One sequence: ``[L, H, D]`` in and out."""
    mask = None
    if causal:
        mask = torch.ones(len(query), len(key), dtype=torch.bool, device=query.device)
        mask = mask.tril(len(key) - len(query))
    one, two, three = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))
    grouped = query.shape[1] != key.shape[1]
    answer = F.scaled_dot_product_attention(
        one, two, three, attn_mask=mask, scale=scale, enable_gqa=grouped
    )
    return answer.squeeze(0).transpose(0, 1)
