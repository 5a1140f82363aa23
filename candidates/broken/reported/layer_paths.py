"""Reported mistakes of layers that have several ways through their code."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ...eager import Answer, Call, EagerCore, EagerLayer
from .._kit import layer

ALONE: Final[dict[str, Any]] = {"causal": None, "features": [], "inputs": "self"}


@layer("mask.golden", "mask.padding-is-absence", masks=["keep"], causal=None, features=["gqa"])
class MaskLostWhereItemsGoOneByOne(EagerLayer):
    """Items of a batch are attended one by one to save memory, and the mask is not handed on."""

    link = "https://github.com/kohya-ss/musubi-tuner/pull/413"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        if query.shape[0] > 1:
            options.pop("keep", None)
        return super().__call__(query, key, value, **options)


@layer("mask.bias", "numerics.options", masks=["bias"], **ALONE)
class FloatMaskTakenForBooleanInFastPath(EagerLayer):
    """Without gradients a fast path hides whatever an additive mask is not zero for."""

    link = "https://github.com/pytorch/pytorch/issues/107084"

    def __call__(self, x: Tensor, **options: Any) -> Answer:  # type: ignore[override]  # one input
        if options.get("bias") is not None and not torch.is_grad_enabled():
            options["drop"] = options.pop("bias") != 0
        return super().__call__(x, x, x, **options)


@layer("shape.output", "mask.golden", masks=["drop"], mask_shapes=["B11K"], **ALONE)
class OddHeadsRefusePadding(EagerLayer):
    """The fast path, taken without gradients, raises for an odd number of heads and padding."""

    link = "https://github.com/pytorch/pytorch/issues/97128"

    def __call__(self, x: Tensor, **options: Any) -> Answer:  # type: ignore[override]  # one input
        if options.get("drop") is not None and self.num_heads % 2 and not torch.is_grad_enabled():
            msg = "the masked softmax of nested tensors needs an even number of heads"
            raise RuntimeError(msg)
        return super().__call__(x, x, x, **options)


class SameDtypes(EagerCore):
    """A core that refuses an additive mask in another dtype."""

    def attend(self, call: Call) -> Answer:
        """Refuse, or attend."""
        if call.bias is not None and call.bias.dtype != call.query.dtype:
            msg = "the additive mask must have the dtype of the query"
            raise RuntimeError(msg)
        return super().attend(call)


@layer("mixed.autocast", masks=["bias"], causal=None, features=["autocast"])
class FloatMaskRefusedUnderAutocast(EagerLayer):
    """Under autocast the projected heads are in half precision, and a float32 mask is refused."""

    link = "https://github.com/pytorch/pytorch/issues/99012"
    core = SameDtypes()
