"""How an answer depends on one input: on which of its parts, and in which way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..process import Array
from .probe import Change, Probe


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What was seen of one float input.

    matters
        Whether the answer changes at all when everything in it changes.
    affine
        Whether the answer is affine in it.
    local
        For each of its axes the axis of the answer along which a change stays apart from changes
        elsewhere, None where changes mix; ``open`` where the axis has one entry and cannot tell.
    open
        The axes that have one entry.
    shift
        For each axis whether one vector added all along it changes nothing.
    """

    matters: bool
    affine: bool
    local: tuple[int | None, ...]
    open: tuple[bool, ...]
    shift: tuple[bool, ...]


@dataclass
class Base:
    """A call that runs, and what the answer named ``output`` was."""

    probe: Probe
    feeds: Mapping[str, Array]
    output: str
    answer: Array

    def ask(self, **changes: Array) -> Array | None:
        """The answer when some inputs are others, None when it is refused."""
        return self.ask_with(changes)

    def ask_with(self, changes: Mapping[str, Array]) -> Array | None:
        """As :meth:`ask`, for names that are no identifiers."""
        answers = self.probe.ask({**self.feeds, **changes})
        return None if answers is None else answers[self.output]

    def change(self, changes: Mapping[str, Array]) -> Change:
        """Where the answer differs from the base's."""
        return self.probe.changed(self.answer, self.ask_with(changes))

    def redrawn(self, name: str, at: int | None = None, index: int = 0) -> Array:
        """An input drawn anew, all of it or one slice."""
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


def traits(base: Base, name: str) -> Traits:
    """Probe one float input of a graph."""
    values = base.feeds[name]
    axes = range(values.ndim)
    return Traits(
        matters=bool(base.change({name: base.redrawn(name)}).any()),
        affine=is_affine(base, [name]),
        local=tuple(local_axis(base, name, at) for at in axes),
        open=tuple(values.shape[at] == 1 for at in axes),
        shift=tuple(values.shape[at] > 1 and _is_shift(base, name, at) for at in axes),
    )


def bend(base: Base, inputs: list[str]) -> float:
    """How far an answer is from affine in some inputs, relative to its own change."""
    steps = {name: base.redrawn(name) - base.feeds[name] for name in inputs}
    once = base.ask_with({name: base.feeds[name] + step for name, step in steps.items()})
    twice = base.ask_with({name: base.feeds[name] + 2 * step for name, step in steps.items()})
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


def is_affine(base: Base, inputs: list[str]) -> bool:
    """Whether an answer has no second difference along a line through some inputs."""
    return bend(base, inputs) == 0.0


def affected(base: Base, name: str, at: int, index: int) -> Change:
    """Where the answer changes when one slice of an input does."""
    return base.change({name: base.redrawn(name, at, index)})


def local_axis(base: Base, name: str, at: int) -> int | None:
    """The axis of the answer that an axis of an input is bound to: changes stay apart."""
    size = base.feeds[name].shape[at]
    if size == 1:
        return None
    last = affected(base, name, at, size - 1)
    # Under a causal rule the first query has one key: it may change as it likes.
    earlier = (affected(base, name, at, index) for index in range(size - 1))
    first = next((change for change in earlier if change.any()), last)
    if first is last or not last.any() or first.shape != last.shape:
        return None
    for axis in range(first.ndim):
        others = tuple(other for other in range(first.ndim) if other != axis)
        if not (first.any(axis=others) & last.any(axis=others)).any():
            return axis
    return None


def _is_shift(base: Base, name: str, at: int) -> bool:
    """Whether adding one vector all along an axis changes nothing."""
    values = base.feeds[name]
    shape = tuple(1 if axis == at else size for axis, size in enumerate(values.shape))
    vector = base.probe.draw(shape, "float64").astype(values.dtype)
    return not base.change({name: values + vector}).any()
