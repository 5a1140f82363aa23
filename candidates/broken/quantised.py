"""Mistakes with quantised keys and values."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..quantised_attention import PROMISES, QuantisedCore
from ._kit import core

LOWEST: Final = -128
BY_TENSOR: Final[dict[str, Any]] = {
    **PROMISES,
    "masks": ["keep"],
    "kv_format": "float8_e4m3fn",
}
BY_HEAD: Final[dict[str, Any]] = {**BY_TENSOR, "kv_scales": "head"}
BY_TOKEN: Final[dict[str, Any]] = {**BY_TENSOR, "kv_scales": "token"}
INT8: Final[dict[str, Any]] = {**BY_HEAD, "kv_format": "int8"}
E5M2: Final[dict[str, Any]] = {**BY_TENSOR, "kv_format": "float8_e5m2"}


@core("quantised.golden", **BY_TENSOR)
class KeyScaleForBoth(QuantisedCore):
    """Values are multiplied by the scale of keys."""

    def scale_of(self, name: str, scales: dict[str, Tensor]) -> Tensor:
        del name
        return scales["key"]


@core("quantised.golden", **BY_HEAD)
class ScalesExchanged(QuantisedCore):
    """Keys are multiplied by the scale of values, and values by that of keys."""

    def scale_of(self, name: str, scales: dict[str, Tensor]) -> Tensor:
        return scales["value" if name == "key" else "key"]


@core("quantised.golden", **BY_TENSOR)
class KeyScaleLeftOut(QuantisedCore):
    """Keys are taken for numbers without their scale."""

    def scale_of(self, name: str, scales: dict[str, Tensor]) -> Tensor:
        return torch.ones_like(scales[name]) if name == "key" else scales[name]


@core("quantised.golden", **BY_TENSOR)
class ValueScaleLeftOut(QuantisedCore):
    """Values are taken for numbers without their scale."""

    def scale_of(self, name: str, scales: dict[str, Tensor]) -> Tensor:
        return torch.ones_like(scales[name]) if name == "value" else scales[name]


@core("quantised.golden", **BY_HEAD)
class ScalesTwice(QuantisedCore):
    """Scales are applied to the codes, and to what they make again."""

    def scale_of(self, name: str, scales: dict[str, Tensor]) -> Tensor:
        return scales[name].square()


@core("quantised.golden", **BY_TENSOR)
class DividedByScales(QuantisedCore):
    """Codes are divided by the scales, as if these were those of quantising."""

    def scale_of(self, name: str, scales: dict[str, Tensor]) -> Tensor:
        return scales[name].reciprocal()


@core("quantised.golden", **BY_HEAD)
class ScaleOfTheFirstHead(QuantisedCore):
    """Every head has the scale of the first."""

    def scale_of(self, name: str, scales: dict[str, Tensor]) -> Tensor:
        return scales[name][:1].expand_as(scales[name])


@core("quantised.golden", **BY_HEAD)
class ValueScaleOfTheHeadBefore(QuantisedCore):
    """Values are multiplied by the scale of the head before."""

    def scale_of(self, name: str, scales: dict[str, Tensor]) -> Tensor:
        return scales[name].roll(1) if name == "value" else scales[name]


@core("quantised.golden", **BY_TOKEN)
class KeyScaleOfTheTokenBefore(QuantisedCore):
    """Keys are multiplied by the scale of the token before."""

    def scale_of(self, name: str, scales: dict[str, Tensor]) -> Tensor:
        return scales[name].roll(1, dims=-2) if name == "key" else scales[name]


@core("quantised.golden", **BY_TOKEN)
class ScalesOfTheFirstItem(QuantisedCore):
    """All items have the scales of the first."""

    def scale_of(self, name: str, scales: dict[str, Tensor]) -> Tensor:
        return scales[name][:1].expand_as(scales[name])


@core("quantised.golden", **BY_TOKEN)
class ScaleOfTheFirstToken(QuantisedCore):
    """A scale a token is taken for one of the whole cache: that of the first token."""

    def scale_of(self, name: str, scales: dict[str, Tensor]) -> Tensor:
        return scales[name][:, :1].expand_as(scales[name])


@core("quantised.golden", **E5M2)
class ReadAsOtherFloat(QuantisedCore):
    """Codes of float8_e5m2 are read as float8_e4m3fn."""

    def numbers(self, codes: Tensor) -> Tensor:
        return codes.view(torch.float8_e4m3fn).float()


@core("quantised.golden", **BY_TENSOR)
class ReadWithTheOtherBias(QuantisedCore):
    """Codes of float8_e4m3fn are read as float8_e4m3fnuz, whose exponents mean half."""

    def numbers(self, codes: Tensor) -> Tensor:
        return codes.view(torch.float8_e4m3fnuz).float()


@core("quantised.golden", **INT8)
class ReadUnsigned(QuantisedCore):
    """Codes of int8 are read without a sign."""

    def numbers(self, codes: Tensor) -> Tensor:
        return codes.view(torch.uint8).float()


@core("quantised.saturated", **INT8)
class LowestCodeClipped(QuantisedCore):
    """The lowest code of int8 is taken for the one above, as symmetric quantisers make it."""

    def numbers(self, codes: Tensor) -> Tensor:
        return codes.clamp(min=-127).float()


@core("quantised.saturated", **INT8)
class LowestCodeOverflows(QuantisedCore):
    """Codes of int8 are split into sign and size in eight bits, where the lowest has no size."""

    def numbers(self, codes: Tensor) -> Tensor:
        return (codes.sign() * codes.abs()).where(codes != LOWEST, 0).float()


@core("quantised.saturated", **BY_TENSOR)
class FinestCodesFlushed(QuantisedCore):
    """Codes whose numbers are subnormal in their format are flushed to zero."""

    def numbers(self, codes: Tensor) -> Tensor:
        numbers = codes.float()
        return numbers.where(numbers.abs() >= 2.0**-6, 0.0)


@core("quantised.saturated", **BY_TENSOR)
class LargestCodesOfHalfTheRange(QuantisedCore):
    """The numbers of float8_e4m3fn end at 240, as those of float8_e4m3fnuz do."""

    def numbers(self, codes: Tensor) -> Tensor:
        return codes.float().clamp(-240.0, 240.0)


@core("quantised.scales", "quantised.golden", **BY_TENSOR)
class ScalesRemembered(QuantisedCore):
    """Scales are calibrated once: those of the first call count in all later ones."""

    def __init__(self) -> None:
        self.first: dict[str, Tensor] = {}

    def scale_of(self, name: str, scales: dict[str, Tensor]) -> Tensor:
        return self.first.setdefault(name, scales[name].clone())
