"""One candidate's process: forked, shut in as far as the system allows, watched, and ended whole.

Three processes: a keeper, which belongs to the judge's side and ends the others when the judge goes
away; in namespaces of their own the first process, with which all others there end; and the one in
which the candidate runs. Without namespaces the keeper looks for what is left.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import psutil
import torch

from ...graphs.protocol import ProtocolError
from ...graphs.server import grant_cpu, size_text
from . import kernel
from .served import serve
from .wire import OWN_NUMBERS, Arena, send

_FILES: Final = 256 << 20
_OPEN_FILES: Final = 512
_PROCESSES: Final = 256
_SECONDS: Final = 3600  # for one request: what goes on behind a call's own limit ends then
_KEPT_VARIABLES: Final = frozenset({"PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH"})
_FAILED: Final = 70
_ISOLATING: Final = str(__package__).rpartition(".")[0]


def keep(
    end: socket.socket,
    arena: int,
    status: int,
    output: int,
    folder: str,
    *,
    scratch: str,
    memory: int,
) -> NoReturn:
    """In a process forked for this: start the candidate's, wait for it, and leave nothing of it.

    It answers at ``end``. ``status`` gets how it ended ("exit 0", "signal 11"), ``output`` what it
    prints. ``folder`` is the working folder, ``scratch`` an empty one where it may write. It may
    take ``memory`` bytes beside those of the process that it is forked from.
    """
    try:
        _keep(end, arena, status, output, folder, scratch, memory)
    finally:
        os._exit(0)


def _keep(
    end: socket.socket,
    arena: int,
    status: int,
    output: int,
    folder: str,
    scratch: str,
    memory: int,
) -> None:
    for which in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(which, signal.SIG_DFL)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(number, target)
    _close_all_but(0, 1, 2, end.fileno(), arena, status)
    kernel.adopt_orphans()
    inside, mounted = kernel.enter_namespaces(), False

    def candidate() -> None:
        os.close(status)
        _run(end, arena, folder, scratch, memory, inside=inside, mounted=mounted)

    def first() -> None:
        nonlocal mounted
        kernel.follow_parent()
        mounted = kernel.own_mounts(scratch, _FILES)
        _report(status, _forked(candidate), end)

    child = _forked(first if inside else candidate)
    os.close(arena)
    waiting = select.poll()
    waiting.register(end.fileno(), 0)  # hangs up when the judge closes its end
    waiting.register(os.pidfd_open(child), select.POLLIN)
    gone = [number for number, _ in waiting.poll()]
    if end.fileno() in gone:
        os.kill(child, signal.SIGKILL)
    if inside:
        os.waitpid(child, 0)
    else:
        _report(status, child, None)
    _end_all()


def _forked(what: Callable[[], None]) -> int:
    """The number of a process that does something and ends."""
    child = os.fork()
    if child:
        return child
    try:
        what()
    except (EOFError, OSError):
        os._exit(0)  # the judge is gone
    except BaseException:  # noqa: BLE001 (whatever it is must not run what its parent would)
        traceback.print_exc()
        os._exit(_FAILED)
    os._exit(0)


def _report(status: int, child: int, end: socket.socket | None) -> None:
    """Wait for a child, whatever else ends meanwhile, and write how it ended."""
    if end is not None:
        end.close()
    while True:
        ended, result = os.waitpid(-1, 0)
        if ended == child:
            break
    code = os.waitstatus_to_exitcode(result)
    os.write(status, (f"signal {-code}" if code < 0 else f"exit {code}").encode())


def _end_all() -> None:
    """End every descendant: those that were forked twice have become children of this process."""
    while left := psutil.Process().children(recursive=True):
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, 0)[0]:
                pass


def _close_all_but(*kept: int) -> None:
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(path.name))


def _run(
    end: socket.socket,
    arena: int,
    folder: str,
    scratch: str,
    memory: int,
    *,
    inside: bool,
    mounted: bool,
) -> None:
    """Shut the door, say what holds, and serve, in the candidate's process."""
    kernel.follow_parent()
    os.setsid()
    os.chdir(folder)
    scratch = tempfile.mkdtemp(dir=scratch)
    shared = Arena(arena)
    os.close(arena)
    for name in set(os.environ) - _KEPT_VARIABLES:
        del os.environ[name]
    os.environ |= {"HOME": scratch, "TMPDIR": scratch, "OMP_NUM_THREADS": "1"}
    tempfile.tempdir = None
    _forget_the_judge()
    torch.set_num_threads(1)
    torch.manual_seed(int.from_bytes(os.urandom(6)))
    random.seed()
    held = ["own process"]
    if inside:
        held += [OWN_NUMBERS, "no network"]
    kernel.drop_privileges()
    if kernel.no_local_sockets():
        held.append("no local sockets")
    if kernel.write_only_below(scratch) or mounted:
        held.append("files read-only")
    held.append(f"limits on {', '.join(_limited(memory, inside=inside))}")
    send(end, {"of": 0, "held": held})
    with contextlib.suppress(EOFError, OSError, ProtocolError):
        serve(end, shared, before_each=allow_time)


def allow_time() -> None:
    """Let this process use as much processor time as a request may, beside what it has used.

    A run may take hours, and its candidate's process may last as long.
    """
    grant_cpu(_SECONDS)


def _forget_the_judge() -> None:
    """Take the modules that only a judged process has from the table of modules."""
    for name in [name for name in sys.modules if name.startswith(_ISOLATING)]:
        del sys.modules[name]
    del sys.modules[_ISOLATING.partition(".")[0]].running


def _limited(memory: int, *, inside: bool) -> list[str]:
    """Set the limits; what they are on."""
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    space = used * resource.getpagesize() + memory
    limits = [
        (resource.RLIMIT_AS, space, f"memory ({size_text(memory)})"),
        (resource.RLIMIT_FSIZE, _FILES, "size of files"),
        (resource.RLIMIT_NOFILE, _OPEN_FILES, "open files"),
        (resource.RLIMIT_CORE, 0, ""),
    ]
    if inside:  # elsewhere it would count all processes of the user
        limits.append((resource.RLIMIT_NPROC, _PROCESSES, ""))
    names = []
    for which, wanted, name in limits:
        _, hard = resource.getrlimit(which)
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(which, (most, most))
            names.append(name)
    allow_time()
    return [*(name for name in names if name), "processor time"]
