"""Attention layers in the spellings that exporters meet, with the names of their projections."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def cut(tokens: Tensor, heads: int) -> Tensor:
    """``[B, L, H*D]`` to ``[B, H, L, D]``."""
    return tokens.view(tokens.shape[0], tokens.shape[1], heads, -1).transpose(1, 2)


def merged(heads: Tensor) -> Tensor:
    """``[B, H, L, D]`` to ``[B, L, H*D]``."""
    return heads.transpose(1, 2).flatten(2)


def divided(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The textbook's: logits over the root of the head size."""
    logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return logits.softmax(-1) @ value


def query_scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The scale on the query."""
    logits = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    return logits.softmax(-1) @ value


def both_scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The scale's root on either side."""
    root = query.shape[-1] ** -0.25
    return ((query * root) @ (key * root).transpose(-1, -2)).softmax(-1) @ value


def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """No scale at all."""
    return (query @ key.transpose(-1, -2)).softmax(-1) @ value


def overscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Divided by the head size instead of its root."""
    return (query @ key.transpose(-1, -2) / query.shape[-1]).softmax(-1) @ value


def fused_kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Torch's own."""
    return functional.scaled_dot_product_attention(query, key, value)


def summed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Einstein's notation, key first."""
    logits = torch.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(query.shape[-1])
    return torch.einsum("bhqk,bhkd->bhqd", logits.softmax(-1), value)


def written_out(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A softmax of exponentials."""
    logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    grown = (logits - logits.amax(-1, keepdim=True)).exp()
    return (grown / grown.sum(-1, keepdim=True)) @ value


def normalised_late(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The division after the mean, as in online softmax."""
    logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    grown = (logits - logits.amax(-1, keepdim=True)).exp()
    return (grown @ value) / grown.sum(-1, keepdim=True)


def logarithmic(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The exponential of a log-softmax."""
    logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return logits.log_softmax(-1).exp() @ value


def guarded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """NaN rows replaced by zeros."""
    weights = (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])).softmax(-1)
    return torch.where(weights.isnan(), torch.zeros_like(weights), weights) @ value


def biased(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A fixed bias by distance on the logits."""
    logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    rows = torch.arange(query.shape[-2])[:, None] - torch.arange(key.shape[-2])[None, :]
    return (logits - 0.5 * rows.abs().to(query.dtype)).softmax(-1) @ value


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Later keys filled with a large negative number."""
    logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    keep = torch.arange(query.shape[-2])[:, None] >= torch.arange(key.shape[-2])[None, :]
    return logits.masked_fill(~keep, -1e9).softmax(-1) @ value


def folded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Items and heads in one axis."""
    shape = query.shape
    q, k, v = (part.flatten(0, 1) for part in (query, key, value))
    logits = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(shape[-1])
    return torch.bmm(logits.softmax(-1), v).view(shape[0], shape[1], shape[2], -1)


def lower_precision(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A softmax in another dtype."""
    logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return logits.double().softmax(-1).to(query.dtype) @ value


class Layer(nn.Module):
    """Four Linears ``q``, ``k``, ``v``, ``o`` around a way to attend."""

    def __init__(
        self,
        attend: Attend = divided,
        *,
        widths: tuple[int, int, int, int] = (12, 12, 12, 12),
        inner: int = 12,
        heads: int = 3,
        kv_heads: int | None = None,
        bias: bool = True,
        output: bool = True,
        order: str = "BLE",
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.attend, self.order = attend, order
        rows = inner // heads * self.kv_heads
        self.q = nn.Linear(widths[0], inner, bias=bias)
        self.k = nn.Linear(widths[1], rows, bias=bias)
        self.v = nn.Linear(widths[2], rows, bias=bias)
        self.o = nn.Linear(inner, widths[3], bias=bias) if output else nn.Identity()

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention in the order of axes."""
        if self.order == "LBE":
            query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        if self.order == "LE":
            query, key, value = (part[None] for part in (query, key, value))
        group = self.heads // self.kv_heads
        q = cut(self.q(query), self.heads)
        k = cut(self.k(key), self.kv_heads).repeat_interleave(group, dim=1)
        v = cut(self.v(value), self.kv_heads).repeat_interleave(group, dim=1)
        answer: Tensor = self.o(merged(self.attend(q, k, v)))
        if self.order == "LBE":
            return answer.transpose(0, 1)
        return answer[0] if self.order == "LE" else answer


class SelfLayer(Layer):
    """The same with one input."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Self-attention."""
        return super().forward(x, x, x)


class MemoryLayer(Layer):
    """The same with a query and a context."""

    def forward(self, query: Tensor, context: Tensor) -> Tensor:  # type: ignore[override]
        """Cross-attention."""
        return super().forward(query, context, context)


class Fused(nn.Module):
    """One Linear for query, key and value, its rows in blocks, by head, or heads inside."""

    layouts: ClassVar = {
        "blocks": ((3, 3, 4), (2, 0, 3, 1, 4)),
        "by head": ((3, 3, 4), (3, 0, 2, 1, 4)),
        "heads inside": ((4, 3, 3), (3, 0, 4, 1, 2)),
    }

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.qkv, self.o = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Self-attention."""
        shape, axes = self.layouts[self.layout]
        q, k, v = self.qkv(x).view(*x.shape[:2], *shape).permute(axes)
        answer: Tensor = self.o(merged(divided(q, k, v)))
        return answer

    def rows(self, tensor: Tensor, part: int) -> Tensor:
        """The rows of query (0), key (1) or value (2) of the fused matrix or bias."""
        inner = tensor.view(*self.layouts[self.layout][0], *tensor.shape[1:])
        axis = {"blocks": 0, "by head": 1, "heads inside": 1}[self.layout]
        part_rows = inner.select(axis, part)
        if self.layout == "heads inside":
            part_rows = part_rows.transpose(0, 1)
        return part_rows.reshape(12, *tensor.shape[1:])


class Transposed(nn.Module):
    """Matrices stored ``[in, out]``, query, key and value side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Parameter(torch.randn(12, 36))
        self.c_attn_bias = nn.Parameter(torch.randn(36))
        self.c_proj = nn.Parameter(torch.randn(12, 12))
        self.c_proj_bias = nn.Parameter(torch.randn(12))

    def forward(self, x: Tensor) -> Tensor:
        """Self-attention."""
        q, k, v = (cut(part, 3) for part in (x @ self.c_attn + self.c_attn_bias).split(12, -1))
        return merged(divided(q, k, v)) @ self.c_proj + self.c_proj_bias


class Cubes(nn.Module):
    """Kernels ``[E, H, D]`` and ``[H, D, E]``, contracted in Einstein's notation."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(12, 3, 4)) for _ in range(3))
        self.bq, self.bk, self.bv = (nn.Parameter(torch.randn(3, 4)) for _ in range(3))
        self.wo, self.bo = nn.Parameter(torch.randn(3, 4, 12)), nn.Parameter(torch.randn(12))

    def forward(self, query: Tensor, value: Tensor) -> Tensor:
        """Cross-attention."""
        q = torch.einsum("ble,ehd->blhd", query, self.wq) + self.bq
        k = torch.einsum("ble,ehd->blhd", value, self.wk) + self.bk
        v = torch.einsum("ble,ehd->blhd", value, self.wv) + self.bv
        logits = torch.einsum("bqhd,bkhd->bhqk", q * 4**-0.5, k)
        heads = torch.einsum("bhqk,bkhd->bqhd", logits.softmax(-1), v)
        return torch.einsum("bqhd,hde->bqe", heads, self.wo) + self.bo


class PerHead(nn.Module):
    """A list of heads, each with its own matrices and its own softmax."""

    def __init__(self) -> None:
        super().__init__()
        parts = [nn.ModuleList([nn.Linear(12, 4) for _ in range(3)]) for _ in range(3)]
        self.q, self.k, self.v = parts
        self.o = nn.Linear(12, 12)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Head by head, put side by side."""
        heads = [
            divided(q(query), k(key), v(value))
            for q, k, v in zip(self.q, self.k, self.v, strict=True)
        ]
        answer: Tensor = self.o(torch.cat(heads, dim=-1))
        return answer


class Interleaved(Layer):
    """Heads cut out of single rows with the wrong stride: head h owns every third row."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention with another head layout."""
        q, k, v = (
            p(t).view(*t.shape[:2], -1, self.heads).permute(0, 3, 1, 2)
            for p, t in ((self.q, query), (self.k, key), (self.v, value))
        )
        answer: Tensor = self.o(merged(divided(q, k, v)))
        return answer


class Reinterpreted(Layer):
    """The split without the transposition: heads are made of several tokens."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention with another head layout."""
        q, k, v = (
            p(t).view(t.shape[0], self.heads, t.shape[1], -1)
            for p, t in ((self.q, query), (self.k, key), (self.v, value))
        )
        answer: Tensor = self.o(merged(divided(q, k, v)))
        return answer


def weights_of(module: nn.Module) -> dict[str, Any]:
    """``q``, ``k``, ``v``, ``o`` of a Layer or an nn.MultiheadAttention, and their biases."""
    if isinstance(module, nn.MultiheadAttention):
        return _of_multihead(module)
    weights: dict[str, Any] = {}
    for name in "qkvo":
        part = getattr(module, name)
        weights[name] = getattr(part, "weight", None)
        weights[f"{name}_bias"] = getattr(part, "bias", None)
    return weights


def _of_multihead(module: nn.MultiheadAttention) -> dict[str, Any]:
    apart = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    fused = module.in_proj_weight
    matrices = apart if fused is None else fused.chunk(3)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    weights: dict[str, Any] = dict(zip("qkv", matrices, strict=True))
    weights |= {f"{name}_bias": bias for name, bias in zip("qkv", biases, strict=True)}
    return weights | {"o": module.out_proj.weight, "o_bias": module.out_proj.bias}
