"""Runs code and refuses its effects: files written, processes started, the network used.

Effects are known from Python's audit events, not from the code's text; reading is no effect.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

_CHANGES_FILES: Final = frozenset(
    "os.chmod os.chown os.link os.mkdir os.remove os.rename os.rmdir os.symlink os.truncate "
    "os.utime".split()
)
_PROCESSES: Final = ("subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn")
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


class EffectError(PermissionError):
    """The code's effect, in words; the effect was refused."""


class _Watch(threading.local):
    active: bool = False


_WATCH: Final = _Watch()
_HOOKS: Final[list[object]] = []


@contextlib.contextmanager
def without_effects() -> Iterator[None]:
    """Refuse with EffectError any write, process, network use or prompt of this thread.

    Reading during an import is allowed; the compiled form of a module is not kept.
    """
    if not _HOOKS:  # a hook stays as long as the process
        _HOOKS.append(_refuse)
        sys.addaudithook(_refuse)
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    _WATCH.active = True
    try:
        yield
    finally:
        _WATCH.active = False
        sys.dont_write_bytecode = kept


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if _WATCH.active and (effect := _effect(event, arguments)):
        msg = f"it {effect}, which is not done for a value of a notebook"
        raise EffectError(msg)


def _effect(event: str, arguments: tuple[Any, ...]) -> str:
    """What an event does to the world outside the process, as a verb with its object, or ""."""
    if event == "open":
        path, _, flags = arguments
        return f"writes {path}" if flags & _WRITES and path != os.devnull else ""
    if event in _CHANGES_FILES:
        return f"changes {arguments[0]}"
    if event.startswith(_PROCESSES):
        return "starts a process"
    if event.startswith("socket.") and event != "socket.__new__":
        return "uses the network"
    return "asks for input" if event == "builtins.input" else ""
