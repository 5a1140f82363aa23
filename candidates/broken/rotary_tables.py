"""Mistakes with rotary tables that the caller gives."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from conformance import Semantics

from ..rotary_tables import ByComplexNumbers, HalfAsWide, NeighboursTurned, TurnedCore
from ._kit import core

_SHARED: Final[dict[str, Any]] = {
    "masks": ["keep"],
    "features": ["scale", "gqa", "kv_cache"],
    "rotary_tables": "cos-sin",
}
TABLES: Final[dict[str, Any]] = {**_SHARED, "semantics": Semantics(rotary="halves")}
NEIGHBOURS: Final[dict[str, Any]] = {**_SHARED, "semantics": Semantics(rotary="interleaved")}
COMPLEX: Final[dict[str, Any]] = {**NEIGHBOURS, "rotary_tables": "complex"}
OF_ITEMS: Final[dict[str, Any]] = {**TABLES, "rotary_table_shape": "BLR/2"}


@core("position.tables", "position.rotary", **TABLES)
class OwnTables(TurnedCore):
    """The tables are those of positions from zero on, whatever the call gives."""

    def tables(self, given: tuple[Tensor, ...], past: int) -> tuple[Tensor, ...]:
        length, size = given[0].shape
        frequencies = 10000.0 ** -(torch.arange(0, size, 2).double() / max(size, 1))
        angles = (past + torch.arange(length).double())[:, None] * frequencies
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(given[0].dtype), angles.sin().to(given[0].dtype)


@core("position.rotary", "position.tables", **TABLES)
class TablesByNeighbours(NeighboursTurned):
    """Neighbours turn together, by tables whose halves are equal."""


@core("position.rotary", "position.tables", **NEIGHBOURS)
class TablesByHalves(TurnedCore):
    """Halves turn together, by tables that repeat each entry."""


@core("position.rotary", "position.tables", **TABLES)
class TablesForKeysAlone(TurnedCore):
    """Keys are turned, queries are not."""

    def queries(self, query: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        del tables
        return query


@core("position.rotary", "position.tables", **COMPLEX)
class TablesForQueriesAlone(ByComplexNumbers):
    """Queries are turned, keys are not."""

    def keys(self, key: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        del tables
        return key


@core("position.rotary", "position.tables", **TABLES)
class SinesTakenOff(TurnedCore):
    """Heads turn the other way: the sine has the wrong sign."""

    def tables(self, given: tuple[Tensor, ...], past: int) -> tuple[Tensor, ...]:
        del past
        return given[0], -given[1]


@core("position.rotary", "position.tables", **COMPLEX)
class KeysByTheConjugate(ByComplexNumbers):
    """Keys are multiplied by the conjugate, as if the product did that not itself."""

    def keys(self, key: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        return self.turn(key, tables[0].conj())


@core("position.rotary", "position.tables", **TABLES)
class SinesForCosines(TurnedCore):
    """Cosines and sines are exchanged."""

    def tables(self, given: tuple[Tensor, ...], past: int) -> tuple[Tensor, ...]:
        del past
        return given[1], given[0]


@core("position.rotary", "position.tables", **TABLES, geometry={"value_head_size": "head_size"})
class ValuesByTheTables(TurnedCore):
    """Values meet the tables of the call, too."""

    def values(self, value: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        return self.turn(value, *tables)


@core("position.tables", "position.rotary", **TABLES)
class RowsOneLater(TurnedCore):
    """Keys meet the rows of the tokens before them."""

    def keys(self, key: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        return self.turn(key, *(table.roll(1, dims=0) for table in tables))


@core("cache.golden", **TABLES)
class RowsBehindTheCache(TurnedCore):
    """With a cache the rows behind its length are taken, of tables that are cut already."""

    def tables(self, given: tuple[Tensor, ...], past: int) -> tuple[Tensor, ...]:
        length = given[0].shape[0]
        return tuple(table[(past + torch.arange(length)) % length] for table in given)


@core("cache.golden", **TABLES)
class CacheTurnedAgain(TurnedCore):
    """Cached keys, which are turned, are turned again by the rows of the new ones."""

    def cached(self, key: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        rows = torch.arange(key.shape[2]) % tables[0].shape[0]
        return self.turn(key, *(table[rows] for table in tables))


@core("position.tables", "position.rotary", **OF_ITEMS)
class TablesOfTheFirstItem(HalfAsWide):
    """Every item is turned by the tables of the first."""

    def tables(self, given: tuple[Tensor, ...], past: int) -> tuple[Tensor, ...]:
        del past
        return tuple(table[:1] for table in given)


@core("position.tables", "position.rotary", **TABLES)
class LengthsOfOne(TurnedCore):
    """Entries are made as long as one, though those of scaled positions are longer."""

    def tables(self, given: tuple[Tensor, ...], past: int) -> tuple[Tensor, ...]:
        del past
        length = torch.hypot(*given)
        return given[0] / length, given[1] / length
