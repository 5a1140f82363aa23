"""Mistakes in what the dot products are multiplied by."""

from __future__ import annotations

import math

from torch import Tensor

from ..eager import Call, EagerCore
from ._kit import core


@core("numerics.scale", "numerics.golden", "mask.golden")
class Unscaled(EagerCore):
    """The dot products are not divided by the square root of the head size."""

    def scale(self, call: Call) -> float:
        return 1.0 if call.scale is None else call.scale


@core("numerics.scale", "numerics.golden", "mask.golden")
class DividedByHeadSize(EagerCore):
    """The dot products are divided by the head size instead of its square root."""

    def scale(self, call: Call) -> float:
        return 1 / call.query.shape[-1] if call.scale is None else call.scale


@core("numerics.scale", "numerics.golden", "mask.golden")
class MultipliedBySqrtHeadSize(EagerCore):
    """The dot products are divided by D to the power -1/2, that is multiplied by its root."""

    def scale(self, call: Call) -> float:
        return math.sqrt(call.query.shape[-1]) if call.scale is None else call.scale


@core("numerics.scale", "numerics.golden", "mask.golden")
class ScaledByModelWidth(EagerCore):
    """The scale uses the width of all heads together instead of the size of one head."""

    def scale(self, call: Call) -> float:
        _, num_heads, _, head_size = call.query.shape
        return 1 / math.sqrt(num_heads * head_size) if call.scale is None else call.scale


@core("numerics.scale", "numerics.golden", "mask.golden")
class ScaledByNumHeads(EagerCore):
    """The scale uses the number of heads instead of the size of one head."""

    def scale(self, call: Call) -> float:
        return 1 / math.sqrt(call.query.shape[1]) if call.scale is None else call.scale


@core("numerics.scale", "numerics.golden", "mask.golden")
class ScaledByValueHeadSize(EagerCore):
    """The scale uses the head size of the values instead of that of queries and keys."""

    def scale(self, call: Call) -> float:
        return 1 / math.sqrt(call.value.shape[-1]) if call.scale is None else call.scale


@core("numerics.scale", "numerics.golden", "mask.golden")
class ScaledByKeyLength(EagerCore):
    """The scale uses the number of keys instead of the head size."""

    def scale(self, call: Call) -> float:
        return 1 / math.sqrt(call.key_length) if call.scale is None else call.scale


@core("numerics.scale", "numerics.golden", "mask.golden")
class ScaledTwice(EagerCore):
    """Both the queries and the dot products are scaled."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        return super().scores(call, key) * self.scale(call)


@core("numerics.scale")
class ScaleArgumentIgnored(EagerCore):
    """The scale that the caller asks for is ignored, the default is used."""

    def scale(self, call: Call) -> float:
        return super().scale(call.replace(scale=None))


@core("numerics.scale")
class ScaleArgumentOnTop(EagerCore):
    """The scale that the caller asks for is applied on top of the default, not instead of it."""

    def scale(self, call: Call) -> float:
        default = super().scale(call.replace(scale=None))
        return default if call.scale is None else default * call.scale


@core("mask.all-keep", "mask.golden")
class UnscaledUnderMask(EagerCore):
    """The path that is taken when there is a mask forgets the scale."""

    def scale(self, call: Call) -> float:
        given = (call.keep, call.drop, call.keep_int, call.bias, call.lengths)
        return super().scale(call) if all(mask is None for mask in given) else 1.0


@core("numerics.odd-scale")
class ScaleZeroTakenForUnset(EagerCore):
    """A scale of zero is taken for a scale that was not given."""

    def scale(self, call: Call) -> float:
        return call.scale or 1 / math.sqrt(call.query.shape[-1])


@core("numerics.scale", "numerics.golden")
class ScaledByPaddedHeadSize(EagerCore):
    """The scale uses the head size after padding it to a multiple of eight, as a wide head is."""

    wide = 16

    def scale(self, call: Call) -> float:
        size = call.query.shape[-1]
        if size < self.wide or call.scale is not None:
            return super().scale(call)
        return 1 / math.sqrt(size + -size % 8)


@core("numerics.scale", "numerics.golden", "numerics.scale-error")
class ScaleTenThousandthOff(EagerCore):
    """The scale is off by one in ten thousand: the constant was typed in with four digits."""

    def scale(self, call: Call) -> float:
        return super().scale(call) * 1.0001


@core("numerics.scale", "numerics.golden", "numerics.scale-error", dtypes=["float64"])
class ScaleTrillionthOff(EagerCore):
    """The scale of float64 is off by 1e-12: a constant that was typed in with twelve digits."""

    def scale(self, call: Call) -> float:
        return super().scale(call) * (1 + 1e-12)


@core("numerics.scale-error")
class ScaleOfTwentyBits(EagerCore):
    """The scale has twenty good bits, as one step of Newton's iteration leaves them."""

    def scale(self, call: Call) -> float:
        return super().scale(call) * (1 + 2.0**-20)


@core("numerics.odd-scale", masks=["keep"])
class MaskedBeforeScaled(EagerCore):
    """Minus infinity is filled in before the scale, and times zero that is NaN."""

    def logits(self, call: Call, key: Tensor) -> Tensor:
        allowed, scale = self.allowed(call), self.scale(call)
        products = call.query @ key.transpose(-1, -2)
        if allowed is None or scale > 0.0:
            return products * scale
        return products.masked_fill(~allowed, -math.inf) * scale

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None or bool((logits[~allowed.expand(logits.shape)]).isfinite().all()):
            return super().weights(logits, allowed)
        return self.softmax(logits)
