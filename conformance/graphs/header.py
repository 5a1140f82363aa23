"""What a graph's file says of itself, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# A size, the name of a dynamic axis, or None for one without a name.
Axis = int | str | None


@dataclass(frozen=True, kw_only=True)
class Port:
    """An input or output of a graph.

    dtype
        numpy's name (``float32``, ``int64``, ``bool``), ``bfloat16``, or "" for what is no tensor.
    shape
        One entry an axis; None when the file does not even tell the rank.
    """

    name: str
    dtype: str
    shape: tuple[Axis, ...] | None

    @property
    def rank(self) -> int | None:
        """The number of axes, where the file tells it."""
        return None if self.shape is None else len(self.shape)


@dataclass(frozen=True, kw_only=True)
class Header:
    """A graph's file without its weights.

    inputs
        Those a caller must give: initializers are none of them.
    opsets
        The version of each operator set by domain, "" for the standard's.
    operators
        ``domain::Operator`` of every node, those of subgraphs and functions included, each once.
    external
        The files, relative to the graph's folder, that hold tensors outside the graph's own file.
    external_size
        The bytes of the tensors in them.
    stray
        One sentence for each of the files beside it that are links, or that it does not use.
    random
        The nodes that draw random numbers, such as ``Dropout 'drop' in training mode``.
    """

    path: Path
    ir_version: int
    opsets: Mapping[str, int]
    producer: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    operators: frozenset[str]
    external: tuple[str, ...]
    size: int
    external_size: int = 0
    stray: tuple[str, ...] = ()
    random: tuple[str, ...] = ()

    def input(self, name: str) -> Port:
        """The input of a name; raises KeyError."""
        return {port.name: port for port in self.inputs}[name]
