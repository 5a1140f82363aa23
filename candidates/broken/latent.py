"""Mistakes of latent attention, where one key is that of all heads and holds the value."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from conformance import Semantics

from ..latent_attention import PROMISES, SCALE, LatentCore
from ._kit import core

LATENT: Final[dict[str, Any]] = {
    **PROMISES,
    "masks": ["keep"],
    "features": ["scale"],
    "semantics": Semantics(scale=SCALE),
    "geometry": {"head_size": 20, "value_head_size": 16},
}


@core("numerics.golden", **LATENT)
class LastChannelsForTheValue(LatentCore):
    """The value is the last channels of the latent, as if the turned part came first."""

    def values(self, latent: Tensor) -> Tensor:
        return latent[..., -self.value_size :].unsqueeze(1)


@core("numerics.golden", **LATENT)
class ScaleOfTheWholeKey(LatentCore):
    """The scale is that of the latent's width, and not of the heads before their absorption."""

    scale = 1.0 / math.sqrt(20.0)


@core("numerics.golden", **LATENT)
class ScaleOfTheValue(LatentCore):
    """The scale is that of the value's channels."""

    scale = 1.0 / math.sqrt(16.0)


@core("numerics.golden", **LATENT)
class TurnedPartLeftOut(LatentCore):
    """The products are those of the value's channels, without the turned part behind them."""

    def scores(self, query: Tensor, key: Tensor, scale: float | None) -> Tensor:
        size = self.value_size
        return super().scores(query[..., :size], key[..., :size], scale)


@core("numerics.golden", **LATENT)
class TurnedPartAlone(LatentCore):
    """The products are those of the turned part alone."""

    def scores(self, query: Tensor, key: Tensor, scale: float | None) -> Tensor:
        size = self.value_size
        return super().scores(query[..., size:], key[..., size:], scale)


@core("numerics.golden", **LATENT)
class TurnedPartUnscaled(LatentCore):
    """The products of the turned part join those of the value's channels behind the scale."""

    def scores(self, query: Tensor, key: Tensor, scale: float | None) -> Tensor:
        size = self.value_size
        turned = query[..., size:] @ key[..., size:].mT
        return super().scores(query[..., :size], key[..., :size], scale) + turned


@core("numerics.golden", "equivariance.heads", **LATENT)
class TurnedPartOfTheFirstHead(LatentCore):
    """Every head has the turned part of the first head's query, as they share that of the key."""

    def scores(self, query: Tensor, key: Tensor, scale: float | None) -> Tensor:
        turned = query[:, :1, :, self.value_size :].expand(-1, query.shape[1], -1, -1)
        query = torch.cat([query[..., : self.value_size], turned], dim=-1)
        return super().scores(query, key, scale)


@core("gradients.golden", **LATENT)
class GradientOfTheKeyAlone(LatentCore):
    """The latent has the gradient of the key alone."""

    def values(self, latent: Tensor) -> Tensor:
        return super().values(latent).detach()


@core("gradients.golden", **LATENT)
class GradientOfTheValueAlone(LatentCore):
    """The latent has the gradient of the value alone."""

    def keys(self, latent: Tensor) -> Tensor:
        return super().keys(latent).detach()


@core("gradients.golden", **LATENT)
class TurnedPartWithoutGradient(LatentCore):
    """The turned part of the latent has no gradient."""

    def keys(self, latent: Tensor) -> Tensor:
        size = self.value_size
        return super().keys(torch.cat([latent[..., :size], latent[..., size:].detach()], dim=-1))


@core("numerics.golden", **LATENT)
class LatentOfTheFirstItem(LatentCore):
    """The latent without heads is taken for one without items: all read the first."""

    def keys(self, latent: Tensor) -> Tensor:
        return super().keys(latent)[:1]

    def values(self, latent: Tensor) -> Tensor:
        return super().values(latent)[:1]


@core("numerics.golden", **LATENT)
class ValueOfTheTileBefore(LatentCore):
    """Keys and values share a buffer: the values of the last tile are those of the one before."""

    def values(self, latent: Tensor) -> Tensor:
        tile, length = 4, latent.shape[1]
        rows = torch.arange(length)
        last = rows >= (length - 1) // tile * tile
        return super().values(latent[:, torch.where(last & (rows >= tile), rows - tile, rows)])


@core("mask.causal-alignment", **LATENT)
class NewTokensFromTheFirst(LatentCore):
    """Several new queries are causal from the first key on, as if nothing were cached."""

    def seen(self, query: Tensor, key: Tensor, *, causal: bool) -> Tensor:
        table = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
        return table.tril() if causal else table


@core("lse.golden", **{**LATENT, "features": ["scale", "lse"]})
class LogSumExpOfTheValuesChannels(LatentCore):
    """Log-sum-exps are those of the value's channels, while the answer is right."""

    def __call__(self, query: Tensor, latent: Tensor, **options: Any) -> Any:
        made = super().__call__(query, latent, **options)
        if not options.get("return_lse"):
            return made
        query = torch.nn.functional.pad(
            query[..., : self.value_size], (0, query.shape[-1] - self.value_size)
        )
        return made[0], super().__call__(query, latent, **options)[1]
