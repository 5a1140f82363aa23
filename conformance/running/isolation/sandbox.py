"""A candidate's process: forked, confined as far as the system allows, watched and ended.

Three processes: the keeper, on the judge's side, ends the other two when the judge goes away; the
first process of the namespaces, whose end ends every process inside; and the candidate's process.
Without namespaces the keeper searches for remaining processes.
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
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

import psutil
import torch

from ...base.printable_text import size_text
from ...graphs.protocol import ProtocolError
from ...graphs.server import grant_cpu
from . import kernel
from .served import serve
from .wire import OWN_NUMBERS, TOO_MUCH, Arena, send

_FILES: Final = 256 << 20
_OPEN_FILES: Final = 512
_PROCESSES: Final = 256
_MOMENT: Final = 0.001
_PAUSE: Final = 100  # milliseconds between two looks at what it has started
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
    """In a forked process: start the candidate's process, wait for it, remove every descendant.

    The candidate's process answers at ``end``. ``status`` receives its end ("exit 0", "signal 11",
    "memory" above the limit, descendants included), ``output`` its printed text. ``folder`` is the
    working folder, ``scratch`` an empty writable folder. ``memory`` is its limit in bytes beyond
    the memory of the forking process.
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
        mounted = kernel.own_mounts(scratch, min(_FILES, memory))
        _report(status, _forked(candidate), end)

    child = _forked(first if inside else candidate)
    os.close(arena)
    waiting = select.poll()
    waiting.register(end.fileno(), 0)  # hangs up when the judge closes its end
    waiting.register(os.pidfd_open(child), select.POLLIN)
    while not (gone := [number for number, _ in waiting.poll(_PAUSE)]):
        _reap(but=child)
        if together(_list_processes(child, inside=inside), memory) > memory:
            with contextlib.suppress(OSError):
                os.write(status, TOO_MUCH.encode())
            break
    if end.fileno() in gone or not gone:
        os.kill(child, signal.SIGKILL)
    if inside:  # all others there end with the first
        os.waitpid(child, 0)
    else:
        _report(status, child, None)
        _end_all(child)


def _list_processes(child: int, *, inside: bool) -> list[int]:
    """List the candidate's processes by their numbers in this namespace's /proc."""
    if inside and not Path("/proc/self").exists():  # those of their namespace, and no other
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 (many a second)
    every, new = [], [child if inside else os.getpid()]
    while new:
        every += new
        new = [each for parent in new for each in _children(parent)]
    return every


def _children(parent: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):  # it has ended
        for task in os.listdir(f"/proc/{parent}/task"):  # noqa: PTH208 (as above)
            text = Path(f"/proc/{parent}/task/{task}/children").read_text(encoding="ascii")
            found += [int(number) for number in text.split()]
    return found


def together(processes: Sequence[int], most: int) -> int:
    """Return the bytes of anonymous memory of several processes; 0 for one, limited by itself.

    Only if the rough sum exceeds ``most`` is shared memory divided among its users: slower.
    """
    if len(processes) < len(("the first", "the candidate's", "one that it has started")):
        return 0
    rough = sum(_held(each, "status", ("RssAnon:", "RssShmem:")) for each in processes)
    if rough <= most:
        return rough
    return sum(_held(each, "smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")) for each in processes)


def _held(process: int, file: str, names: tuple[str, ...]) -> int:
    """Sum the named lines of a file of /proc/PID, in bytes."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{process}/{file}").read_text(encoding="utf-8", errors="replace")
        lines = (line.split() for line in text.splitlines() if line.startswith(names))
        return sum(int(line[1]) << 10 for line in lines)
    return 0


def _forked(what: Callable[[], None]) -> int:
    """Fork a process that runs a function and ends; returns its number."""
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
    """Wait for ``child``, reaping further children, and write its exit code or signal."""
    if end is not None:
        end.close()
    while True:
        ended, result = os.waitpid(-1, 0)
        if ended == child:
            break
    code = os.waitstatus_to_exitcode(result)
    with contextlib.suppress(OSError):  # the judge may be gone
        os.write(status, (f"signal {-code}" if code < 0 else f"exit {code}").encode())


def _end_all(group: int) -> None:
    """End every descendant: children forked twice have become children of this process.

    A signal to their process group reaches all of them, however fast they fork.
    """
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.killpg(group, signal.SIGKILL)
            _reap()
            time.sleep(_MOMENT)
    while left := psutil.Process().children(recursive=True):  # where they could leave it
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        _reap()


def _reap(but: int = 0) -> None:
    """Reap ended children, except the child ``but``, awaited elsewhere."""
    look = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, look)) and ended.si_pid != but:
            os.waitpid(ended.si_pid, 0)


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
    """In the candidate's process: confine it, report the limits that hold, and serve."""
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
    kernel.drop_privileges()
    filtered = kernel.filter_calls(inside=inside, mounted=mounted)
    shut = kernel.write_only_below(scratch, sees_devices=not mounted)
    claims = {
        "own process": True,
        OWN_NUMBERS: inside,
        "no network": inside or filtered,
        "no local sockets": filtered,
        "files read-only": mounted or (shut.files and filtered),
        "no terminal": mounted or (shut.devices and filtered),
    }
    held = [claim for claim, holds in claims.items() if holds]
    limits = _limited(memory, inside=inside, filtered=filtered)
    held.append(f"limits on {', '.join(limits)}")
    send(end, {"of": 0, "held": held})
    with contextlib.suppress(EOFError, OSError, ProtocolError):
        serve(end, shared, before_each=allow_time)


def allow_time() -> None:
    """Grant this process the processor time of one more request.

    A run, and the candidate's process, may last hours.
    """
    grant_cpu(_SECONDS)


def _forget_the_judge() -> None:
    """Remove the modules that a judged process does not need from the table of modules."""
    for name in [name for name in sys.modules if name.startswith(_ISOLATING)]:
        del sys.modules[name]
    del sys.modules[_ISOLATING.partition(".")[0]].running


def _limited(memory: int, *, inside: bool, filtered: bool) -> list[str]:
    """Set resource limits and describe them; files in memory, which escape them, are refused."""
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    space = used * resource.getpagesize() + memory
    whole = filtered and Path("/proc/thread-self/children").exists()
    memory_text = f"memory ({size_text(memory)}{'' if whole else ' a process'})"
    limits = [
        (resource.RLIMIT_AS, space, memory_text),
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
