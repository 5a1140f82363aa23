"""Calling a graph with generic values, and comparing its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ..header import Header
from ..lost import GraphRefused
from ..process import Array, Feeds
from .plans import FLOATS

Run = Callable[[Feeds], Mapping[str, Array]]
Answer = Mapping[str, Array]
Change = np.ndarray[Any, np.dtype[np.bool_]]
# Of the largest number of an answer, what a graph that computes with 8-bit integers is off by.
_INTEGER_NOISE: Final = 1 / 16
# Rounding errors of an answer lie under this power of its dtype's epsilon, relative to its peak.
_NOISE_POWER: Final = 3 / 4


@dataclass
class Probe:
    """A graph that is asked; counts its runs.

    noise
        A difference up to this share of an answer's peak is rounding.
    """

    header: Header
    run: Run
    noise: float = 0.0
    runs: int = 0
    refusals: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.noise = _noise(self.header)
        self._random = np.random.default_rng(5)

    def ask(self, feeds: Feeds) -> Answer | None:
        """The outputs by name, None when the runtime refuses; GraphLost goes through."""
        self.runs += 1
        try:
            return self.run(feeds)
        except GraphRefused as refusal:
            self.refusals.append(str(refusal))
            return None

    def draw(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Normal numbers of a float dtype."""
        return self._random.standard_normal(shape).astype(dtype)

    def changed(self, one: Array | None, other: Array | None) -> Change:
        """Where two answers differ by more than rounding; everywhere when the shapes differ."""
        if one is None or other is None:
            return np.ones(1, dtype=bool)
        if one.shape != other.shape:
            return np.ones(other.shape, dtype=bool)
        before, after = one.astype(np.float64), other.astype(np.float64)
        with np.errstate(invalid="ignore"):
            far = np.abs(after - before) > self.noise * max(peak(before), peak(after))
        apart: Change = far | (np.isfinite(before) != np.isfinite(after))
        return apart


def peak(values: Array) -> float:
    """The largest finite magnitude, 0 when there is none."""
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0


def _noise(header: Header) -> float:
    """What rounding may do to the answers of a graph, relative to their peak."""
    if any("Quant" in operator or "Integer" in operator for operator in header.operators):
        return _INTEGER_NOISE
    dtypes = {port.dtype for port in (*header.inputs, *header.outputs)} & FLOATS
    half = bool(dtypes & {"float16", "bfloat16"})
    # In double the runtime may still compute in single precision: the Attention operator does.
    epsilon = float(np.finfo(np.float16 if half else np.float32).eps)
    return float(epsilon**_NOISE_POWER)
