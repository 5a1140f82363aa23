"""Mistakes that make the place of a token matter, and tiles that are handled wrongly."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..eager import Call, EagerCore, EagerLayer
from ._kit import Sinusoids, core, layer


@core("equivariance.keys", "numerics.golden")
class NearKeysFavoured(EagerCore):
    """Keys are penalised by their distance from the query though no position was asked for."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        return super().scores(call, key) - 0.1 * self.ahead(call).abs()


@core("equivariance.keys", "numerics.golden", "equivariance.tokens")
class LastTileOfKeysLost(EagerCore):
    """Keys behind the last full tile of four are never read."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        whole = logits.shape[-1] // 4 * 4 or logits.shape[-1]
        read = torch.arange(logits.shape[-1]) < whole
        return super().weights(logits, read if allowed is None else allowed & read)


@core("equivariance.keys", "numerics.golden", "numerics.large-logits", "mask.golden")
class AccumulatorNotRescaled(EagerCore):
    """A running maximum grows from tile to tile, and what was summed before is not rescaled."""

    def softmax(self, logits: Tensor) -> Tensor:
        running = logits.cummax(dim=-1).values
        running = running.masked_fill(running.isneginf(), 0.0)
        weights = torch.exp(logits - running)
        return weights / weights.sum(dim=-1, keepdim=True)


@core("equivariance.queries", "numerics.golden", "equivariance.tokens")
class LastTileOfQueriesLost(EagerCore):
    """Queries behind the last full tile of four get zeros."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().mix(weights, value)
        whole = output.shape[2] // 4 * 4 or output.shape[2]
        return output.masked_fill(torch.arange(output.shape[2])[:, None] >= whole, 0.0)


@core("equivariance.queries", "numerics.golden")
class QueriesWarmUp(EagerCore):
    """The scale grows with the number of the query, as a temperature for long texts does."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        number = torch.arange(1, call.query_length + 1, dtype=call.query.dtype)
        return super().scores(call, key) * (1 + number.log())[:, None]


@core("equivariance.queries", "numerics.golden")
class PositionsInQueries(EagerCore):
    """A position encoding is added to the queries though none was declared."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        width = call.query.shape[-1]
        table = Sinusoids().table(call.query_length, width + width % 2)[:, :width]
        return super().scores(call.replace(query=call.query + table.to(call.query)), key)


@layer("equivariance.tokens", "numerics.golden", inputs="self")
class PositionsUndeclared(EagerLayer):
    """A layer that is declared to know no positions adds them to its input."""

    def __call__(self, x: Tensor, **options: object) -> object:  # type: ignore[override]  # one input
        width = x.shape[-1]
        table = Sinusoids().table(x.shape[1], width + width % 2)[:, :width]
        x = x + table.to(x)
        return super().__call__(x, x, x, **options)


@layer(
    "position.breaks-equivariance",
    inputs="self",
    position="sinusoidal",
    causal=None,
    geometry={name: [2, 4, 6, 8, 16] for name in ("query_size", "key_size", "value_size")},
)
class PositionsForgotten(EagerLayer):
    """A layer that is declared to add positions to its input does not add them."""

    def __call__(self, x: Tensor, **options: object) -> object:  # type: ignore[override]  # one input
        return super().__call__(x, x, x, **options)


@core("numerics.golden")
class KeysBehindTileOf64Lost(EagerCore):
    """The key behind the last full tile of 64 is never read."""

    tile = 64

    def logits(self, call: Call, key: Tensor) -> Tensor:
        logits = super().logits(call, key)
        if call.key_length > self.tile and call.key_length % self.tile:
            logits = logits.index_fill(-1, torch.tensor([call.key_length - 1]), -math.inf)
        return logits
