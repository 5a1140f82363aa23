"""Calls of a graph with generic values: agreement of answers, and dependence on inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ..process import Array, Feeds, Run
from ..protocol import GraphRefused
from ..reading import Header
from ..sidecar import GraphDeclaration
from .plans import FLOATS


@dataclass(frozen=True, kw_only=True)
class Traits:
    """How the answer depends on one float input.

    matters: the answer changes when everything in the input changes.
    affine: the answer is affine in the input.
    local: by axis the answer's axis along which a change stays separate from changes elsewhere,
        None where changes mix; ``open`` where a single entry cannot tell.
    open: the axes that have one entry.
    shift: by axis whether adding one vector all along it changes nothing.
    """

    matters: bool
    affine: bool
    local: tuple[int | None, ...]
    open: tuple[bool, ...]
    shift: tuple[bool, ...]


@dataclass
class BaseCall:
    """A call that runs, with its answer named ``output``."""

    probe: GraphProbe
    feeds: Mapping[str, Array]
    output: str
    answer: Array

    def with_inputs(self, changes: Mapping[str, Array]) -> BaseCall | None:
        """Return the call with changed inputs, None if refused."""
        feeds = {**self.feeds, **changes}
        answers = self.probe.call(feeds)
        if answers is None:
            return None
        return BaseCall(self.probe, feeds, self.output, answers[self.output])

    def evaluate(self, changes: Mapping[str, Array]) -> Array | None:
        """Return the answer to the call with changed inputs, None if refused."""
        other = self.with_inputs(changes)
        return None if other is None else other.answer

    def change(self, changes: Mapping[str, Array]) -> Change:
        """Where the answer differs from the base's."""
        return self.probe.changed(self.answer, self.evaluate(changes))

    def redrawn(self, name: str, at: int | None = None, index: int = 0) -> Array:
        """Return an input with new random numbers, all of it or one slice."""
        values = self.feeds[name]
        size = float(np.sqrt(np.mean(np.square(values.astype(np.float64))))) or 1.0
        drawn = (self.probe.draw(values.shape, "float64") * size).astype(values.dtype)
        if at is None:
            return drawn
        where: list[slice | int] = [slice(None)] * values.ndim
        where[at] = index
        changed = values.copy()
        changed[tuple(where)] = drawn[tuple(where)]
        return changed


def read_traits(base: BaseCall, name: str) -> Traits:
    """GraphProbe one float input of a graph."""
    values = base.feeds[name]
    axes = range(values.ndim)
    return Traits(
        matters=bool(base.change({name: base.redrawn(name)}).any()),
        affine=bend(base, [name]) == 0.0,  # no second difference along a line through it
        local=tuple(local_axis(base, name, at) for at in axes),
        open=tuple(values.shape[at] == 1 for at in axes),
        shift=tuple(values.shape[at] > 1 and _is_shift(base, name, at) for at in axes),
    )


def bend(base: BaseCall, inputs: list[str]) -> float:
    """Return how far an answer is from affine in the inputs, relative to its own change."""
    steps = {name: base.redrawn(name) - base.feeds[name] for name in inputs}
    once = base.evaluate({name: base.feeds[name] + step for name, step in steps.items()})
    twice = base.evaluate({name: base.feeds[name] + 2 * step for name, step in steps.items()})
    if once is None or twice is None or once.shape != twice.shape:
        return 0.0
    first = once.astype(np.float64) - base.answer
    second = twice.astype(np.float64) - 2 * once.astype(np.float64) + base.answer
    size = float(np.abs(first).max(initial=0.0))
    bent = float(np.abs(second).max(initial=0.0))
    if not np.isfinite(bent) or not np.isfinite(size):
        return 0.0
    largest = max(size, *(float(np.abs(a).max(initial=0.0)) for a in (base.answer, once, twice)))
    return 0.0 if bent <= 2 * base.probe.noise * largest else bent / largest


def affected(base: BaseCall, name: str, at: int, index: int) -> Change:
    """Where the answer changes when one slice of an input does."""
    return base.change({name: base.redrawn(name, at, index)})


def local_axis(base: BaseCall, name: str, at: int) -> int | None:
    """The axis of the answer that an axis of an input is bound to, None where changes mix."""
    size = base.feeds[name].shape[at]
    if size == 1:
        return None
    last = affected(base, name, at, size - 1)
    # Under a causal rule the first query has one key: it may change as it likes.
    earlier = (affected(base, name, at, index) for index in range(size - 1))
    first = next((change for change in earlier if change.any()), last)
    if first is last or not last.any() or first.shape != last.shape:
        return None
    return separate_axis(first, last)


def separate_axis(first: Change, last: Change) -> int | None:
    """The axis of the answer along which two changes have no place in common, None without."""
    for axis in range(first.ndim):
        others = tuple(other for other in range(first.ndim) if other != axis)
        if not (first.any(axis=others) & last.any(axis=others)).any():
            return axis
    return None


def _is_shift(base: BaseCall, name: str, at: int) -> bool:
    """Tell whether adding one vector all along an axis changes nothing."""
    values = base.feeds[name]
    shape = tuple(1 if axis == at else size for axis, size in enumerate(values.shape))
    vector = base.probe.draw(shape, "float64").astype(values.dtype)
    return not base.change({name: values + vector}).any()


Outputs = Mapping[str, Array]
Change = np.ndarray[Any, np.dtype[np.bool_]]
# The error of a graph computing with 8-bit integers, relative to the answer's largest number.
_INTEGER_NOISE: Final = 1 / 16
# Rounding errors of an answer lie under this power of its dtype's epsilon, relative to its peak.
_NOISE_POWER: Final = 3 / 4


@dataclass
class GraphProbe:
    """Calls a graph and counts the runs.

    noise
        A difference up to this share of an answer's peak is rounding.
    """

    header: Header
    run: Run
    declared: GraphDeclaration
    noise: float = 0.0
    runs: int = 0
    refusals: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.noise = _noise(self.header)
        self._random = np.random.default_rng(5)

    def call(self, feeds: Feeds) -> Outputs | None:
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

    def changed(self, first: Array | None, second: Array | None) -> Change:
        """Where two answers differ by more than rounding; everywhere when the shapes differ."""
        if first is None or second is None:
            return np.ones(1, dtype=bool)
        if first.shape != second.shape:
            return np.ones(second.shape, dtype=bool)
        before, after = first.astype(np.float64), second.astype(np.float64)
        with np.errstate(invalid="ignore"):
            far = np.abs(after - before) > self.noise * max(peak(before), peak(after))
        apart: Change = far | (np.isfinite(before) != np.isfinite(after))
        return apart


def peak(values: Array) -> float:
    """The largest finite magnitude, 0 when there is none."""
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0


def _noise(header: Header) -> float:
    """Return the error of rounding in a graph's answers, relative to their peak."""
    if any("Quant" in operator or "Integer" in operator for operator in header.operators):
        return _INTEGER_NOISE
    dtypes = {port.dtype for port in (*header.inputs, *header.outputs)} & FLOATS
    half = bool(dtypes & {"float16", "bfloat16"})
    # In double the runtime may still compute in single precision: the Attention operator does.
    epsilon = float(np.finfo(np.float16 if half else np.float32).eps)
    return float(epsilon**_NOISE_POWER)
