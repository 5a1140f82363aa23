"""Cores in the working dtype, torch's own among them: what is stored is stored in that dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from .arithmetic import finish, transposed, wide, wide_dtype
from .inputs import Heads


def eager(heads: Heads) -> Tensor:
    """Line by line in the working dtype, everything stored."""
    heads = heads.repeated()
    scores = finish(heads.query @ transposed(heads.key) * heads.scale, heads)
    return torch.softmax(scores, dim=-1) @ heads.value


def eager_divided(heads: Heads) -> Tensor:
    """The product divided by sqrt(D), the softmax in float32, the weights stored (HF's Llama)."""
    heads = heads.repeated()
    scores = finish(heads.query @ transposed(heads.key) / (1.0 / heads.scale), heads)
    weights = torch.softmax(wide(scores), dim=-1).to(heads.dtype)
    return weights @ heads.value


def eager_query_scaled(heads: Heads) -> Tensor:
    """The scale goes to the query first, in the working dtype (fairseq, T5 code)."""
    heads = heads.repeated()
    scores = finish((heads.query * heads.scale) @ transposed(heads.key), heads)
    return torch.softmax(scores, dim=-1) @ heads.value


def einsum(heads: Heads) -> Tensor:
    """Two einsums with the softmax between them."""
    heads = heads.repeated()
    scores = torch.einsum("bhqd,bhkd->bhqk", heads.query, heads.key) * heads.scale
    weights = torch.softmax(finish(scores, heads), dim=-1)
    return torch.einsum("bhqk,bhkv->bhqv", weights, heads.value)


def baddbmm(heads: Heads) -> Tensor:
    """Bias, scale and product in one call of ``torch.baddbmm`` (as in Bloom)."""
    heads = heads.repeated()
    queries, keys = heads.query.flatten(0, 1), heads.key.flatten(0, 1)
    table = (*heads.query.shape[:3], heads.key.shape[2])
    added = heads.additive(heads.dtype)
    added = torch.zeros(table, dtype=heads.dtype) if added is None else added.expand(table)
    scores = torch.baddbmm(added.flatten(0, 1), queries, transposed(keys), alpha=heads.scale)
    mixed = torch.softmax(scores, dim=-1) @ heads.value.flatten(0, 1)
    return mixed.view(*table[:3], -1)


def all_native(heads: Heads) -> Tensor:
    """Every step of the softmax stored in the working dtype, one after the other."""
    heads = heads.repeated()
    scores = finish(heads.query @ transposed(heads.key) * heads.scale, heads)
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    return weights / weights.sum(dim=-1, keepdim=True) @ heads.value


def flex(heads: Heads) -> Tensor:
    """``flex_attention`` without compilation."""
    added, softcap = heads.additive(wide_dtype(heads.dtype)), heads.softcap
    shape = (heads.query.shape[0], heads.query.shape[1], heads.query.shape[2], heads.key.shape[2])
    added = None if added is None else added.expand(shape)

    def changed(score: Tensor, *place: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if added is None else score + added[place]

    answer = flex_attention(
        heads.query,
        heads.repeated().key,
        heads.repeated().value,
        score_mod=changed,
        scale=heads.scale,
    )
    if not isinstance(answer, Tensor):
        msg = "flex_attention returned more than the answer"
        raise TypeError(msg)
    return answer


def sdpa(backend: SDPBackend, *, flag: bool = False) -> Callable[[Heads], Tensor]:
    """One of torch's own kernels; ``flag`` says ``is_causal`` instead of giving the mask."""

    def core(heads: Heads) -> Tensor:
        mask: dict[str, Any] = {"is_causal": True}
        if not flag:
            keep, added = heads.keep, heads.additive(heads.dtype)
            mask = {"attn_mask": keep if heads.bias is None else added}
        grouped = backend == SDPBackend.MATH and heads.query.shape[1] != heads.key.shape[1]
        given = heads if grouped else heads.repeated()  # the CPU's flash kernel wants equal heads
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                given.query,
                given.key,
                given.value,
                scale=given.scale,
                enable_gqa=grouped,
                **mask,
            )

    return core
