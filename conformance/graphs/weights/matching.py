"""Finding a probed matrix again among stored tensors: by value, up to one positive factor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

# The cosine between rows that may be the same but for roundings; those that may not are not tried.
ALIKE: Final = 0.75


@dataclass(frozen=True, kw_only=True, eq=False)
class Match:
    """Stored rows that are a probed matrix but for a factor.

    source
        The name of the stored tensor.
    rows
        ``[R, E]``, the stored values in their own dtype, in the order of the probed rows.
    index
        The number of each row among all rows of the stored tensor.
    stored
        How many rows the stored tensor has.
    factor
        probed = factor · stored.
    pieces
        The matches of single heads, where each was found on its own.
    """

    source: str
    rows: Array
    index: Array
    stored: int
    factor: float
    pieces: tuple[Match, ...] = ()


def match_rows(rows: Array, noise: Array, stored: Mapping[str, Array]) -> Match | None:
    """The stored tensor that holds ``rows [R, E]`` within ``noise``, whole blocks preferred."""
    for choose in (_as_blocks, _one_by_one):
        for name, tensor in stored.items():
            for candidate in as_rows(tensor, rows.shape[1]):
                found = choose(name, rows, noise, candidate)
                if found is not None:
                    return found
    return None


def match_vector(vector: Array, noise: Array, stored: Mapping[str, Array]) -> Match | None:
    """The stored vector, or piece of one, that equals ``vector [R]`` within ``noise``."""
    columns = {name: np.reshape(tensor, (-1, 1)) for name, tensor in stored.items()}
    for name, tensor in columns.items():
        for start in range(len(tensor) - len(vector) + 1):
            piece = tensor[start : start + len(vector)]
            if np.all(np.abs(vector - piece[:, 0].astype(np.float64)) <= noise):
                index = np.arange(start, start + len(vector))
                return Match(
                    source=name, rows=piece[:, 0], index=index, stored=len(tensor), factor=1.0
                )
    return None


def factor_of(probed: Array, stored: Array) -> float:
    """The factor that carries ``stored`` nearest to ``probed``; 1 where stored is all zeros."""
    stored = stored.astype(np.float64)
    square = float(np.vdot(stored, stored))
    return float(np.vdot(stored, probed)) / square if square else 1.0


def as_rows(tensor: Array, width: int) -> Iterator[Array]:
    """A stored tensor as ``[rows, width]``, once for each axis that may be its input's."""
    if tensor.ndim < len(("rows", "columns")) or tensor.dtype.kind != "f":
        return
    # The last axis first: matrices of one layout are common, squares are ambiguous.
    for axis in reversed(range(tensor.ndim)):
        if tensor.shape[axis] == width:
            yield np.moveaxis(tensor, axis, -1).reshape(-1, width)


def _as_blocks(name: str, rows: Array, noise: Array, stored: Array) -> Match | None:
    """Rows that follow one another; the longest of them says where they may begin."""
    telling = int(np.linalg.norm(rows, axis=1).argmax())
    alike = _directions(stored) @ _directions(rows[telling : telling + 1])[0] >= ALIKE
    last = len(stored) - len(rows)
    for start in np.flatnonzero(alike) - telling:
        if 0 <= start <= last:
            index = np.arange(start, start + len(rows))
            found = _matched(name, rows, noise, stored, index)
            if found is not None:
                return found
    return None


def _one_by_one(name: str, rows: Array, noise: Array, stored: Array) -> Match | None:
    """Each row on its own: heads of several parts may alternate in one tensor."""
    nearest = _directions(rows) @ _directions(stored).T
    return _matched(name, rows, noise, stored, nearest.argmax(axis=1))


def _directions(rows: Array) -> Array:
    rows = rows.astype(np.float64)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    found: Array = np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)
    return found


def _matched(name: str, rows: Array, noise: Array, stored: Array, index: Array) -> Match | None:
    telling = int(np.linalg.norm(rows, axis=1).argmax())
    first = stored[index[telling]].astype(np.float64)
    if not _near(rows[telling], noise[telling], first, factor_of(rows[telling], first)):
        return None
    chosen = stored[index]
    factor = factor_of(rows, chosen)
    if factor <= 0 or not _near(rows, noise, chosen.astype(np.float64), factor):
        return None
    return Match(source=name, rows=chosen, index=index, stored=len(stored), factor=factor)


def _near(probed: Array, noise: Array, stored: Array, factor: float) -> bool:
    return bool(np.all(np.abs(probed - factor * stored) <= noise))
