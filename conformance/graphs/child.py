"""One child process that holds a graph, as its parent sees it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..errors import UsageError
from .limits import Limits, size_text
from .lost import GraphLost, GraphRefused
from .protocol import Array, Arrays, Head, ProtocolError, receive, send
from .server import OUT_OF_MEMORY

START_SECONDS: Final = 120.0  # importing onnxruntime from a cold disk
_FAREWELL: Final = 2.0
_LAST_WORDS: Final = 1 << 16
# The working folder is not on the path, and nothing that a user exports is read: -I.
_PROGRAM: Final = """
import sys
path, memory, seconds, *folders = sys.argv[1:]
sys.path += [folder for folder in folders if folder not in sys.path]
from conformance.graphs.server import main
main(path, memory, seconds)
"""
_LIBRARIES: Final = ("numpy", "onnxruntime", "onnx", "ml_dtypes")
_ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)


class Child:
    """A process started for one model file; it lives until it is closed or lost.

    ``imported`` are the libraries that it is known to have loaded.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self._limits = limits
        ours, theirs = socket.socketpair()
        self._words, output = os.pipe()
        # A child that prints more than a pipe holds must not wait for a reader.
        os.set_blocking(output, False)
        os.set_blocking(self._words, False)
        try:
            self._process = subprocess.Popen(  # noqa: S603 (our own program)
                _command(path, limits),
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C and Ctrl-Z on the terminal are not for it
                env={**os.environ, **_ONE_THREAD},
            )
        except BaseException:
            ours.close()
            os.close(self._words)
            raise
        finally:
            theirs.close()
            os.close(output)
        self._end = ours
        self.imported: set[str] = set()

    def ask(self, head: Head, feeds: Mapping[str, Array], seconds: float) -> tuple[Head, Arrays]:
        """The answer to a message; raises GraphRefused, and GraphLost after which it is closed."""
        deadline = time.monotonic() + seconds
        self._hear()
        try:
            self._end.settimeout(seconds)
            send(self._end, head, feeds)
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

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process, gently at first: it follows the end of its standard input."""
        self._end.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_FAREWELL)
        self.kill()

    def kill(self) -> None:
        """End the process at once; nothing of it is left."""
        self._end.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        words, self._words = self._words, -1
        if words >= 0:
            os.close(words)

    def _died(self) -> GraphLost:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_FAREWELL)
        status, words = self._process.poll(), self._hear()
        self.kill()
        if status == -getattr(signal, "SIGXCPU", 0):
            told = f"used more than {self._limits.cpu_seconds:g} s of CPU and was stopped"
            return GraphLost(told, kind="hung")
        if status == OUT_OF_MEMORY:
            told = f"ran out of the {size_text(self._limits.memory)} it may use"
            return GraphLost(told, kind="crashed")
        return GraphLost(f"{_cause(status)}{_quoted(words)}", kind="crashed")

    def _hear(self) -> bytes:
        """What the process printed since the last time."""
        with contextlib.suppress(OSError):
            return os.read(self._words, _LAST_WORDS)
        return b""


def _command(path: Path, limits: Limits) -> list[str]:
    given = [str(path.absolute()), str(limits.memory), str(limits.cpu_seconds)]
    return [sys.executable, "-I", "-c", _PROGRAM, *given, *_folders()]


def _folders() -> list[str]:
    """Where this process finds our package and the libraries: -I forgets PYTHONPATH."""
    found = [str(Path(__file__).resolve().parents[2])]
    for name in _LIBRARIES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            found.append(str(Path(spec.origin).parents[1]))
    return list(dict.fromkeys(found))


def _refusal(answer: Head) -> Exception:
    error, text = str(answer["error"]), str(answer["refused"])
    if error in ("ImportError", "ModuleNotFoundError"):
        return UsageError(f"graphs cannot be run here: {text}; install onnx and onnxruntime")
    return GraphRefused(text if error == "GraphRefused" else f"{error}: {text}".rstrip(": "))


def _cause(status: int | None) -> str:
    if status is None:
        return "lost its process"
    if status >= 0:
        return f"ended its process (exit status {status})"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (the system may have run out of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _quoted(words: bytes) -> str:
    """The last line that the process printed, such as the message of an abort."""
    lines = [line.strip() for line in words.decode(errors="replace").splitlines() if line.strip()]
    return f", after printing {lines[-1][:300]!r}" if lines else ""
