"""The program of a graph's process: opens one model file and runs it as often as it is asked.

It is started by :mod:`.child`, talks over the socket that is its standard input and ends with it.
Module level stays light: onnxruntime is imported with the first run, onnx when a tensor inside the
graph is asked for, torch never.
"""

from __future__ import annotations

import importlib
import os
import select
import socket
import sys
import threading
from pathlib import Path
from typing import Any, Final

from .limits import confine, grant_cpu
from .protocol import Arrays, Head, receive, send
from .wording import sentence

OUT_OF_MEMORY: Final = 86  # the exit status that says so
_LARGEST_FEEDS: Final = 1 << 40  # the parent knows what it sends
_OUT_OF_MEMORY_WORDS: Final = ("bad_alloc", "bad allocation", "Failed to allocate memory")


def main(path: str, memory: str, cpu_seconds: str) -> None:
    """Serve one model file until the parent goes away."""
    confine(int(memory))
    parent = socket.socket(fileno=0)
    threading.Thread(target=_follow_parent, args=(parent,), daemon=True).start()
    model = Path(path)
    os.chdir(model.parent)  # external data are found from there, whatever onnxruntime is given
    try:
        _serve(parent, _Server(model), float(cpu_seconds))
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except (EOFError, OSError):
        os._exit(0)  # the parent is gone


def _follow_parent(parent: socket.socket) -> None:
    """End this process with its parent, even amid a run that never ends."""
    if hasattr(select, "poll"):
        watch = select.poll()
        watch.register(parent, getattr(select, "POLLRDHUP", 0))  # a hang-up is always told
        watch.poll()
        os._exit(0)


def _serve(parent: socket.socket, server: _Server, cpu_seconds: float) -> None:
    while True:
        asked, feeds = receive(parent, most=_LARGEST_FEEDS)
        grant_cpu(cpu_seconds)
        try:
            head, arrays = server.answer(asked, feeds)
            send(parent, head, arrays)
        except (EOFError, OSError):
            raise
        except Exception as error:  # whatever onnx or onnxruntime say of a graph
            if _out_of_memory(error):
                raise MemoryError from error
            send(parent, {"refused": sentence(error), "error": type(error).__name__}, {})


class _Server:
    """What one process knows of its model file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sessions: Any = None

    def answer(self, asked: Head, feeds: Arrays) -> tuple[Head, Arrays]:
        """The answer to one message; raises whatever the libraries raise."""
        do = asked["do"]
        if do == "import":
            importlib.import_module(asked["library"])
            return {}, {}
        if do == "run":
            return {}, self._opened().run(asked, feeds)
        if do == "providers":
            return {"providers": self._opened().providers()}, {}
        if do == "open":
            self._opened().open(asked)
            return {}, {}
        return {"found": _inspected(do, self._path)}, {}

    def _opened(self) -> Any:
        if self._sessions is None:
            from .sessions import Sessions  # noqa: PLC0415 (imports onnxruntime)

            self._sessions = Sessions(self._path)
        return self._sessions


def _inspected(do: str, path: Path) -> Any:
    """What onnx says of the file; it is imported here only."""
    if do == "header":
        from .parsing import header  # noqa: PLC0415

        return header(path)
    from .checks import defects  # noqa: PLC0415

    return defects(path)


def _out_of_memory(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, MemoryError) or any(word in text for word in _OUT_OF_MEMORY_WORDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
