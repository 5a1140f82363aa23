"""A process with torch imported that forks a process for every isolated candidate.

It starts without memory of the run: no options, no seed, an environment of five names and its
program on standard input, so forked processes hold nothing of the judge. This module also says
which options --isolated excludes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from ...base.limits import uncollected
from ...base.trusted_path import trusted_path
from ...errors import UsageError

_VARIABLES: Final = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
_PROGRAM: Final = """
import sys
sys.path[:] = [{own!r}, *(path for path in sys.path if path != {own!r})]
sys.path += [path for path in {folders!r} if path not in sys.path]
from conformance.running.isolation.zygote import main
main({control})
"""
_LONGEST: Final = 8192
_FAREWELL: Final = 1.0
_PAUSE: Final = 0.01
_HANDED_OVER: Final = 4  # the socket, the shared memory, where it ended, what it prints


def why_impossible() -> str:
    """Why candidates cannot be isolated on this system, or ""."""
    if not sys.platform.startswith("linux"):
        return f"it needs Linux, and this is {sys.platform}"
    if not hasattr(os, "memfd_create") or not hasattr(os, "pidfd_open"):
        return "this Python was built without memfd_create or pidfd_open"
    return ""


class Zygote:
    """The zygote process; ends with its parent."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = str(Path(__file__).resolve().parents[3])
        program = _PROGRAM.format(own=own, folders=trusted_path(), control=theirs.fileno())
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={
                    **{name: os.environ[name] for name in _VARIABLES if name in os.environ},
                    "OMP_NUM_THREADS": "1",
                },
            )
        assert self._process.stdin is not None  # noqa: S101 (a pipe)
        with self._process.stdin as pipe:
            pipe.write(program.encode())

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the zygote still runs."""
        return self._process.poll() is None

    def client(self) -> socket.socket:
        """A socket on which candidates' processes can be asked for: see :func:`ask`."""
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._control, [b"client"], [theirs.fileno()])
        return own

    def close(self) -> None:
        """End the zygote; running candidates go on until their judge ends them."""
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0 * _FAREWELL)
        self._process.kill()
        self._process.wait()


_ONE: Final[list[Zygote]] = []
_STARTING: Final = threading.Lock()


def new_client() -> socket.socket:
    """Return a socket of this process's zygote, started if none runs.

    Raises UsageError where candidates cannot have a process of their own.
    """
    reason = why_impossible()
    if reason:
        msg = f"candidates cannot be isolated here: {reason}; run without --isolated"
        raise UsageError(msg)
    with _STARTING:
        if not _ONE or not _ONE[0].alive:
            _ONE[:] = [Zygote()]
            atexit.register(_ONE[0].close)
        return _ONE[0].client()


def running() -> list[int]:
    """Return the number of this process's zygote, if any."""
    return [zygote.pid for zygote in _ONE if zygote.alive]


def ask(client: socket.socket, folder: str, memory: int, handed_over: list[int]) -> None:
    """Request a process in a working folder, with a memory limit in bytes.

    Raises OSError when the zygote is gone.
    """
    socket.send_fds(client, [os.fsencode(f"{memory} {folder}")], handed_over)


def _reap(until: float = 0.0) -> None:
    """Reap ended keepers; wait for the rest until the time ``until``."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] or time.monotonic() < until:
            time.sleep(_PAUSE if until else 0.0)


def main(control: int) -> None:
    """Serve clients until the starting process ends."""
    with uncollected():
        from . import sandbox  # noqa: PLC0415 (torch: in the zygote alone)

    sys.argv, sys.orig_argv = [""], []
    del sys.path[0]  # it was put first to find this version; it is on the path behind the others
    sys.path.append(str(Path(__file__).resolve().parents[3]))
    with tempfile.TemporaryDirectory(prefix="candidates-") as scratch:
        _serve(socket.socket(fileno=control), partial(sandbox.keep, scratch=scratch))


def _serve(listening: socket.socket, keep: Callable[..., NoReturn]) -> None:
    clients: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listening, *clients.values()], [], [])
        for end in ready:
            message, descriptors, _, _ = socket.recv_fds(end, _LONGEST, _HANDED_OVER)
            if end is listening:
                if not message:
                    _reap(until=time.monotonic() + _FAREWELL)
                    return
                clients[descriptors[0]] = socket.socket(fileno=descriptors[0])
            elif len(descriptors) == _HANDED_OVER:
                if os.fork() == 0:
                    own, *others = descriptors
                    memory, _, folder = os.fsdecode(message).partition(" ")
                    keep(socket.socket(fileno=own), *others, folder, memory=int(memory))
                for descriptor in descriptors:
                    os.close(descriptor)
                _reap()
            else:
                clients.pop(end.fileno()).close()


# Problems' seeds are multiples of this below 2**43; trying all of them takes days.
_SEEDS: Final = 1 << 30


def check_isolated(
    *, compiled: bool = False, devices: tuple[str, ...] = (), seedless_shard: bool = False
) -> None:
    """Raise UsageError if isolation is impossible here or with the run's options."""
    reason = why_impossible()
    if reason:
        msg = f"candidates cannot be isolated here: {reason}; run without --isolated"
        raise UsageError(msg)
    if compiled:
        msg = "--compile compiles in the judge's process, which --isolated keeps free: drop one"
        raise UsageError(msg)
    if seedless_shard:
        msg = "--isolated draws a seed for each shard, and they would not fit together: give --seed"
        raise UsageError(msg)
    elsewhere = [device for device in devices if device.partition(":")[0] != "cpu"]
    if elsewhere:
        msg = f"--isolated hands tensors over on the CPU, not on {elsewhere[0]}: drop one"
        raise UsageError(msg)


def unforeseen_seed() -> int:
    """Return a seed unknown to candidates before the run; the record tells it afterwards."""
    return secrets.randbelow(_SEEDS)
