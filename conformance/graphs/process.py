"""Runs a graph in a child process with limits, one child for many runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one child may use: bytes of address space, seconds of CPU and of wall a run."""

    memory: int = 8 << 30
    cpu_seconds: float = 20.0
    wall_seconds: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How the runtime opens a graph.

    level
        onnxruntime's graph optimisation: ``disabled``, ``basic``, ``extended`` or ``all``.
    """

    level: str = "all"
    provider: str = "CPUExecutionProvider"


DEFAULT: Final = Setting()


class GraphProcess:
    """A graph in a child process; the child starts with the first run and after each loss."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self.path = path
        self.limits = limits or Limits()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(
        self, feeds: Feeds, *, setting: Setting = DEFAULT, taps: Sequence[str] = ()
    ) -> dict[str, Array]:
        """The outputs by name, and the tensors inside the graph that ``taps`` names.

        Raises GraphRefused for what the runtime refuses, GraphLost when the child hangs or dies.
        """
        raise NotImplementedError

    def providers(self) -> list[str]:
        """The execution providers of the runtime in the child."""
        raise NotImplementedError

    def close(self) -> None:
        """End the child."""
