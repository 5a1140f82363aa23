"""Keys and values in formats of eight bits: how their scales are drawn, and their codes made.

Every scale is a power of two, so that code times scale is exact wherever a kernel multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Generator, Tensor

from ..base.results import Replaceable
from ..declare.declaration import Declaration


class Format(NamedTuple):
    """A format: its dtype, its largest and lowest number, and the exponent of its finest step."""

    dtype: torch.dtype
    largest: float
    lowest: float
    finest: int


FORMATS: Final = {
    "float8_e4m3fn": Format(torch.float8_e4m3fn, 448.0, -448.0, -9),
    "float8_e5m2": Format(torch.float8_e5m2, 57344.0, -57344.0, -16),
    "int8": Format(torch.int8, 127.0, -128.0, 0),
}
# The axes of heads over which a scale is one: items, heads, tokens and channels.
_SHARED: Final = {
    "tensor": (0, 1, 2, 3),
    "head": (0, 2, 3),
    **dict.fromkeys(("token", "slot"), (3,)),
}
# The axes of a scale that is handed over, of those of heads.
_HANDED: Final = {"tensor": (), "head": (1,), "token": (0, 2, 1)}
# How much larger a scale is than the largest number needs; below zero, large numbers saturate.
_ROOM: Final = (-1, 3)
# The part of zeros: a code of its own.
_ZEROS: Final = 0.03
# Exponents of scales that float32 and bfloat16 hold with room for products.
_WIDE: Final = 100


@dataclass(frozen=True, kw_only=True, eq=False)
class Quantised(Replaceable):
    """The scales of keys and values ``[B, Hkv, Lk, 1]``, of size 1 along an axis that shares one.

    Calls of other sizes repeat what there is.
    """

    format: str
    by: str
    key_scale: Tensor
    value_scale: Tensor

    def scale_of(self, name: str, heads: Tensor) -> Tensor:
        """The scale of key or value, for heads of some sizes."""
        scale: Tensor = getattr(self, f"{name}_scale")
        for axis, size in enumerate(heads.shape[:-1]):
            if scale.shape[axis] not in (1, size) or (axis not in _SHARED[self.by] and not size):
                scale = scale.index_select(axis, torch.arange(size) % max(scale.shape[axis], 1))
        return scale

    @property
    def by_token(self) -> bool:
        """Whether each token and head has a scale of its own."""
        return _SHARED[self.by] == _SHARED["token"]

    def bytes(self, name: str, heads: Tensor) -> Tensor:
        """The codes of key or value as unsigned bytes, which torch can move."""
        return self.codes(name, heads).view(torch.uint8)

    def codes(self, name: str, heads: Tensor) -> Tensor:
        """Key or value as codes in the format; what is too large saturates."""
        made = FORMATS[self.format]
        numbers = (heads.double() / self.scale_of(name, heads)).clamp(made.lowest, made.largest)
        numbers = numbers.round() if made.dtype == torch.int8 else numbers
        # What is no number saturates in integers, which have none such.
        numbers = numbers.nan_to_num(nan=made.largest) if made.dtype == torch.int8 else numbers
        return numbers.to(made.dtype)

    def exact(self, name: str, heads: Tensor) -> Tensor:
        """Key or value as its codes and scales have it, in the dtype of the heads."""
        codes = self.codes(name, heads)
        return (codes.double() * self.scale_of(name, heads)).to(heads.dtype)

    def keywords(self, key: Tensor, value: Tensor, *, batched: bool) -> dict[str, Tensor]:
        """The scales of a call, as the declaration has them."""
        made = {}
        for name, heads in (("key", key), ("value", value)):
            scale = self.scale_of(name, heads)
            axes = _HANDED[self.by]
            # An axis that no scale shares has the size of the heads.
            whole = [heads.shape[axis] if axis in axes else 1 for axis in range(3)]
            scale = scale.expand(*whole, 1)[..., 0].permute(
                *axes, *(axis for axis in range(3) if axis not in axes)
            )
            scale = scale.reshape([heads.shape[axis] for axis in axes])
            scale = scale[0] if 0 in axes and not batched else scale
            made[f"{name}_scale"] = scale.float().contiguous().clone()
        return made

    def taken(
        self,
        *,
        items: Tensor | None = None,
        heads: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Quantised:
        """The scales of some items, heads or keys, in their order."""
        scales = {"key_scale": self.key_scale, "value_scale": self.value_scale}
        for name, scale in scales.items():
            for axis, order in enumerate((items, heads, keys)):
                if order is not None and axis not in _SHARED[self.by]:
                    chosen = order % max(scale.shape[axis], 1)
                    scale = scale.index_select(axis, chosen)  # noqa: PLW2901 (axis by axis)
            scales[name] = scale
        return self.replace(**scales)


def draw_quantised(
    declared: Declaration, key: Tensor, value: Tensor, generator: Generator
) -> Quantised | None:
    """Scales that fit drawn heads, some with room and some too small; None without a format."""
    if declared.kv_format is None or declared.kv_scales is None:
        return None
    made = FORMATS[declared.kv_format]
    least, most = -_WIDE, _WIDE
    if key.dtype == torch.float16:
        limits = torch.finfo(torch.float16)
        least = int(torch.tensor(limits.smallest_normal).log2()) - 10 - made.finest
        most = int(torch.tensor(limits.max / -made.lowest).log2().floor())

    def drawn(heads: Tensor) -> Tensor:
        axes = _SHARED[declared.kv_scales or ""]
        sizes = [1 if axis in axes else size for axis, size in enumerate(heads.shape)]
        largest = torch.ones(sizes, dtype=torch.float64)
        if heads.numel():
            largest = heads.double().abs().amax(dim=axes, keepdim=True)
        needed = (torch.where(largest > 0.0, largest, 1.0) / made.largest).log2().ceil()
        room = torch.randint(_ROOM[0], _ROOM[1], sizes, generator=generator)
        return (needed.clamp(min=least) + room).clamp(least, most)

    of_key, of_value = drawn(key), drawn(value)
    if torch.equal(of_key, of_value):
        of_value = of_value + 1.0
    if declared.head_layout.value_in_key:
        of_value = of_key
    return Quantised(
        format=declared.kv_format,
        by=declared.kv_scales,
        key_scale=torch.exp2(of_key),
        value_scale=torch.exp2(of_value),
    )


def with_zeros(heads: Tensor, generator: Generator) -> Tensor:
    """The heads with some zeros among them."""
    return heads.masked_fill(torch.rand(heads.shape, generator=generator) < _ZEROS, 0.0)
