"""Rotary tables given by a call: how they are drawn and handed over.

A table is complex128 ``[B or 1, N, R/2]``: the cosine of each pair of channels and, as the
imaginary part, the sine. Any angles are legal, and entries of any common length: most drawn tables
differ from the tables of positions from zero on, to expose code that makes its own tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Generator, Tensor

from .._golden import golden
from ..base.results import Replaceable
from ..declare.declaration import TABLE_KEYWORDS, Declaration

# Rows beyond twice the keys of a problem, for clauses that add keys.
_MORE: Final = 64
# The largest first place of a table, and the largest step between neighbouring places.
_FARTHEST: Final = 1000
_WIDEST_GAP: Final = 4
# One in ``_STRETCHED`` tables has entries of a length other than 1, within ``_LENGTHS``.
_STRETCHED: Final = 4
_LENGTHS: Final = (0.5, 1.5)


@dataclass(frozen=True, kw_only=True, eq=False)
class RotaryTables(Replaceable):
    """The tables of a call, as exact complex numbers, and the way to hand them over.

    ``form`` and ``shape`` are as declared; ``halves``: in tables as wide as the turned channels,
    the two entries of a pair lie R/2 apart. Missing rows or items repeat the given ones.
    """

    values: Tensor
    form: str
    shape: str
    halves: bool

    def of(self, batch: int, length: int, dtype: torch.dtype) -> Tensor:
        """The tables for a call in a dtype, ``[B or 1, L, R/2]``: complex128, or float64 angles."""
        count, rows = self.values.shape[:2]
        items = torch.arange(batch if "B" in self.shape else 1) % count
        chosen = self.values[items][:, torch.arange(length) % rows]
        if self.form == "angles":
            return chosen.angle().to(torch.promote_types(dtype, torch.float32)).double()
        rounded = torch.float32 if self.form == "complex" else dtype
        parts = (part.to(rounded).double() for part in (chosen.real, chosen.imag))
        return torch.complex(*parts)

    def of_items(self, order: Tensor) -> RotaryTables:
        """The tables of some items, in their order."""
        if self.values.shape[0] == 1:
            return self
        return self.replace(values=self.values[order % self.values.shape[0]])

    def from_row(self, first: int) -> RotaryTables:
        """The tables for the tokens from ``first`` on."""
        return self.replace(values=self.values.roll(-first, dims=1))

    def keywords(self, given: Tensor, dtype: torch.dtype) -> dict[str, Any]:
        """The keywords to hand over some rows of a call's tables, ``[B or 1, L, R/2]``."""
        if self.form == "complex":
            return {"freqs_cis": self._laid_out(given.to(torch.complex64))}
        if self.form == "angles":
            kept = torch.promote_types(dtype, torch.float32)
            return {"angles": self._laid_out(given.to(kept))}
        parts = (given.real.to(dtype), given.imag.to(dtype))
        return dict(zip(TABLE_KEYWORDS[self.form], map(self._laid_out, parts), strict=True))

    def _laid_out(self, table: Tensor) -> Tensor:
        axes = self.shape.removesuffix("/2")
        if axes == self.shape:
            table = (
                torch.cat([table, table], dim=-1) if self.halves else table.repeat_interleave(2, -1)
            )
        sizes = dict(zip("BLR", table.shape, strict=True))
        return table.reshape([sizes.get(axis, 1) for axis in axes]).contiguous()


def draw_tables(
    declared: Declaration, batch: int, length: int, head_size: int, generator: Generator
) -> RotaryTables | None:
    """Tables for ``length`` keys and more; None if the declaration takes no tables."""
    if declared.rotary_tables is None:
        return None
    point = declared.semantics
    shape = declared.rotary_table_shape or ""
    items, rows = batch if "B" in shape else 1, 2 * length + _MORE
    frequencies = golden.rotary_frequencies(head_size, point)
    kind = _KINDS[int(torch.randint(len(_KINDS), (1,), generator=generator))]
    angles = kind(frequencies, (items, rows), generator)
    longer = int(torch.randint(_STRETCHED, (1,), generator=generator)) == 0
    longer = longer and declared.rotary_tables != "angles"
    least, most = _LENGTHS
    drawn = least + (most - least) * float(torch.rand(1, generator=generator))
    size = torch.tensor(drawn if longer else 1.0, dtype=torch.float64)
    return RotaryTables(
        values=torch.polar(size.expand(angles.shape), angles),
        form=declared.rotary_tables,
        shape=shape,
        halves=point.rotary == "halves",
    )


def standard_tables(given: RotaryTables, head_size: int, point: golden.Semantics) -> RotaryTables:
    """The tables of positions from zero on, in the form of the given tables."""
    places = torch.arange(given.values.shape[1])
    angles = golden.rotary_angles(places, head_size, point)
    return given.replace(values=torch.polar(torch.ones_like(angles), angles).unsqueeze(0))


Kind = Callable[[Tensor, tuple[int, int], Generator], Tensor]


def _at(places: Tensor, frequencies: Tensor) -> Tensor:
    return places.double()[..., None] * frequencies


def _from_a_place(frequencies: Tensor, sizes: tuple[int, int], generator: Generator) -> Tensor:
    first = torch.randint(1, _FARTHEST, (sizes[0], 1), generator=generator)
    return _at(first + torch.arange(sizes[1]), frequencies)


def _with_gaps(frequencies: Tensor, sizes: tuple[int, int], generator: Generator) -> Tensor:
    steps = torch.randint(1, _WIDEST_GAP + 1, sizes, generator=generator)
    return _at(steps.cumsum(dim=-1), frequencies)


def _of_any_angles(frequencies: Tensor, sizes: tuple[int, int], generator: Generator) -> Tensor:
    drawn = torch.rand(*sizes, len(frequencies), generator=generator, dtype=torch.float64)
    return torch.pi * (2.0 * drawn - 1.0)


def _from_zero(frequencies: Tensor, sizes: tuple[int, int], _generator: Generator) -> Tensor:
    return _at(torch.arange(sizes[1]).expand(sizes), frequencies)


# Consecutive positions show distances alone: most tables hold other angles.
_KINDS: Final[tuple[Kind, ...]] = (
    _of_any_angles,
    _with_gaps,
    _from_a_place,
    _of_any_angles,
    _from_zero,
    _with_gaps,
)
