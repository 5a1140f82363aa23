"""Attention modules as people write them, one spelling each, small enough to read."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

HEADS = 3
WIDTH = 12


def cut(tokens: Tensor, heads: int) -> Tensor:
    """``[B, L, H*D]`` to ``[B, H, L, D]``."""
    return tokens.view(*tokens.shape[:2], heads, -1).transpose(1, 2)


def attended(query: Tensor, key: Tensor, value: Tensor, factor: float = 1.0) -> Tensor:
    """Heads in, merged ``[B, L, H*D]`` out."""
    logits = factor * (query @ key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
    return (logits.softmax(-1) @ value).transpose(1, 2).flatten(2)


class Named(nn.Module):
    """Four Linears under the given names, inputs query, key and value."""

    def __init__(
        self, names: tuple[str, str, str, str], *, bias: bool = True, kv_heads: int = HEADS
    ) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.names, self.kv_heads = names, kv_heads
        rows = WIDTH // HEADS * kv_heads
        for name, out in zip(names, (WIDTH, rows, rows, WIDTH), strict=True):
            self.add_module(name, nn.Linear(WIDTH, out, bias=bias))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Plain attention, key/value heads repeated."""
        q, k, v, o = (getattr(self, name) for name in self.names)
        group = HEADS // self.kv_heads
        keys = cut(k(key), self.kv_heads).repeat_interleave(group, dim=1)
        values = cut(v(value), self.kv_heads).repeat_interleave(group, dim=1)
        output: Tensor = o(attended(cut(q(query), HEADS), keys, values))
        return output


class Nameless(nn.Module):
    """Linears whose names and order say nothing, and no number of heads."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.factor = factor

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Query c, key a, value d, output b."""
        q, k, v = cut(self.c(x), HEADS), cut(self.a(y), HEADS), cut(self.d(z), HEADS)
        output: Tensor = self.b(attended(q, k, v, self.factor))
        return output


class Cloned(nn.Module):
    """The annotated style: a list of four identical copies."""

    def __init__(self) -> None:
        super().__init__()
        self.h = HEADS
        self.linears = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        for linear in self.linears[1:]:
            linear.load_state_dict(self.linears[0].state_dict())

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """The list in the order query, key, value, output; ``mask`` is True where a key counts."""
        inputs = zip(self.linears, (query, key, value), strict=False)
        q, k, v = (cut(linear(tokens), HEADS) for linear, tokens in inputs)
        logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if mask is not None:
            logits = logits.masked_fill(~mask, -math.inf)
        output: Tensor = self.linears[3]((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return output


class Fused(nn.Module):
    """One Linear for query, key and value, its rows in a layout of ``packing``."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.n_head, self.layout = HEADS, layout
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Self-attention."""
        size = WIDTH // HEADS
        shape, axes = {
            "blocks": ((3, HEADS, size), (2, 0, 3, 1, 4)),
            "grouped": ((HEADS, 3, size), (3, 0, 2, 1, 4)),
            "hdk": ((HEADS, size, 3), (4, 0, 2, 1, 3)),
            "dkh": ((size, 3, HEADS), (3, 0, 4, 1, 2)),
        }[self.layout]
        q, k, v = self.qkv(x).view(*x.shape[:2], *shape).permute(axes)
        output: Tensor = self.proj(attended(q, k, v))
        return output


class Conv1D(nn.Module):
    """A projection stored ``[in, out]``, as GPT-2 has it."""

    def __init__(self, out: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, out))
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x: Tensor) -> Tensor:
        """``x W + b``."""
        return x @ self.weight + self.bias


class Transposed(nn.Module):
    """GPT-2's names and storage; returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head = HEADS
        self.c_attn = Conv1D(3 * WIDTH, WIDTH)
        self.c_proj = Conv1D(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Self-attention, and nothing for a cache."""
        q, k, v = (cut(part, HEADS) for part in self.c_attn(x).split(WIDTH, dim=-1))
        return self.c_proj(attended(q, k, v)), None


class Memory(nn.Module):
    """Query and a fused key and value of a context, no input biases, an output in a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.to_q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.to_kv = nn.Linear(8, 2 * WIDTH, bias=False)
        self.to_out = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """Cross-attention."""
        k, v = (cut(part, HEADS) for part in self.to_kv(context).chunk(2, dim=-1))
        output: Tensor = self.to_out(attended(cut(self.to_q(x), HEADS), k, v))
        return output


class OneHead(nn.Module):
    """A single head with its own three Linears."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, 4, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, L, 4]``."""
        heads = (linear(x).unsqueeze(1) for linear in (self.query, self.key, self.value))
        return attended(*heads)


class HeadList(nn.Module):
    """A list of heads, concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([OneHead() for _ in range(HEADS)])
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Self-attention."""
        output: Tensor = self.proj(torch.cat([head(x) for head in self.heads], dim=-1))
        return output


class RawParameters(nn.Module):
    """Matrices and biases as bare parameters, applied as ``x @ W + b``; values come first."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        for role in "qkvo":
            self.register_parameter(f"W_{role}", nn.Parameter(torch.randn(WIDTH, WIDTH)))
            self.register_parameter(f"b_{role}", nn.Parameter(torch.randn(WIDTH)))

    def forward(self, values: Tensor, keys: Tensor, query: Tensor, mask: Tensor | None) -> Tensor:
        """The mask has no default."""
        del mask
        inputs = {"q": query, "k": keys, "v": values}
        q, k, v = (
            cut(tokens @ getattr(self, f"W_{role}") + getattr(self, f"b_{role}"), HEADS)
            for role, tokens in inputs.items()
        )
        output: Tensor = attended(q, k, v) @ self.W_o + self.b_o
        return output


class SequenceFirst(nn.Module):
    """Tensors ``[L, B, E]``, with nothing but the answer to say so."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Named(("q_proj", "k_proj", "v_proj", "out_proj"))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Swap, attend, swap back."""
        inputs = (tokens.transpose(0, 1) for tokens in (query, key, value))
        output: Tensor = self.inner(*inputs).transpose(0, 1)
        return output


class Around(nn.Module):
    """torch's layer inside another module."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Self-attention."""
        output: Tensor = self.attn(x, x, x, need_weights=False)[0]
        return output


class WideHeads(nn.Module):
    """Query/key size and value size of their own, and a scale that ``.double()`` does not move."""

    def __init__(self, token_size: int, qk_size: int, v_size: int, head_num: int) -> None:
        super().__init__()
        self.head_num = head_num
        self.W_q = nn.Linear(token_size, qk_size * head_num)
        self.W_k = nn.Linear(token_size, qk_size * head_num)
        self.W_v = nn.Linear(token_size, v_size * head_num)
        self.W = nn.Linear(v_size * head_num, token_size)
        self.scale = 1 / torch.tensor([qk_size]).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        """Self-attention."""
        q, k, v = (cut(linear(x), self.head_num) for linear in (self.W_q, self.W_k, self.W_v))
        weights = (q @ k.transpose(-1, -2) * self.scale).softmax(-1)
        output: Tensor = self.W((weights @ v).transpose(1, 2).flatten(2))
        return output
