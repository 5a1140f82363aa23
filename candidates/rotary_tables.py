"""Attention that is turned by the tables of its caller: cosines and sines, or complex numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

import conformance
from conformance import Semantics

HALVES = Semantics(rotary="halves")
NEIGHBOURS = Semantics(rotary="interleaved")
PROMISES: dict[str, Any] = {
    "masks": ["keep", "bias"],
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "features": ["scale", "gqa", "kv_cache"],
}


class TurnedCore:
    """Attention whose steps around the tables can be replaced, halves of channels together."""

    def turn(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Heads times the cosine, and their halves exchanged times the sine."""
        one, two = heads.chunk(2, dim=-1)
        return heads * cos + torch.cat((-two, one), dim=-1) * sin

    def queries(self, query: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        """The turned queries."""
        return self.turn(query, *tables)

    def keys(self, key: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        """The turned keys of the call."""
        return self.turn(key, *tables)

    def values(self, value: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        """The values, which are not turned."""
        del tables
        return value

    def tables(self, given: tuple[Tensor, ...], past: int) -> tuple[Tensor, ...]:
        """The tables of the call's tokens, which come behind so many cached ones."""
        del past
        return given

    def cached(self, key: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        """The keys of a cache, which are turned already."""
        del tables
        return key

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        cos: Tensor | None = None,
        sin: Tensor | None = None,
        freqs_cis: Tensor | None = None,
        keep: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        past_key: Tensor | None = None,
        past_value: Tensor | None = None,
    ) -> Tensor:
        """Turn query and key, put them behind the cache, and attend."""
        if key.shape[2] != value.shape[2] or key.shape[3] != query.shape[3]:
            msg = f"the shapes {query.shape}, {key.shape}, {value.shape} do not fit"
            raise ValueError(msg)
        given = tuple(table for table in (cos, sin, freqs_cis) if table is not None)
        given = self.tables(given, 0 if past_key is None else past_key.shape[2])
        query, key, value = (
            self.queries(query, given),
            self.keys(key, given),
            self.values(value, given),
        )
        if past_key is not None and past_value is not None:
            key = torch.cat([self.cached(past_key, given), key], dim=2)
            value = torch.cat([past_value, value], dim=2)
        rows, columns = query.shape[2], key.shape[2]
        group = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
        seen = torch.ones(rows, columns, dtype=torch.bool)
        seen = seen.tril(columns - rows) if causal else seen
        logits = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if bias is not None:
            logits, seen = logits + bias, seen & ~torch.isneginf(bias)
        seen = seen if keep is None else seen & keep
        logits = logits.masked_fill(~seen, -math.inf)
        return logits.softmax(dim=-1).masked_fill(~seen, 0.0) @ value


class NeighboursTurned(TurnedCore):
    """Neighbours among the channels turn together, by tables of one entry for each of them."""

    def turn(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Heads times the cosine, and their neighbours exchanged times the sine."""
        other = torch.stack((-heads[..., 1::2], heads[..., ::2]), dim=-1).flatten(-2)
        return heads * cos + other * sin


class ByComplexNumbers(TurnedCore):
    """Neighbours are complex numbers, multiplied by those of the table."""

    def turn(self, heads: Tensor, freqs_cis: Tensor) -> Tensor:  # type: ignore[override]  # one table
        """Pairs of channels times the table, in float32 at least."""
        wide = heads.to(torch.promote_types(heads.dtype, torch.float32))
        numbers = torch.view_as_complex(wide.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(numbers * freqs_cis).flatten(-2).to(heads.dtype)


class HalfAsWide(TurnedCore):
    """Tables have one entry for both channels of a pair, and an axis of items."""

    def turn(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The first half and the second, each from both."""
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        one, two = heads.chunk(2, dim=-1)
        return torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1)


class FirstHalfTurned(TurnedCore):
    """The first channels turn, as many as the table has."""

    def turn(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The turned channels in front of the others."""
        wide = cos.shape[-1]
        return torch.cat((super().turn(heads[..., :wide], cos, sin), heads[..., wide:]), dim=-1)


tables_by_halves = conformance.core(
    name="tables_by_halves", semantics=HALVES, rotary_tables="cos-sin", **PROMISES
)(TurnedCore())
tables_by_neighbours = conformance.core(
    name="tables_by_neighbours",
    semantics=NEIGHBOURS,
    rotary_tables="cos-sin",
    rotary_table_shape="B1LR",
    **PROMISES,
)(NeighboursTurned())
complex_tables = conformance.core(
    name="complex_tables", semantics=NEIGHBOURS, rotary_tables="complex", **PROMISES
)(ByComplexNumbers())
half_tables = conformance.core(
    name="half_tables",
    semantics=HALVES,
    rotary_tables="cos-sin",
    rotary_table_shape="BLR/2",
    **PROMISES,
)(HalfAsWide())
tables_of_a_part = conformance.core(
    name="tables_of_a_part",
    semantics=Semantics(rotary="halves", rotary_fraction=0.5),
    rotary_tables="cos-sin",
    rotary_table_shape="11LR",
    **PROMISES,
)(FirstHalfTurned())


class TurnedLayer(nn.Module):
    """A layer in the style of transformers' Llama: ``position_embeddings`` is a pair of tables."""

    def __init__(self, geometry: Any, weights: Any) -> None:
        super().__init__()
        self.geometry, self.weights = geometry, weights
        self.core = TurnedCore()

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Project, turn, attend and project back."""
        sizes, own = self.geometry, self.weights

        def heads(role: str, count: int) -> Tensor:
            matrix, bias = getattr(own, role), getattr(own, f"{role}_bias")
            made: Tensor = nn.functional.linear(hidden_states, matrix, bias)
            cut: Tensor = made.unflatten(-1, (count, -1))
            return cut.transpose(1, 2)

        query, key, value = (
            heads(role, count)
            for role, count in zip(
                "qkv", (sizes.num_heads, sizes.num_kv_heads, sizes.num_kv_heads), strict=True
            )
        )
        cos, sin = (table.unsqueeze(1) for table in position_embeddings)
        mixed = self.core(query, key, value, cos=cos, sin=sin, bias=attention_mask)
        return nn.functional.linear(mixed.transpose(1, 2).flatten(2), own.o, own.o_bias)


position_embeddings_layer = conformance.layer(
    name="position_embeddings_layer",
    masks=["bias"],
    empty_rows="zeros",
    inputs="self",
    features=["gqa"],
    semantics=HALVES,
    rotary_tables="cos-sin",
    rotary_table_shape="BLR",
    keywords={
        "cos": "position_embeddings",
        "sin": "position_embeddings",
        "bias": "attention_mask",
    },
    expected_failures=[],
)(TurnedLayer)
