"""Runs a graph in a child process with limits, one child for many runs."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from ..base.patience import Patience, process_state
from ..base.printable_text import ending_text, size_text
from ..errors import UsageError
from .protocol import Array, Arrays, GraphLost, GraphRefused, Head, ProtocolError, receive, send
from .server import OUT_OF_MEMORY, Limits, weights_size

START_SECONDS: Final = 120.0  # importing onnxruntime from a cold disk
_FAREWELL: Final = 2.0
_CEILING: Final = 20.0  # times its limit a starving process may take to read what it is asked
_LAST_WORDS: Final = 1 << 16
# -I: without the working folder in the path, and without a user's variables. The first folder holds
# this package: parent and child have the same version.
_PROGRAM: Final = """
import sys
path, memory, seconds, own, *folders = sys.argv[1:]
sys.path += [folder for folder in (own, *folders) if folder not in sys.path]
sys.path.insert(0, own)
from conformance.graphs.server import main
del sys.path[0]
main(path, memory, seconds)
"""
_LIBRARIES: Final = ("numpy", "onnxruntime", "onnx", "ml_dtypes")
_ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)


class Child:
    """A process started for one model file; it lives until closed or lost.

    ``imported`` names the libraries it has loaded.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self._limits = limits
        own_end, child_end = socket.socketpair()
        self._output, output = os.pipe()
        # A child that prints more than a pipe holds must not block.
        os.set_blocking(output, False)
        os.set_blocking(self._output, False)
        try:
            self._process = subprocess.Popen(  # noqa: S603 (our own program)
                [
                    *(sys.executable, "-I", "-c", _PROGRAM, str(path.absolute())),
                    *(str(limits.memory), str(limits.cpu_seconds), *_folders()),
                ],
                stdin=child_end.fileno(),
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C and Ctrl-Z on the terminal are not for it
                env={**os.environ, **_ONE_THREAD},
            )
        except BaseException:
            own_end.close()
            os.close(self._output)
            raise
        finally:
            child_end.close()
            os.close(output)
        self._end = own_end
        self.imported: set[str] = set()

    def request(
        self, head: Head, feeds: Mapping[str, Array], seconds: float
    ) -> tuple[Head, Arrays]:
        """Return the answer to a message; raises GraphRefused, and GraphLost once closed."""
        self._printed()
        try:
            self._end.settimeout(_CEILING * seconds)
            send(self._end, head, feeds)
            self._await(seconds)
            deadline = time.monotonic() + START_SECONDS  # of an answer that has begun
            answer, arrays = receive(self._end, most=self._limits.answer, deadline=deadline)
        except TimeoutError:
            self.kill()
            msg = f"gave no answer for {seconds:.3g} s and was stopped"
            raise GraphLost(msg, kind="hung") from None
        except ProtocolError as error:
            self.kill()
            msg = f"wrote into its process' memory: it answered with {error}"
            raise GraphLost(msg, kind="crashed") from None
        except (EOFError, OSError):
            raise self._died() from None
        except BaseException:  # Ctrl-C: what comes later would answer another question
            self.kill()
            raise
        if "refused" in answer:
            raise _refusal(answer)
        return answer, arrays

    def _await(self, seconds: float) -> None:
        """Wait for an answer; raises TimeoutError, on a busy machine by processor time."""
        patience = Patience(seconds, lambda: process_state(self.pid))
        while True:
            self._end.settimeout(patience.pause())
            try:
                self._end.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                if patience.is_over():
                    raise
            else:
                return

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process, first gently: it follows the end of its standard input."""
        self._end.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_FAREWELL)
        self.kill()

    def kill(self) -> None:
        """Kill the process at once."""
        self._end.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        output, self._output = self._output, -1
        if output >= 0:
            os.close(output)

    def _died(self) -> GraphLost:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_FAREWELL)
        status, printed = self._process.poll(), self._printed()
        self.kill()
        if status == -getattr(signal, "SIGXCPU", 0):
            why = f"used more than {self._limits.cpu_seconds:g} s of CPU and was stopped"
            return GraphLost(why, kind="hung")
        if status == OUT_OF_MEMORY:
            why = f"ran out of the {size_text(self._limits.memory)} it may use"
            return GraphLost(why, kind="crashed")
        # The last line, such as the message of an abort.
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        quoted = f", after printing {lines[-1][:300]!r}" if lines else ""
        return GraphLost(f"{ending_text(status)}{quoted}", kind="crashed")

    def _printed(self) -> str:
        with contextlib.suppress(OSError):
            return os.read(self._output, _LAST_WORDS).decode(errors="replace")
        return ""


def _folders() -> list[str]:
    """Return the folders of this package and its libraries: -I ignores PYTHONPATH."""
    specs = [importlib.util.find_spec(name) for name in _LIBRARIES]
    places = [Path(spec.origin).parents[1] for spec in specs if spec is not None and spec.origin]
    return list(dict.fromkeys(map(str, (Path(__file__).resolve().parents[2], *places))))


def _refusal(answer: Head) -> Exception:
    error, text = str(answer["error"]), str(answer["refused"])
    if error in ("ImportError", "ModuleNotFoundError"):
        return UsageError(f"graphs cannot be run here: {text}; install onnx and onnxruntime")
    return GraphRefused(text if error == "GraphRefused" else f"{error}: {text}".rstrip(": "))


__all__ = ["DEFAULT", "Array", "Feeds", "GraphProcess", "Limits", "Setting"]

Feeds = Mapping[str, Array]
Run = Callable[[Feeds], Mapping[str, Array]]
LEVELS: Final = ("disabled", "basic", "extended", "all")
_ONNX_ALONE: Final = ("header", "defects")
_CPU: Final = "CPUExecutionProvider"
# After a hang the next run gets a part of the time, as an endless loop recurs in every example: but
# always many times the slowest completed run.
_SHRINK: Final = 4.0
_LEAST_SECONDS: Final = 0.5
_TIMES_THE_SLOWEST: Final = 20.0
# Bytes of a model file read and optimised in a second, on a slow disk.
_OPENED_A_SECOND: Final = 50e6
_OPENING: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How the runtime opens a graph.

    level: onnxruntime's graph optimisation: ``disabled``, ``basic``, ``extended`` or ``all``.
    child: the process running it: numbers other than 0 have their own process and sessions.
    nudge: the seed of a change of each weight by one unit in the last place; 0: no change.
    nudge_size: the relative change of each weight in place of one unit; 0: one unit.
    """

    level: str = "all"
    provider: str = _CPU
    child: int = 0
    nudge: int = 0
    nudge_size: float = 0.0


DEFAULT: Final = Setting()


# For one answer a worker may run a graph several times before its sign of life, for example with
# nudged weights: a run gets a third of the worker's time.
_RUNS: Final = 3
_LONGEST: Final = 1e6
_USUAL: Final = Limits()
_CPU_A_SECOND: Final = _USUAL.cpu_seconds / _USUAL.wall_seconds
_LIMITS: Final = ContextVar("limits", default=_USUAL)


@contextlib.contextmanager
def limited(seconds: float | None, memory: int | None) -> Iterator[None]:
    """Derive the limits of processes made meanwhile from their worker's limits.

    seconds, memory: longest time without an answer, and most bytes; None for the usual.
    """
    limits = _LIMITS.get()
    if seconds is not None:
        wall = min(seconds, _LONGEST) / _RUNS
        limits = dataclasses.replace(limits, wall_seconds=wall, cpu_seconds=wall * _CPU_A_SECOND)
    if memory is not None:  # what is held counts there, address space here
        limits = dataclasses.replace(limits, memory=max(memory, limits.memory))
    before = _LIMITS.set(limits)
    try:
        yield
    finally:
        _LIMITS.reset(before)


class GraphProcess:
    """A graph in a child process; the child starts with the first run and after each loss."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self.path = path
        self.limits = limits or _LIMITS.get()
        self._children: dict[tuple[bool, int], Child] = {}
        self._opened: set[tuple[int, Setting, tuple[str, ...]]] = set()
        self._seconds = self.limits.wall_seconds
        self._slowest = 0.0
        self._lock = threading.Lock()
        self._ending = weakref.finalize(self, _close_all, self._children)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, feeds: Feeds, *, setting: Setting = DEFAULT, taps: Sequence[str] = ()
    ) -> dict[str, Array]:
        """The outputs by name, and the tensors inside the graph that ``taps`` names.

        Raises GraphRefused for what the runtime refuses, GraphLost when the child hangs or dies.
        """
        return self.request("run", feeds, setting=setting, taps=taps)[1]

    def open(self, *, setting: Setting = DEFAULT) -> None:
        """Open the graph without running it; raises as ``run``."""
        self.request("open", setting=setting)

    def providers(self) -> list[str]:
        """The execution providers of the runtime in the child."""
        return list(self.request("providers")[0]["providers"])

    @property
    def pids(self) -> list[int]:
        """The numbers of the children that live."""
        return [child.pid for child in self._children.values() if child.alive]

    def saturates(self) -> bool:
        """Whether the graph multiplies 8-bit integers and this machine cuts the products off."""
        return bool(self.request("saturates")[0]["saturates"])

    def request(
        self,
        do: str,
        feeds: Feeds | None = None,
        *,
        setting: Setting = DEFAULT,
        taps: Sequence[str] = (),
    ) -> tuple[Head, Arrays]:
        """The child's answer to a request; raises GraphRefused, GraphLost."""
        head = {
            "do": do,
            "level": setting.level,
            "provider": setting.provider,
            "taps": list(taps),
            "nudge": setting.nudge,
            "nudge_size": setting.nudge_size,
            "answer": self.limits.answer,
        }
        with self._lock:
            place = (setting.provider == _CPU, setting.child)
            child = self._child(place, do)
            opening = self._opening(child, setting, tuple(taps))
            seconds = self._seconds + opening
            started = time.monotonic()
            try:
                answer = child.request(head, feeds or {}, seconds)
            except GraphRefused:
                raise
            except BaseException as lost:  # Ctrl-C as well: the child is gone
                self._children.pop(place, None)
                if isinstance(lost, GraphLost) and lost.kind == "hung":  # wait less the next time
                    least = max(_LEAST_SECONDS, _TIMES_THE_SLOWEST * self._slowest)
                    self._seconds = min(self._seconds, max(self._seconds / _SHRINK, least))
                raise
            if not opening:  # reading and optimising a file says nothing about its runs
                self._slowest = max(self._slowest, time.monotonic() - started)
            return answer

    def _child(self, place: tuple[bool, int], do: str) -> Child:
        child = self._children.get(place)
        if child is not None and not child.alive:  # ended from outside: no fault of the next run
            child.kill()
            child = None
        if child is None:
            # Weights are mapped. Accelerators reserve far more address space than they use.
            memory = self.limits.memory + weights_size(self.path) if place[0] else 0
            child = Child(self.path, dataclasses.replace(self.limits, memory=memory))
            self._children[place] = child
        library = "onnx" if do in _ONNX_ALONE else "onnxruntime"
        if library not in child.imported:
            try:
                child.request({"do": "import", "library": library}, {}, START_SECONDS)
            except (GraphLost, GraphRefused) as error:
                child.kill()
                del self._children[place]
                msg = f"could not start: its process {error}"
                raise GraphLost(msg, kind="crashed") from None
            child.imported.add(library)
        return child

    def _opening(self, child: Child, setting: Setting, taps: tuple[str, ...]) -> float:
        """Return the seconds for reading the file if this is its first opening."""
        key = (child.pid, setting, taps)
        if key in self._opened:
            return 0.0
        self._opened.add(key)
        return _OPENING + weights_size(self.path) / _OPENED_A_SECOND

    def close(self) -> None:
        """End the children; a later run starts new ones."""
        _close_all(self._children)


def _close_all(children: dict[tuple[bool, int], Child]) -> None:
    while children:
        children.popitem()[1].close()
