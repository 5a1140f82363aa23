"""Learned arguments of a call: how they are drawn, and fitted to its sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Generator, Tensor

from ..base.geometry import Geometry
from ..base.results import Replaceable
from ..declare.declaration import Declaration

# The axes of the values here, G for key/value heads; a call gets the factors of norms flat.
_AXES: Final = {
    "query_norm_weight": "HD",
    "key_norm_weight": "GD",
    "temperature": "H",
    "alibi_slopes": "BH",
}
_SIZES: Final = {"B": "batch", "H": "num_heads", "G": "num_kv_heads", "D": "head_size"}
# Factors of norms lie around one, as where training begins, with this deviation.
_SPREAD: Final = 0.5
# Temperatures, and slopes: no two heads alike, none as the formula has them.
_TEMPERATURES: Final = (0.5, 2.0)
_SLOPES: Final = (0.05, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnedArguments(Replaceable):
    """The learned arguments of a problem by keyword, with an axis for each of ``_AXES``.

    A norm weight of one row is that of every head, slopes of one row are those of every item.
    """

    values: Mapping[str, Tensor]

    @classmethod
    def given(cls, values: Mapping[str, Tensor], geometry: Geometry) -> LearnedArguments | None:
        """What a call of some sizes was given by keyword; None for nothing."""
        made = {}
        for name, value in values.items():
            last = geometry.head_size if _AXES[name][-1] == "D" else geometry.num_heads
            made[name] = value if _AXES[name] == "H" else value.reshape(-1, last)
        return cls(values=made) if made else None

    def of(self, geometry: Geometry) -> dict[str, Tensor]:
        """The arguments for a call of some sizes; rows that are missing repeat those there are."""
        made = {}
        for name, value in self.values.items():
            for axis, letter in enumerate(_AXES[name]):
                size = getattr(geometry, _SIZES[letter])
                if value.shape[axis] != size and not _is_shared(name, axis, value):
                    value = value.index_select(axis, torch.arange(size) % value.shape[axis])  # noqa: PLW2901 (fitted axis by axis)
            one_row = name == "alibi_slopes" and self.values[name].shape[0] > 1
            made[name] = value if one_row else value.flatten()
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
            axes = _AXES[name]
            for axis, order in ((axes.find(letter), each) for letter, each in orders.items()):
                if axis >= 0 and not _is_shared(name, axis, value):
                    value = value.index_select(axis, order % max(value.shape[axis], 1))  # noqa: PLW2901 (axis by axis)
            values[name] = value
        return self.replace(values=values)


def _is_shared(name: str, axis: int, value: Tensor) -> bool:
    """Whether the one row of a value is that of all heads, or items."""
    return axis == 0 and value.shape[0] == 1 and len(_AXES[name]) > 1


def draw_learned(
    declared: Declaration, sizes: Geometry, dtype: torch.dtype, generator: Generator
) -> LearnedArguments | None:
    """Arguments for a declaration in a dtype; None if it has none."""
    if not declared.learned:
        return None
    together = declared.semantics.qk_norm_over == "all-heads"
    by_item = declared.batched and bool(torch.randint(2, (1,), generator=generator))
    values = {}
    for name in declared.learned:
        shape = [getattr(sizes, _SIZES[letter]) for letter in _AXES[name]]
        if name == "alibi_slopes":
            shape[0] = shape[0] if by_item else 1
            least, most = _SLOPES
        elif name == "temperature":
            least, most = _TEMPERATURES
        else:
            shape[0] = shape[0] if together else 1
            normal = torch.randn(shape, generator=generator, dtype=torch.float64)
            values[name] = (1.0 + _SPREAD * normal).to(dtype)
            continue
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
        values[name] = (least + (most - least) * drawn).to(dtype)
    return LearnedArguments(values=values)
