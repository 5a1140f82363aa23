"""Attention as people write it, without declarations: functions and modules to be identified."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class TokenAttention(nn.Module):
    """Document A: self-attention, value heads of a size of their own."""

    def __init__(self, token_size: int, qk_size: int, v_size: int, head_num: int) -> None:
        super().__init__()
        self.qk_size, self.v_size, self.head_num = qk_size, v_size, head_num
        self.W_q = nn.Linear(token_size, qk_size * head_num)
        self.W_k = nn.Linear(token_size, qk_size * head_num)
        self.W_v = nn.Linear(token_size, v_size * head_num)
        self.W = nn.Linear(v_size * head_num, token_size)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, L, E]`` to the same shape."""
        batch, length, _ = x.shape
        q = self.W_q(x).view(batch, length, self.head_num, self.qk_size).transpose(1, 2)
        k = self.W_k(x).view(batch, length, self.head_num, self.qk_size).transpose(1, 2)
        v = self.W_v(x).view(batch, length, self.head_num, self.v_size).transpose(1, 2)
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.qk_size), dim=-1)
        merged = (weights @ v).transpose(1, 2).reshape(batch, length, -1)
        output: Tensor = self.W(merged)
        return output


class UnbatchedAttention(nn.Module):
    """Document B2: self-attention on one sequence."""

    def __init__(self, embed_dim: int, head_dim: int, num_heads: int) -> None:
        super().__init__()
        self.head_dim, self.num_heads = head_dim, num_heads
        self.q_proj = nn.Linear(embed_dim, head_dim * num_heads)
        self.k_proj = nn.Linear(embed_dim, head_dim * num_heads)
        self.v_proj = nn.Linear(embed_dim, head_dim * num_heads)
        self.out_proj = nn.Linear(head_dim * num_heads, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """``[L, E]`` to the same shape."""
        length, _ = x.shape
        q, k, v = (
            linear(x).reshape(length, self.num_heads, self.head_dim).transpose(0, 1)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = torch.softmax(q @ k.transpose(1, 2) / self.head_dim**0.5, dim=-1)
        output: Tensor = self.out_proj((weights @ v).transpose(0, 1).reshape(length, -1))
        return output


class ValidLengthAttention(nn.Module):
    """Document C: valid lengths, hidden logits at -1e6."""

    def __init__(self, query_size: int, key_size: int, value_size: int, hidden: int) -> None:
        super().__init__()
        self.num_heads = 2
        self.dropout = nn.Dropout(0.5)
        self.W_q = nn.Linear(query_size, hidden, bias=False)
        self.W_k = nn.Linear(key_size, hidden, bias=False)
        self.W_v = nn.Linear(value_size, hidden, bias=False)
        self.W_o = nn.Linear(hidden, hidden, bias=False)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> Tensor:
        """``valid_lens`` is None, ``[B]`` or ``[B, Lq]``."""
        q, k, v = (
            linear(tokens).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for linear, tokens in ((self.W_q, queries), (self.W_k, keys), (self.W_v, values))
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if valid_lens is not None:
            limits = valid_lens[:, None] if valid_lens.dim() == 1 else valid_lens
            hidden = torch.arange(keys.shape[1]) >= limits[:, None, :, None]
            scores = scores.masked_fill(hidden, -1e6)
        merged = (self.dropout(torch.softmax(scores, -1)) @ v).transpose(1, 2).flatten(2)
        output: Tensor = self.W_o(merged)
        return output


class WideHeadAttention(nn.Module):
    """Document D: ``hidden_size`` is the size of one head."""

    def __init__(self, query_size: int, key_size: int, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.hidden_size, self.num_heads = hidden_size, num_heads
        self.linear_q = nn.Linear(query_size, hidden_size * num_heads)
        self.linear_k = nn.Linear(key_size, hidden_size * num_heads)
        self.linear_v = nn.Linear(key_size, hidden_size * num_heads)
        self.linear_o = nn.Linear(hidden_size * num_heads, hidden_size * num_heads)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """``[B, Lq, Eq]`` and ``[B, Lk, Ek]`` to ``[B, Lq, H * hidden_size]``."""
        q, k, v = (
            linear(tokens).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for linear, tokens in (
                (self.linear_q, query),
                (self.linear_k, key),
                (self.linear_v, value),
            )
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.hidden_size), dim=-1)
        output: Tensor = self.linear_o((weights @ v).transpose(1, 2).flatten(2))
        return output


class MaskedAttention(nn.Module):
    """Document E: 0 ignores, hidden logits at -1e9."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: N803
        """``mask`` broadcasts to ``[B, H, Lq, Lk]``."""
        q, k, v = (
            linear(tokens).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for linear, tokens in ((self.W_q, Q), (self.W_k, K), (self.W_v, V))
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_size)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        output: Tensor = self.W_o((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))
        return output


class CrossAttention(MaskedAttention):
    """Needs its second input, whatever the default says, and hides nothing."""

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        context: Tensor | None = None,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool = False,
    ) -> Tensor:
        """Mask and flag are taken and forgotten."""
        if context is None:
            msg = "context is needed unless there is a cache"
            raise ValueError(msg)
        del attn_mask, is_causal
        return super().forward(x, context, context)


def crossed(width: int = 6) -> nn.Module:
    """A factory that can be called without arguments."""
    return CrossAttention(width, 3)


def rows_by_form(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Rows without keys are zeros by ``keep``, and NaN by ``bias``."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias
    if keep is None:
        return scores.softmax(-1) @ v
    return scores.masked_fill(~keep, -torch.inf).softmax(-1).masked_fill(~keep, 0.0) @ v


token_attention = TokenAttention(10, 4, 6, 3)
unbatched_attention = UnbatchedAttention(6, 4, 3)
valid_length_attention = ValidLengthAttention(5, 7, 6, 8)
wide_head_attention = WideHeadAttention(5, 7, 4, 3)
masked_attention = MaskedAttention(12, 3)
torch_batch_first = nn.MultiheadAttention(12, 3, batch_first=True)
torch_sequence_first = nn.MultiheadAttention(12, 3, dropout=0.5)


def tokens_first(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 (as people write it)
) -> tuple[Tensor, Tensor]:
    """``[B, L, H, D]``; ``key_padding_mask [B, Lk]`` is True where a key is ignored."""
    scale = softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(q.shape[-1])
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask[:, None, None], -math.inf)
    if causal:
        queries, keys = scores.shape[-2:]
        allowed = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        scores = scores.masked_fill(~allowed, -math.inf)
    weights = torch.softmax(scores, -1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), weights


def value_before_key(
    query: Tensor, value: Tensor, key: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Heads first, another order of arguments, True attends, an empty row is zeros."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if mask is None:
        return torch.softmax(scores, -1) @ value
    weights = torch.softmax(scores.masked_fill(~mask, -math.inf), -1)
    return weights.nan_to_num(0.0) @ value


def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``[L, D]`` and nothing else; not scaled."""
    size = q.shape[1]
    assert k.shape[1] == size
    assert v.shape[0] == k.shape[0]
    return torch.softmax(q @ k.T, dim=1) @ v


class FoldedHeads(nn.Module):
    """``[B*H, L, D]`` with valid lengths; no rate of dropout is the root of a head size."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> Tensor:
        """``valid_lens`` is None, or ``[B*H]``."""
        scores = torch.bmm(queries, keys.mT) / queries.shape[-1] ** 0.5
        if valid_lens is not None:
            hidden = torch.arange(keys.shape[1]) >= valid_lens[:, None, None]
            scores = scores.masked_fill(hidden, -1e6)
        return torch.bmm(self.dropout(scores.softmax(-1)), values)


folded_heads = FoldedHeads()


class CausalWithMask(nn.Module):
    """Whatever the mask holds, every call with a mask is causal."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 3
        self.query, self.key, self.value, self.out = (nn.Linear(12, 12) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Of tokens."""
        q, k, v = (part(x).unflatten(-1, (3, -1)).transpose(1, 2) for part in self._parts())
        causal = mask is not None
        merged = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        answer: Tensor = self.out(merged.transpose(1, 2).flatten(2))
        return answer

    def _parts(self) -> tuple[nn.Module, ...]:
        return self.query, self.key, self.value


causal_with_mask = CausalWithMask()


def side_by_side(
    q: Tensor, k: Tensor, v: Tensor, num_heads: int, attn_bias: Tensor | None = None
) -> Tensor:
    """``[B, L, H*D]`` with the number of heads, and a bias on the logits."""
    heads = [t.unflatten(-1, (num_heads, -1)).transpose(1, 2) for t in (q, k, v)]
    logits = heads[0] @ heads[1].mT / heads[0].shape[-1] ** 0.5
    if attn_bias is not None:
        logits = logits + attn_bias
    return (logits.softmax(-1) @ heads[2]).transpose(1, 2).flatten(2)


def always_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The triangle is always there, from the first query and key on."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    hidden = ~torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


def padded_causal(q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    """Always causal, with a mask of keys ``[B, Lk]``: rows whose keys it hides are NaN."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    hidden = ~torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if padding_mask is not None:
        hidden = hidden | ~padding_mask[:, None, None]
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


def causal_by_default(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = True,  # noqa: FBT001, FBT002 (as people write it)
) -> Tensor:
    """The triangle is there unless it is turned off; a mask is added to the scores."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        hidden = ~torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(hidden, -math.inf)
    return (scores if mask is None else scores + mask).softmax(-1) @ v


def causal_unless_told(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bidirectional: bool = False,  # noqa: FBT001, FBT002 (as people write it)
) -> Tensor:
    """The flag turns causality off, and says so by another word."""
    return causal_by_default(q, k, v, causal=not bidirectional)


def normalised(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    normalize: bool = True,  # noqa: FBT001, FBT002 (as people write it)
    scale: bool = True,  # noqa: FBT001, FBT002 (as people write it)
) -> Tensor:
    """Queries and keys become unit vectors unless that is turned off."""
    if normalize:
        q, k = nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale else 1.0)
    return scores.softmax(-1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Logits never leave -30 to 30, and no keyword says so; the weights come along."""
    logits = q @ k.mT / q.shape[-1] ** 0.5
    weights = (30.0 * torch.tanh(logits / 30.0)).softmax(-1)
    return weights @ v, weights


def capped_by_default(q: Tensor, k: Tensor, v: Tensor, softcap: float | None = 20.0) -> Tensor:
    """A cap unless there is to be none."""
    logits = q @ k.mT / q.shape[-1] ** 0.5
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits.softmax(-1) @ v


def half_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Half the usual scale."""
    return (q @ k.mT * 0.5 / q.shape[-1] ** 0.5).softmax(-1) @ v


def fixed_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One number whatever the head size."""
    return (q @ k.mT * 0.125).softmax(-1) @ v


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Key/value heads tiled over the query heads."""
    times = q.shape[1] // k.shape[1]
    k, v = k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def in_a_dict(Q: Tensor, K: Tensor, V: Tensor) -> dict[str, Tensor]:  # noqa: N803
    """The output has a name."""
    return {"output": (Q @ K.mT / Q.shape[-1] ** 0.5).softmax(-1) @ V}


class CausalLanguageAttention(nn.Module):
    """One fused projection; the triangle is always there."""

    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, L, E]`` to the same shape."""
        q, k, v = (
            part.unflatten(-1, (self.n_head, -1)).transpose(1, 2)
            for part in self.c_attn(x).chunk(3, dim=-1)
        )
        output: Tensor = self.c_proj(always_causal(q, k, v).transpose(1, 2).flatten(2))
        return output


language_model = CausalLanguageAttention(12, 3)


def factory() -> nn.Module:
    """A function without arguments that makes a module."""
    return MaskedAttention(12, 3)


class MistakenLayer(nn.Module):
    """Three mistakes: no root in the scale, a finite fill, heads merged without the transpose."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[B, L, E]`` to the same shape; True attends."""
        q, k, v = (
            linear(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = q @ k.mT / q.shape[-1]
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e4)
        output: Tensor = self.out_proj((scores.softmax(-1) @ v).reshape(x.shape))
        return output


mistaken = MistakenLayer(12, 3)


def replaced_by_mask(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: Tensor | None = None,
    is_causal: bool = True,  # noqa: FBT001, FBT002 (as people write it)
    **kwargs: object,
) -> Tensor:
    """As transformers calls torch's kernel: causal unless masked or of one query; all else lost."""
    del kwargs
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if attention_mask is not None:
        scores = scores + attention_mask
    elif is_causal and q.shape[2] > 1:
        hidden = ~torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ v


class TrainsWithFewerShapes(MaskedAttention):
    """Takes a mask of the keys alone in eval mode only, as torch's fused layers do."""

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: N803
        """A mask as that of its parent."""
        if self.training and mask is not None and mask.ndim == 1:
            msg = "expected `attn_mask` to be 2-D or 3-D"
            raise RuntimeError(msg)
        return super().forward(Q, K, V, mask)


trains_with_fewer_shapes = TrainsWithFewerShapes(12, 3)


def flag_refuses_three_axes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,  # noqa: FBT001, FBT002 (as people write it)
) -> Tensor:
    """Takes a mask of any shape, and the causal flag with all but one: torch's kernels are so."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        if is_causal and mask.ndim == 3:
            msg = "Explicit attn_mask should not be set when is_causal=True"
            raise RuntimeError(msg)
        scores = scores.masked_fill(~mask, -math.inf)
    if is_causal:
        hidden = ~torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ v


def rounded_to_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The softmax runs in float32 whatever comes in, as in many models."""
    logits = (q @ k.mT / q.shape[-1] ** 0.5).float()
    return logits.softmax(-1).to(v.dtype) @ v


def shape_decides(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """A table of two axes is one of padding where it has as many rows as the batch."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        if mask.dim() == len("BK") and mask.shape[0] == q.shape[0]:
            mask = mask[:, None, None]
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ v


def with_tables(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Needs rotary tables, which are neither keys nor values."""
    return x * cos + x.flip(-1) * sin


def attention_with_tables(
    query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    """Rotary attention whose tables are arguments."""

    def turned(heads: Tensor) -> Tensor:
        first, second = heads.chunk(2, -1)
        return heads * cos + torch.cat([-second, first], -1) * sin

    return (turned(query) @ turned(key).mT / query.shape[-1] ** 0.5).softmax(-1) @ value


def needs_a_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Hides what is True in a mask of three axes, which it needs."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return scores.masked_fill(mask.unsqueeze(1), -1e9).softmax(-1) @ value


def unnamed_order(c: Tensor, a: Tensor, attn_mask: Tensor | None = None, *, b: Tensor) -> Tensor:
    """Names say nothing, and the value stands first."""
    scores = a @ b.mT / a.shape[-1] ** 0.5
    if attn_mask is not None:
        scores = scores.masked_fill(attn_mask == 0, -torch.inf)
    return scores.softmax(-1) @ c


def two_polarities(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """A mask of two axes keeps what is True, others hide it; floats are compared with -1."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if mask is not None and mask.dim() == len("BK"):
        scores = scores.masked_fill(~mask.bool()[:, None, None], -torch.inf)
    elif mask is not None:
        hidden = mask if mask.dtype is torch.bool else mask < -1.0
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ value


def dropped_by_a_module(
    query: Tensor, key: Tensor, value: Tensor, dropout: nn.Module | None = None
) -> Tensor:
    """Its dropout is a module, as in the annotated transformer."""
    weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
    return (weights if dropout is None else dropout(weights)) @ value


def on_arrays(query: Any, key: Any, value: Any) -> Any:
    """Attention of NumPy's arrays."""
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


def bool_is_lost(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """Adds a float mask; a boolean one is overwritten by its own fill, and read no more."""
    bias = torch.zeros(query.shape[-2], key.shape[-2], dtype=query.dtype)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask.masked_fill_(attn_mask.logical_not(), float("-inf"))
    elif attn_mask is not None:
        bias = bias + attn_mask
    scores = query @ key.mT / query.shape[-1] ** 0.5 + bias
    return torch.softmax(scores, dim=-1) @ value
