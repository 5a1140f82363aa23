"""Attention that is no plain softmax of scaled products, as people write it: to be identified."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

Core = Callable[[Tensor, Tensor, Tensor], Tensor]


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    """Scaled products."""
    return q @ k.mT / math.sqrt(q.shape[-1])


def apart(q: Tensor, k: Tensor) -> Tensor:
    """How far keys lie ahead of queries, both counted from the first one: ``[Lq, Lk]``."""
    return torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]


def turned(x: Tensor, base: float, first: int = 0) -> Tensor:
    """Rotary positions from ``first`` on, in pairs of channels 2i and 2i + 1."""
    size = x.shape[-1] // 2 * 2
    at = torch.arange(first, first + x.shape[-2], dtype=torch.float64)[:, None]
    angles = at * base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :size:2], x[..., 1:size:2]
    pairs = torch.stack((a * cosine - b * sine, b * cosine + a * sine), dim=-1).flatten(-2)
    return torch.cat((pairs, x[..., size:]), dim=-1)


def rotary(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Rotary positions of base 500,000, the last query at the last key."""
    q = turned(q, 5e5, k.shape[-2] - q.shape[-2])
    return scores_of(q, turned(k, 5e5)).softmax(-1) @ v


def cosine_similarity(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Ten times the cosine of query and key."""
    return (10.0 * normalize(q, dim=-1) @ normalize(k, dim=-1).mT).softmax(-1) @ v


def layer_normalised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries and keys of mean 0 and variance 1, with torch's epsilon."""
    q, k = (torch.layer_norm(x, x.shape[-1:]) for x in (q, k))
    return scores_of(q, k).softmax(-1) @ v


def finely_normalised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same with an epsilon that ordinary tokens hide in single precision."""
    q, k = (torch.layer_norm(x, x.shape[-1:], eps=1e-12) for x in (q, k))
    return scores_of(q, k).softmax(-1) @ v


def unscaled_cap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A cap of 3 on products without a scale, always causal."""
    logits = 3.0 * torch.tanh(q @ k.mT / 3.0)
    return logits.masked_fill(apart(q, k) > 0, -math.inf).softmax(-1) @ v


def high_cap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A cap of 50 on products with a scale of their own, as in Gemma 2: small logits hide it."""
    return (50.0 * torch.tanh(q @ k.mT / 16.0 / 50.0)).softmax(-1) @ v


def local(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Only keys at most ten from a query's own index."""
    return scores_of(q, k).masked_fill(apart(q, k).abs() > 10, -math.inf).softmax(-1) @ v


def sliding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last two keys up to each query, whose places end at the last key."""
    ahead = apart(q, k) - (k.shape[-2] - q.shape[-2])
    hidden = (ahead > 0) | (ahead < -1)
    return scores_of(q, k).masked_fill(hidden, -math.inf).softmax(-1) @ v


def leaning(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A quarter less for each key of distance."""
    return (scores_of(q, k) - 0.25 * apart(q, k).abs()).softmax(-1) @ v


def odd_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The square root of three quarters of the usual scale."""
    return (math.sqrt(0.75) * scores_of(q, k)).softmax(-1) @ v


def alike(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A gain of queries that is still zero: all keys weigh the same."""
    return scores_of(q * q.new_zeros(q.shape[-1]), k).softmax(-1) @ v


def rounded_root(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The scale is right where the head size is a square."""
    return (query @ key.mT / int(query.shape[-1] ** 0.5)).softmax(-1) @ value


def with_one_more(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The sum of the exponentials has one more term: 1."""
    powers = scores_of(q, k).exp()
    return powers / (1.0 + powers.sum(-1, keepdim=True)) @ v


def top_three(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Only the three largest logits of each query count."""
    logits = scores_of(q, k)
    least = logits.topk(min(3, k.shape[-2]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < least, -math.inf).softmax(-1) @ v


def noisy(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Adds random numbers."""
    return scores_of(q, k).softmax(-1) @ v + 0.01 * torch.randn(v.shape[-1])


class OfCore(nn.Module):
    """Projections around a core."""

    def __init__(self, core: Core, width: int = 12, num_heads: int = 3) -> None:
        super().__init__()
        self.core, self.num_heads = core, num_heads
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, L, E]`` to the same shape."""
        q, k, v = (
            linear(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        output: Tensor = self.out_proj(self.core(q, k, v).transpose(1, 2).flatten(2))
        return output


class Normed(OfCore):
    """A norm of the tokens before the projections, as in pre-norm blocks."""

    def __init__(self, core: Core, width: int = 12) -> None:
        super().__init__(core, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, L, E]`` to the same shape."""
        return super().forward(self.norm(x))


def of_heads(*numbers: float) -> Tensor:
    """A number for each head ``[H, 1, 1]``."""
    return torch.tensor(numbers)[:, None, None]


def sinks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One more key for each head, of logits 0.5, -1 and 2, without a value."""
    logits = scores_of(q, k)
    more = of_heads(0.5, -1.0, 2.0).expand(*logits.shape[:3], 1)
    return torch.cat((logits, more), dim=-1).softmax(-1)[..., :-1] @ v


def temperatures(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Cosines times a number of each head."""
    cosines = normalize(q, dim=-1) @ normalize(k, dim=-1).mT
    return (of_heads(2.0, 4.0, 7.0) * cosines).softmax(-1) @ v


def leaning_by_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A slope by distance for each head, half that of the one before it."""
    slopes = of_heads(*(0.5**head for head in range(1, q.shape[-3] + 1)))
    return (scores_of(q, k) - slopes * apart(q, k).abs()).softmax(-1) @ v


def table_of_distances(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A bias that a table holds for each distance."""
    table = torch.sin(torch.arange(3.0 * 41)).reshape(3, 41)
    return (scores_of(q, k) + table[:, apart(q, k).clamp(-20, 20) + 20]).softmax(-1) @ v


def of_nine_places(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A bias that a table holds for each pair of places in a window of nine."""
    table = torch.sin(torch.arange(3.0 * 81).square()).reshape(3, 9, 9)
    return (scores_of(q, k) + table).softmax(-1) @ v


layer_sliding = OfCore(sliding)
layer_leaning = OfCore(leaning_by_head)
layer_sinks = OfCore(sinks)
layer_of_normalised = OfCore(layer_normalised)
layer_temperatures = OfCore(temperatures)
layer_table = OfCore(table_of_distances)
layer_window = OfCore(of_nine_places)
layer_normed = Normed(odd_scale)
layer_alike = OfCore(alike)


def the_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Nothing of keys and values."""
    del k, v
    return q
