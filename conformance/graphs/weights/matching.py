"""Finding a probed matrix again among stored tensors: by value, up to one positive factor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ..._golden import golden
from ..protocol import Array
from .probing import ROUNDINGS

# The cosine between rows that may be equal up to rounding; others are not tried.
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
        The matches of single heads, where each head was matched separately.
    """

    source: str
    rows: Array
    index: Array
    stored: int
    factor: float
    pieces: tuple[Match, ...] = ()


def match_rows(rows: Array, noise: Array, stored: Mapping[str, Array]) -> Match | None:
    """The stored tensor that holds ``rows [R, E]`` within ``noise``, whole blocks preferred."""
    for choose in (_as_blocks, _by_row):
        for name, tensor in stored.items():
            for candidate in as_rows(tensor, rows.shape[1]):
                result = choose(name, rows, noise, candidate)
                if result is not None:
                    return result
    return None


def match_vector(vector: Array, noise: Array, stored: Mapping[str, Array]) -> Match | None:
    """Find a stored vector, or piece of one, equal to ``vector [R]`` within ``noise``."""
    telling = int(np.abs(vector).argmax())
    for name, tensor in stored.items():
        flat = tensor.reshape(-1)
        count = max(len(flat) - len(vector) + 1, 0)
        places = flat[telling : telling + count].astype(np.float64)
        alike = np.abs(places - vector[telling]) <= noise[telling]
        for start in np.flatnonzero(alike):
            piece = flat[start : start + len(vector)]
            if np.all(np.abs(vector - piece.astype(np.float64)) <= noise):
                index = np.arange(start, start + len(vector))
                return Match(source=name, rows=piece, index=index, stored=len(flat), factor=1.0)
    return None


def factor_of(probed: Array, stored: Array) -> float:
    """The factor that carries ``stored`` nearest to ``probed``; 1 where stored is all zeros."""
    stored = stored.astype(np.float64)
    square = float(np.vdot(stored, stored))
    return float(np.vdot(stored, probed)) / square if square else 1.0


def as_rows(tensor: Array, width: int) -> Iterator[Array]:
    """Yield a stored tensor as ``[rows, width]``, for each axis that may be its input's."""
    if tensor.ndim < len(("rows", "columns")) or tensor.dtype.kind != "f":
        return
    # The last axis first: matrices of one layout are common, squares are ambiguous.
    for axis in reversed(range(tensor.ndim)):
        if tensor.shape[axis] == width:
            yield np.moveaxis(tensor, axis, -1).reshape(-1, width)


def _as_blocks(name: str, rows: Array, noise: Array, stored: Array) -> Match | None:
    """Match consecutive rows; the longest row shows where they may begin."""
    telling = int(np.linalg.norm(rows, axis=1).argmax())
    alike = _directions(stored) @ _directions(rows[telling : telling + 1])[0] >= ALIKE
    last = len(stored) - len(rows)
    for start in np.flatnonzero(alike) - telling:
        if 0 <= start <= last:
            index = np.arange(start, start + len(rows))
            result = _matched(name, rows, noise, stored, index)
            if result is not None:
                return result
    return None


def _by_row(name: str, rows: Array, noise: Array, stored: Array) -> Match | None:
    """Match each row on its own: heads of several parts may alternate in one tensor."""
    nearest = _directions(rows) @ _directions(stored).T
    return _matched(name, rows, noise, stored, nearest.argmax(axis=1))


def _directions(rows: Array) -> Array:
    rows = rows.astype(np.float64)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    result: Array = np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)
    return result


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


_OF_NUMPY: Final = (torch.float16, torch.float32, torch.float64)
SPOKEN: Final = {"q": "query", "k": "key", "v": "value", "o": "output"}
# A tensor nearer to another than half its size counts as its broken copy.
NEAREST: Final = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Reference:
    """Raw projections, by ``q``, ``k_bias`` …, compared with the graph's.

    where: the state dict's tensor holding each.
    factors: graph = factor · raw, for the matrices.
    differences: sentences on the graph's distance from the raw projections.
    missing: the names of projections no tensor holds.
    """

    raw: Mapping[str, Tensor | None]
    where: Mapping[str, str]
    factors: Mapping[str, float]
    differences: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def weights(self) -> golden.ProjectionWeights:
        """The raw projections."""
        return golden.ProjectionWeights(**self.raw)  # type: ignore[arg-type]  # its names are those of the fields


def locate_projections(
    weights: golden.ProjectionWeights, tensors: Mapping[str, Tensor], *, coarse: bool
) -> Reference:
    """Find the graph's projections in a state dict by value.

    ``coarse``: the graph's are rounded to 8 bits; merely rounded values are kept.
    """
    stored = {name: array_of(tensor) for name, tensor in tensors.items()}
    raw: dict[str, Tensor | None] = {}
    where: dict[str, str] = {}
    factors: dict[str, float] = dict.fromkeys(SPOKEN, 1.0)
    differences, missing = [], []
    for name in SPOKEN:
        own, bias = getattr(weights, name), getattr(weights, f"{name}_bias")
        raw[name], raw[f"{name}_bias"] = own, bias
        if own is None:
            continue
        rows = array_of(own).astype(np.float64)
        match = match_rows(rows, _noise(own), stored)
        if match is None:
            near = _nearest(rows, stored)
            if near is None:
                missing.append(name)
                continue
            match, distance = near
            if not coarse or not rounded_to_8_bits(rows, match.rows):
                differences.append(_differing(f"{SPOKEN[name]} projection", distance, match.source))
        else:
            factors[name] = match.factor
        where[name] = match.source
        if not coarse or not rounded_to_8_bits(rows, match.rows):
            raw[name] = as_dtype(match.rows, own)
        raw[f"{name}_bias"], differs = _bias_in(bias, own, match, stored)
        if differs:
            differences.append(f"the graph's {SPOKEN[name]} bias is not that of {match.source}")
        if bias is not None and raw[f"{name}_bias"] is None:
            missing.append(f"{name}_bias")
    return Reference(
        raw=raw,
        where=where,
        factors=factors,
        differences=tuple(differences),
        missing=tuple(missing),
    )


def compare_projections(
    weights: golden.ProjectionWeights,
    right: golden.ProjectionWeights,
    where: str = "the source",
    *,
    coarse: bool = False,
) -> Reference:
    """The graph's projections compared with a module's, which are right whatever the graph holds.

    ``coarse``: the graph's matrices are rounded to 8 bits, and kept where that is all.
    """
    raw: dict[str, Tensor | None] = {}
    factors, differences = dict.fromkeys(SPOKEN, 1.0), []
    for name in SPOKEN:
        for kind, spoken in ((name, "projection"), (f"{name}_bias", "bias")):
            own, raw[kind] = getattr(weights, kind), getattr(right, kind)
            if coarse and kind == name and _is_rounded(own, raw[kind]):
                raw[kind] = own
            factor, difference = _compare(own, raw[kind])
            if difference is not None:
                differences.append(_differing(f"{SPOKEN[name]} {spoken}", difference, where))
            elif kind == name:
                factors[name] = factor
    return Reference(raw=raw, where={}, factors=factors, differences=tuple(differences))


def _is_rounded(own: Tensor | None, right: Tensor | None) -> bool:
    if own is None or right is None or own.shape != right.shape:
        return False
    return rounded_to_8_bits(array_of(own).astype(np.float64), array_of(right))


def rounded_to_8_bits(own: Array, right: Array) -> bool:
    """Tell whether a matrix is another one rounded to 8 bits, or to 7 for certain CPUs.

    Steps of 7 bits are the widest: the largest entry over 63; an entry is off by half a step.
    """
    widest = float(np.abs(right).max()) / (2**6 - 1)
    eps = float(np.finfo(right.dtype).eps) if right.dtype.kind == "f" else 0.0
    return bool(np.all(np.abs(own - right) <= widest / 2 + eps * np.abs(right)))


def _compare(own: Tensor | None, right: Tensor | None) -> tuple[float, float | None]:
    """Return the factor between two tensors, and their difference (None: equal)."""
    if own is None or right is None:
        present = own if right is None else right
        differs = present is not None and bool(present.any())
        return 1.0, float("inf") if differs else None
    if own.shape != right.shape:
        return 1.0, float("inf")
    graph, raw = array_of(own).astype(np.float64), array_of(right).astype(np.float64)
    factor = factor_of(graph, raw)
    if factor > 0 and np.all(np.abs(graph - factor * raw) <= _noise(own)):
        return factor, None
    return 1.0, float(np.linalg.norm(graph - raw)) / (float(np.linalg.norm(raw)) or 1.0)


def array_of(tensor: Tensor) -> Array:
    """Return a tensor as an array; in float32 if numpy lacks the dtype: bfloat16, 8-bit floats."""
    tensor = tensor.detach().cpu()
    result: Array = (tensor if tensor.dtype in _OF_NUMPY else tensor.float()).numpy()
    return result


def as_dtype(rows: Array, own: Tensor) -> Tensor:
    """Return stored values in the dtype of the graph, as rounded at export."""
    return torch.from_numpy(np.ascontiguousarray(rows)).to(own.dtype).clone()


def _noise(tensor: Tensor) -> Array:
    """Return how far rounding may have moved a stored tensor from its origin."""
    values = np.abs(array_of(tensor).astype(np.float64))
    smallest = torch.finfo(tensor.dtype).smallest_normal
    result: Array = ROUNDINGS * torch.finfo(tensor.dtype).eps * (values + smallest)
    return result


def _bias_in(
    bias: Tensor | None, matrix: Tensor, match: Match, stored: Mapping[str, Array]
) -> tuple[Tensor | None, bool]:
    """Return a matrix's bias in the state dict, and whether the graph's bias differs.

    The bias of equal value, else the bias stored under the matrix's name.
    """
    if bias is not None:
        vector = array_of(bias).astype(np.float64) / match.factor
        equal = match_vector(vector, _noise(bias) / match.factor, stored)
        if equal is not None:
            return as_dtype(equal.rows, bias), False
    sibling = _sibling_bias(match, stored)
    if sibling is not None and (bias is not None or np.any(sibling)):
        return as_dtype(sibling, matrix), True
    if bias is not None and not bias.any():
        return bias, False
    return None, False


def _sibling_bias(match: Match, stored: Mapping[str, Array]) -> Array | None:
    """Return the vector named after a matrix: ``a.bias`` of ``a.weight``."""
    head, result, tail = match.source.rpartition("weight")
    vector = stored.get(f"{head}bias{tail}") if result else None
    if vector is None or vector.shape != (match.stored,):
        return None
    rows: Array = vector[match.index]
    return rows


def _nearest(rows: Array, stored: Mapping[str, Array]) -> tuple[Match, float] | None:
    """Return the stored block nearest to the rows, with its relative distance."""
    size = float(np.linalg.norm(rows)) or 1.0
    distances = (
        (float(np.linalg.norm(rows - piece)) / size, name, piece)
        for name, tensor in stored.items()
        for candidate in as_rows(tensor, rows.shape[1])
        for start in range(0, len(candidate) - len(rows) + 1, len(rows))
        for piece in [candidate[start : start + len(rows)]]
    )
    best = min(distances, key=lambda entry: entry[0], default=None)
    if best is None or best[0] >= NEAREST:
        return None
    distance, name, piece = best
    match = Match(source=name, rows=piece, index=np.arange(len(rows)), stored=len(rows), factor=1.0)
    return match, distance


def _differing(what: str, distance: float, where: str) -> str:
    much = f"by {distance:.2g} of its size" if np.isfinite(distance) else "in shape or presence"
    return f"the graph's {what} differs from that of {where} {much}"
