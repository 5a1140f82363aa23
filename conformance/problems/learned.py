"""Learned arguments of a call: how they are drawn, and fitted to its sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Generator, Tensor

from ..base.geometry import Geometry
from ..base.results import Replaceable
from ..declare.declaration import SLOPE_SHAPES, Declaration

# The axes of each argument, G for key/value heads; a call gets the factors of norms flat. The first
# axis is left out where one row is that of every head, or of every item.
_AXES: Final = {
    "query_norm_weight": "HD",
    "key_norm_weight": "GD",
    "temperature": "H",
    "alibi_slopes": "BH",
    "relative_table": "NH",
    "bias_k": "GD",
    "bias_v": "GV",
}
_SIZES: Final = {
    "B": "batch",
    "H": "num_heads",
    "G": "num_kv_heads",
    "D": "head_size",
    "V": "value_head_size",
}
# Numbers of buckets: short distances and long ones share buckets.
_ROWS: Final = {"clipped": (3, 7, 17), "t5": (8, 16, 32), "t5-causal": (4, 8, 32)}
_FACTORS: Final = ("query_norm_weight", "key_norm_weight")
# Factors of norms lie around one, as where training begins, with this deviation.
_SPREAD: Final = 0.5
# Temperatures, and slopes: no two heads alike, none as the formula has them.
_TEMPERATURES: Final = (0.5, 2.0)
_SLOPES: Final = (0.05, 1.0)


def _axes(name: str, value: Tensor) -> str:
    return _AXES[name][-value.dim() :]


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnedArguments(Replaceable):
    """The learned arguments of a problem by keyword, with the axes of ``_AXES``."""

    values: Mapping[str, Tensor]

    @classmethod
    def given(cls, values: Mapping[str, Tensor], geometry: Geometry) -> LearnedArguments | None:
        """What a call of some sizes was given by keyword; None for nothing."""
        made = {}
        for name, value in values.items():
            by_head = name in _FACTORS and value.shape[-1] != geometry.head_size
            made[name] = value.reshape(-1, geometry.head_size) if by_head else value
        return cls(values=made) if made else None

    def of(self, geometry: Geometry) -> dict[str, Tensor]:
        """The arguments for a call of some sizes; rows that are missing repeat those there are."""
        made = {}
        for name, value in self.values.items():
            for axis, letter in enumerate(_axes(name, value)):
                if letter not in _SIZES:
                    continue
                size = getattr(geometry, _SIZES[letter])
                if value.shape[axis] != size:
                    value = value.index_select(axis, torch.arange(size) % value.shape[axis])  # noqa: PLW2901 (fitted axis by axis)
            made[name] = value.flatten() if name in _FACTORS else value
        return made

    def changed(self, change: Callable[..., Tensor]) -> LearnedArguments:
        """The arguments after a function of each value and its ``name``."""
        values = {name: change(value, name=name) for name, value in self.values.items()}
        return self.replace(values=values)

    def of_items(self, order: Tensor) -> LearnedArguments:
        """The arguments of some items, in their order."""
        return self._taken(B=order)

    def of_heads(self, order: Tensor, groups: Tensor) -> LearnedArguments:
        """The arguments of query heads and of key/value heads in other orders."""
        return self._taken(H=order, G=groups)

    def _taken(self, **orders: Tensor) -> LearnedArguments:
        values = dict(self.values)
        for name, value in values.items():
            for axis, letter in enumerate(_axes(name, value)):
                if letter in orders:
                    chosen = orders[letter] % max(value.shape[axis], 1)
                    values[name] = values[name].index_select(axis, chosen)
        return self.replace(values=values)


def draw_learned(
    declared: Declaration, sizes: Geometry, dtype: torch.dtype, generator: Generator
) -> LearnedArguments | None:
    """Arguments for a declaration in a dtype; None if it has none."""
    if not declared.learned:
        return None
    together = declared.semantics.qk_norm_over == "all-heads"
    shape = (
        declared.alibi_slope_shape or SLOPE_SHAPES[int(torch.randint(2, (1,), generator=generator))]
    )
    by_item = declared.batched and shape == "BH"
    values = {}
    for name in declared.learned:
        axes = _AXES[name]
        whole = together if name in _FACTORS else name != "alibi_slopes" or by_item
        if name == "relative_table":
            choices = _ROWS[declared.semantics.relative]
            rows = choices[int(torch.randint(len(choices), (1,), generator=generator))]
            extent = [rows, sizes.num_heads]
        else:
            extent = [getattr(sizes, _SIZES[letter]) for letter in (axes if whole else axes[1:])]
        if axes != "H" and name != "alibi_slopes":
            normal = torch.randn(extent, generator=generator, dtype=torch.float64)
            values[name] = (1.0 + _SPREAD * normal if name in _FACTORS else normal).to(dtype)
            continue
        least, most = _TEMPERATURES if name == "temperature" else _SLOPES
        drawn = torch.rand(extent, generator=generator, dtype=torch.float64)
        values[name] = (least + (most - least) * drawn).to(dtype)
    return LearnedArguments(values=values)
