"""What is exported: a module with its inputs; and what came of it: a file with its story."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Generator, Tensor, nn

# Traced sizes are distinct and at least two, so that no two axes can be taken for one.
SIZES: Final[Mapping[str, int]] = {
    "batch": 2,
    "queries": 3,
    "keys": 5,
    "tokens": 5,
    "past": 3,
    "total": 8,
}

# Ids of fewer words than any model here knows.
_WORDS: Final = 30


@dataclass(frozen=True, kw_only=True)
class Input:
    """An input of a module: the name of each dynamic axis and the size of each fixed one.

    kind
        ``tokens`` (normal values), ``keep`` (0/1 integers), ``drop`` (bool), ``bias`` (normal
        values), ``lengths`` (integers from 1 to the number of keys), ``ids`` (numbers of words) or
        ``places`` (0, 1, 2 …).
    """

    name: str
    axes: tuple[str | int, ...]
    kind: str = "tokens"

    @property
    def dynamic(self) -> dict[int, str]:
        """The dynamic axes, as both exporters take them."""
        return {number: axis for number, axis in enumerate(self.axes) if isinstance(axis, str)}

    def example(self, generator: Generator, sizes: Mapping[str, int]) -> Tensor:
        """Values to trace with."""
        shape = [axis if isinstance(axis, int) else sizes[axis] for axis in self.axes]
        if self.kind == "places":
            return torch.arange(shape[-1]).expand(*shape)
        if self.kind == "lengths":
            return torch.randint(1, sizes["keys"] + 1, shape, generator=generator)
        if self.kind == "ids":
            return torch.randint(1, _WORDS, shape, generator=generator)
        if self.kind in ("keep", "drop"):
            bits = torch.rand(shape, generator=generator) < 0.7  # noqa: PLR2004 (most stay)
            bits[..., 0] = True  # a row keeps its first key
            return bits.long() if self.kind == "keep" else ~bits
        return torch.randn(shape, generator=generator)


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A module to export.

    name
        Its name in ``candidates.exports.sources``.
    outputs
        The name and the axes of each output.
    """

    name: str
    module: nn.Module
    inputs: tuple[Input, ...]
    outputs: Mapping[str, tuple[str | int, ...]]

    def example(self, sizes: Mapping[str, int] = SIZES) -> tuple[Tensor, ...]:
        """One value for each input."""
        generator = Generator().manual_seed(0)
        return tuple(given.example(generator, sizes) for given in self.inputs)


@dataclass(frozen=True, kw_only=True, eq=False)
class Export:
    """A graph to make of a source.

    clauses
        The MUST clauses that it fails, whatever else; none when it is correct.
    precision
        ``float32``, ``float16`` or ``int8-dynamic``.
    """

    name: str
    source: Source
    description: str
    make: Callable[[Path], Path]
    clauses: tuple[str, ...] = ()
    precision: str = "float32"
