"""Attention of tokens whose positions the caller gives: rotary, linear biases, causality."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor, nn

import conformance
from conformance import Semantics

HALVES: Final = Semantics(rotary="halves")
NEIGHBOURS: Final = Semantics(rotary="interleaved")
LINEAR: Final = Semantics(alibi=True)
PROMISES: Final[dict[str, Any]] = {
    "masks": ["keep", "bias"],
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "features": ["positions", "scale", "gqa", "window", "softcap", "sinks", "kv_cache"],
}
BASE: Final = 10000.0


class PlacedCore:
    """Attention whose steps around the positions can be replaced, halves of channels together."""

    def __init__(
        self, *, rotary: bool = True, alibi: bool = False, by_positions: bool = False
    ) -> None:
        self.rotary, self.alibi, self.by_positions = rotary, alibi, by_positions

    def of_queries(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The positions of the queries, ``[B, Lq]``."""
        del keys
        return queries

    def of_keys(self, keys: Tensor, queries: Tensor, past: int) -> Tensor:
        """The positions of the keys, ``[B, Lk]``, of which so many are cached."""
        del queries, past
        return keys

    def turn(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Halves of the channels, turned by the positions; angles in float32 at least."""
        half = heads.shape[-1] // 2
        wide = torch.promote_types(heads.dtype, torch.float32)
        frequencies = BASE ** -(torch.arange(half).to(wide) / max(half, 1))
        angles = positions[:, None, :, None].to(wide) * frequencies
        one, two = heads[..., :half].to(wide), heads[..., half : 2 * half].to(wide)
        cos, sin = angles.cos(), angles.sin()
        turned = torch.cat([one * cos - two * sin, one * sin + two * cos], dim=-1)
        return torch.cat([turned.to(heads.dtype), heads[..., 2 * half :]], dim=-1)

    def distances(self, queries: Tensor, keys: Tensor) -> Tensor:
        """By how much each key comes after each query, ``[B, 1, Lq, Lk]``."""
        return keys[:, None, None, :] - queries[:, None, :, None]

    def slopes(self, heads: int) -> Tensor:
        """What each position of distance costs, by head."""
        power = 2 ** int(math.log2(heads))
        first = [2.0 ** (-8.0 * (n + 1) / power) for n in range(power)]
        finer = [2.0 ** (-4.0 * (n + 1) / power) for n in range(2 * power)][::2]
        return torch.tensor((first + finer)[:heads])

    def ahead(self, distances: Tensor) -> Tensor:
        """What causality and window compare: distances, or those of places in memory."""
        if self.by_positions:
            return distances
        rows, columns = distances.shape[-2:]
        return torch.arange(columns) - torch.arange(columns - rows, columns)[:, None]

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_positions: Tensor,
        key_positions: Tensor,
        keep: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        window: tuple[int, int] | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        past_key: Tensor | None = None,
        past_value: Tensor | None = None,
    ) -> Tensor:
        """Put query and key in their places, and attend."""
        if key.shape[2] != value.shape[2] or key.shape[3] != query.shape[3]:
            msg = f"the shapes {query.shape}, {key.shape}, {value.shape} do not fit"
            raise ValueError(msg)
        past = 0
        if past_key is not None and past_value is not None:
            past = past_key.shape[2]
            key, value = torch.cat([past_key, key], dim=2), torch.cat([past_value, value], dim=2)
        at = self.of_queries(query_positions, key_positions)
        keys_at = self.of_keys(key_positions, query_positions, past)
        if self.rotary:
            query, key = self.turn(query, at), self.turn(key, keys_at)
        group = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
        logits = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        apart = self.distances(at, keys_at)
        if self.alibi:
            slopes = self.slopes(query.shape[1])[:, None, None]
            logits = logits - (slopes * apart.abs()).to(logits.dtype)
        ahead = self.ahead(apart)
        seen = torch.ones(logits.shape, dtype=torch.bool)
        if causal:
            seen = seen & (ahead <= 0)
        if window is not None:
            before, behind = (side if side >= 0 else math.inf for side in window)
            seen = seen & (-ahead <= before) & (ahead <= behind)
        if bias is not None:
            logits, seen = logits + bias, seen & ~torch.isneginf(bias)
        seen = seen if keep is None else seen & keep
        logits = logits.masked_fill(~seen, -math.inf)
        if sinks is not None:
            more = sinks[None, :, None, None].expand(*logits.shape[:-1], 1)
            logits = torch.cat([logits, more.to(logits.dtype)], dim=-1)
        weights = logits.softmax(dim=-1)[..., : key.shape[2]]
        return weights.masked_fill(~seen, 0.0) @ value


class NeighboursPlaced(PlacedCore):
    """Neighbours among the channels turn together."""

    def turn(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Even channels in front of odd ones, turned and put back."""
        even = heads.shape[-1] // 2 * 2
        apart = torch.cat([heads[..., :even:2], heads[..., 1:even:2], heads[..., even:]], dim=-1)
        turned = super().turn(apart, positions)
        pairs = torch.stack(turned[..., :even].chunk(2, dim=-1), dim=-1).flatten(-2)
        return torch.cat([pairs, turned[..., even:]], dim=-1)


placed_halves = conformance.core(name="placed_halves", semantics=HALVES, **PROMISES)(PlacedCore())
placed_neighbours = conformance.core(
    name="placed_neighbours", semantics=NEIGHBOURS, causal_by="positions", **PROMISES
)(NeighboursPlaced(by_positions=True))
placed_distances = conformance.core(name="placed_distances", semantics=LINEAR, **PROMISES)(
    PlacedCore(rotary=False, alibi=True)
)
causal_by_positions = conformance.core(
    name="causal_by_positions", causal_by="positions", **PROMISES
)(PlacedCore(rotary=False, by_positions=True))


class PlacedLayer(nn.Module):
    """A layer in the style of transformers: ``position_ids`` are those of the new tokens alone.

    Cached keys come turned.
    """

    def __init__(self, geometry: Any, weights: Any) -> None:
        super().__init__()
        self.geometry, self.weights = geometry, weights
        self.core = PlacedCore(rotary=False)

    def cached(self, key: Tensor) -> Tensor:
        """The keys of a cache, which are turned already."""
        return key

    def forward(
        self,
        hidden_states: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key: Tensor | None = None,
        past_value: Tensor | None = None,
        *,
        causal: bool = False,
    ) -> Tensor:
        """Project, turn, put behind the cache, attend and project back."""
        sizes, own = self.geometry, self.weights

        def heads(role: str, count: int) -> Tensor:
            matrix, bias = getattr(own, role), getattr(own, f"{role}_bias")
            made: Tensor = nn.functional.linear(hidden_states, matrix, bias)
            cut: Tensor = made.unflatten(-1, (count, -1))
            return cut.transpose(1, 2)

        query = self.core.turn(heads("q", sizes.num_heads), position_ids)
        key = self.core.turn(heads("k", sizes.num_kv_heads), position_ids)
        value = heads("v", sizes.num_kv_heads)
        if past_key is not None and past_value is not None:
            key = torch.cat([self.cached(past_key), key], dim=2)
            value = torch.cat([past_value, value], dim=2)
        mixed = self.core(
            query,
            key,
            value,
            query_positions=position_ids,
            key_positions=position_ids.new_zeros(key.shape[0], key.shape[2]),
            bias=attention_mask,
            causal=causal,
        )
        return nn.functional.linear(mixed.transpose(1, 2).flatten(2), own.o, own.o_bias)


IN_TRANSFORMERS: Final[dict[str, Any]] = {
    "masks": ["bias"],
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "inputs": "self",
    "features": ["positions", "gqa", "kv_cache"],
    "semantics": HALVES,
    "keywords": {"positions": "position_ids", "bias": "attention_mask"},
}
placed_layer = conformance.layer(name="placed_layer", **IN_TRANSFORMERS)(PlacedLayer)
