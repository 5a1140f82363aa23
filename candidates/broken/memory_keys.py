"""Mistakes with a key and a value that all items share, and with their gradients."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ..memory_keys import MemoryCore
from ._kit import core

PROMISES: Final[dict[str, Any]] = {
    "masks": ["keep", "bias"],
    "causal": "bottom-right",
    "empty_rows": "any",
    "dtypes": ["float32"],
    "features": ["scale", "gqa", "softcap", "gradients", "bias_kv"],
}
MEMORY, GRADIENT = "learned.memory", "gradients.learned"


@core(MEMORY, **PROMISES)
class MemoryKeyForgotten(MemoryCore):
    """The memory is taken and not attended."""

    def attend(self, call: Call) -> Answer:
        return EagerCore.attend(self, call)


@core(MEMORY, **PROMISES)
class MemoryHiddenByMasks(MemoryCore):
    """Masks are padded with False: where there is one the memory is hidden."""

    def column(self, table: Tensor, call: Call, *, entry: float) -> Tensor:
        return super().column(table, call, entry=entry if table.is_floating_point() else False)


@core(MEMORY, **PROMISES)
class MemoryWithoutValue(MemoryCore):
    """The memory takes its share of the weights, and its value is zeros, as a null key's."""

    def beside(self, heads: Tensor, memory: Tensor) -> Tensor:
        own = memory is self.memory[1]
        return super().beside(heads, torch.zeros_like(memory) if own else memory)


@core(MEMORY, **PROMISES)
class MemoryOfTheFirstHead(MemoryCore):
    """Every key/value head has the memory of the first."""

    def beside(self, heads: Tensor, memory: Tensor) -> Tensor:
        return super().beside(heads, memory[:1].expand_as(memory))


@core(MEMORY, **PROMISES)
class MemoryInFrontOfTheMask(MemoryCore):
    """The memory stands before the keys, and masks have its column behind them."""

    def beside(self, heads: Tensor, memory: Tensor) -> Tensor:
        token = memory[None, :, None].expand(heads.shape[0], -1, 1, -1)
        return torch.cat([token, heads], dim=2)


@core("mask.causal-alignment", MEMORY, **PROMISES)
class MemoryCountedByCausality(MemoryCore):
    """The causal diagonal ends at the memory, as if it were the last key: one key more is seen."""

    def ahead(self, call: Call) -> Tensor:
        return super().ahead(call) - 1


@core(MEMORY, **PROMISES)
class MemoryUnscaled(MemoryCore):
    """The product with the memory is not scaled."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        scores = super().scores(call, key)
        scale = self.scale(call) or 1.0
        return torch.cat([scores[..., :-1], scores[..., -1:] / scale], dim=-1)


@core(GRADIENT, "gradients.golden", **PROMISES)
class MemoryDetached(MemoryCore):
    """No gradient reaches the memory."""

    def beside(self, heads: Tensor, memory: Tensor) -> Tensor:
        return super().beside(heads, memory.detach())


@core(GRADIENT, "gradients.golden", **PROMISES)
class MemoryGradientOfTheFirstItem(MemoryCore):
    """The gradient of the memory is that of the first item, not the sum over all items."""

    def beside(self, heads: Tensor, memory: Tensor) -> Tensor:
        first = super().beside(heads[:1], memory)
        return torch.cat([first, super().beside(heads[1:], memory.detach())])
