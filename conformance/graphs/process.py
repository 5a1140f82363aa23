"""Runs a graph in a child process with limits, one child for many runs."""

from __future__ import annotations

import dataclasses
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from .child import START_SECONDS, Child
from .limits import Limits
from .lost import GraphLost, GraphRefused
from .protocol import Array, Arrays, Head

__all__ = ["DEFAULT", "Array", "Feeds", "GraphProcess", "Limits", "Setting"]

Feeds = Mapping[str, Array]
LEVELS: Final = ("disabled", "basic", "extended", "all")
_ONNX_ALONE: Final = ("header", "defects")
_CPU: Final = "CPUExecutionProvider"
# After a hang the next run may take a part of the time, as an endless loop is met in every example:
# but always many times what the slowest run took that came to an end.
_SHRINK: Final = 4.0
_LEAST_SECONDS: Final = 0.5
_TIMES_THE_SLOWEST: Final = 20.0
# Bytes of a model file that are read and optimised in a second, on a slow disk.
_OPENED_A_SECOND: Final = 50e6
_OPENING: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How the runtime opens a graph.

    level
        onnxruntime's graph optimisation: ``disabled``, ``basic``, ``extended`` or ``all``.
    child
        Which process runs it: any other number than 0 has one of its own, with its own sessions.
    """

    level: str = "all"
    provider: str = _CPU
    child: int = 0


DEFAULT: Final = Setting()


class GraphProcess:
    """A graph in a child process; the child starts with the first run and after each loss."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self.path = path
        self.limits = limits or Limits()
        self._children: dict[tuple[bool, int], Child] = {}
        self._opened: set[tuple[int, Setting, tuple[str, ...]]] = set()
        self._seconds = self.limits.wall_seconds
        self._slowest = 0.0
        self._lock = threading.Lock()
        self._ending = weakref.finalize(self, _close_all, self._children)

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
        return self.ask("run", feeds, setting=setting, taps=taps)[1]

    def open(self, *, setting: Setting = DEFAULT) -> None:
        """Open the graph without running it; raises as ``run`` does."""
        self.ask("open", setting=setting)

    def providers(self) -> list[str]:
        """The execution providers of the runtime in the child."""
        return list(self.ask("providers")[0]["providers"])

    def ask(
        self,
        do: str,
        feeds: Feeds | None = None,
        *,
        setting: Setting = DEFAULT,
        taps: Sequence[str] = (),
    ) -> tuple[Head, Arrays]:
        """The child's answer to a request; raises GraphRefused, GraphLost."""
        asked = {
            "do": do,
            "level": setting.level,
            "provider": setting.provider,
            "taps": list(taps),
            "answer": self.limits.answer,
        }
        with self._lock:
            place = (setting.provider == _CPU, setting.child)
            child = self._child(place, do)
            opening = self._opening(child, setting, tuple(taps))
            seconds = self._seconds + opening
            started = time.monotonic()
            try:
                answer = child.ask(asked, feeds or {}, seconds)
            except GraphRefused:
                raise
            except BaseException as lost:  # Ctrl-C as well: the child is gone
                self._children.pop(place, None)
                if isinstance(lost, GraphLost) and lost.kind == "hung":
                    self._hurry()
                raise
            if not opening:  # reading and optimising a file says nothing about its runs
                self._slowest = max(self._slowest, time.monotonic() - started)
            return answer

    def _hurry(self) -> None:
        """Wait less for the next run."""
        least = max(_LEAST_SECONDS, _TIMES_THE_SLOWEST * self._slowest)
        self._seconds = min(self._seconds, max(self._seconds / _SHRINK, least))

    def _child(self, place: tuple[bool, int], do: str) -> Child:
        """The child of a place, with the libraries imported that a request needs."""
        child = self._children.get(place)
        if child is not None and not child.alive:  # ended from outside: no fault of the next run
            child.kill()
            child = None
        if child is None:
            # Accelerators reserve far more address space than they use.
            memory = self.limits.memory if place[0] else 0
            child = Child(self.path, dataclasses.replace(self.limits, memory=memory))
            self._children[place] = child
        library = "onnx" if do in _ONNX_ALONE else "onnxruntime"
        if library not in child.imported:
            try:
                child.ask({"do": "import", "library": library}, {}, START_SECONDS)
            except (GraphLost, GraphRefused) as error:
                child.kill()
                del self._children[place]
                msg = f"could not start: its process {error}"
                raise GraphLost(msg, kind="crashed") from None
            child.imported.add(library)
        return child

    def _opening(self, child: Child, setting: Setting, taps: tuple[str, ...]) -> float:
        """Seconds that reading the file may take where it is opened first."""
        key = (child.pid, setting, taps)
        if key in self._opened:
            return 0.0
        self._opened.add(key)
        return _OPENING + (self.path.stat().st_size if self.path.exists() else 0) / _OPENED_A_SECOND

    def close(self) -> None:
        """End the children; a later run starts new ones."""
        _close_all(self._children)


def _close_all(children: dict[tuple[bool, int], Child]) -> None:
    while children:
        children.popitem()[1].close()
