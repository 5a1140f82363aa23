"""The processes of all ranks of a candidate: started, called and ended together."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import util
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import psutil
import torch.distributed as dist

from ..base.files import scratch
from ..base.printable_text import ending_text
from .calling import RanksUnusableError
from .rank_server import Group, Reply, Request, Source, last_line, serve, unpacked

# Seconds for the remaining ranks to report after one has raised or died.
GRACE: Final = 2.0
# A collective's own limit comes first: then each rank says in which line it has waited.
_BEYOND: Final = 1.0
STARTING: Final = 120.0  # importing torch from a cold disk
_PRELOADED: Final = "conformance.calls.rank_server"
# Groups alive at once, each with all its processes: one for each number of ranks.
_MOST_GROUPS: Final = 5
_LIVE: Final[list[RankProcesses]] = []


def why_impossible() -> str:
    """Why ranks cannot be started on this machine, or ""."""
    if not dist.is_available():
        return "this torch has no torch.distributed"
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return f"they are forked, which {sys.platform} cannot"
    return ""


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """The outcome of a request on one rank: its reply, or how the rank was lost.

    ``lost`` is "", ``died``, ``silent`` or ``absent`` (not called); ``words`` says how the process
    ended, with its last line.
    """

    reply: Reply | None = None
    lost: str = ""
    words: str = ""


class RankProcesses:
    """Ranks started by torch's launcher, in one process group.

    A lost rank ends all, and so does an exception that may leave a message for a later call. The
    next request starts them again.
    """

    def __init__(self, source: Source, count: int, seconds: float) -> None:
        self.count = count
        self._source = source
        self._seconds = seconds
        self._ends: list[Connection] = []
        self._context: Any = None
        self._children: list[BaseProcess] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._finalizer: Any = None
        self._numbers = 0
        self._dropped: list[int] = []
        self.generation = 0

    def number(self) -> int:
        """A new number for a call or a layer that is kept."""
        self._numbers += 1
        return self._numbers

    def drop(self, number: int) -> None:
        """Let the ranks forget the object of a number, with the next request."""
        self._dropped.append(number)

    def send(self, requests: Sequence[Request]) -> list[RankResult]:
        """Send each rank its request and return the replies in order; a late rank is ended.

        Raises RanksUnusableError where the ranks cannot be started.
        """
        if self._context is None:
            self._start()
        _LIVE.append(_LIVE.pop(_LIVE.index(self)))  # the last one used
        dropped, self._dropped = tuple(self._dropped), []
        for request in requests:
            request.drop = dropped
        return self._exchange(requests, self._seconds + _BEYOND)

    def _join(self, folder: str) -> None:
        group = Group(
            store=str(Path(folder) / "group"),
            count=self.count,
            seconds=self._seconds,
            starting=STARTING,
        )
        requests = [Request(do="join", group=group, rank=rank) for rank in range(self.count)]
        refused = [each for each in self._exchange(requests, STARTING) if _failed(each)]
        if refused:
            why = refused[0].words or _message(refused[0])
            msg = f"the ranks of {self._source.shown} cannot be started: {why}"
            raise RanksUnusableError(msg)

    def _start(self) -> None:
        reason = why_impossible()
        if reason:
            msg = f"candidates that span ranks cannot run here: {reason}"
            raise RanksUnusableError(msg)
        from torch.distributed.elastic.multiprocessing import (  # noqa: PLC0415 (takes a moment)
            DefaultLogsSpecs,
            Std,
            start_processes,
        )

        _make_room()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
        for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        _keep_sockets_in(scratch())
        # Processes are forked from one with torch loaded: its first start takes seconds.
        multiprocessing.set_forkserver_preload([_PRELOADED])
        # Before this process waits for its children; a fork forgets its parent's finalizers.
        self._finalizer = util.Finalize(None, self.close, exitpriority=1)
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-ranks-", dir=scratch())
        pairs = [multiprocessing.Pipe() for _ in range(self.count)]
        self._ends = [pair[0] for pair in pairs]
        theirs = {rank: pair[1] for rank, pair in enumerate(pairs)}
        try:
            with _own_signals():
                self._context = start_processes(
                    name="ranks",
                    entrypoint=serve,
                    args=dict.fromkeys(
                        range(self.count), (theirs, self._source, self._folder.name)
                    ),
                    envs={rank: self._environment(rank) for rank in range(self.count)},
                    logs_specs=DefaultLogsSpecs(log_dir=self._folder.name, redirects=Std.ALL),
                    start_method="forkserver",
                )
            started = {each.pid: each for each in multiprocessing.active_children()}
            self._children = [started[pid] for _, pid in sorted(self._context.pids().items())]
            for end in theirs.values():
                end.close()
            self._join(self._folder.name)
        except BaseException:
            for end in theirs.values():
                end.close()
            self.close()
            raise
        _LIVE.append(self)

    def _environment(self, rank: int) -> dict[str, str]:
        """Return the environment variables torch's launcher would set for a rank."""
        own, count = str(rank), str(self.count)
        return {
            "RANK": own,
            "LOCAL_RANK": own,
            "GROUP_RANK": "0",
            "ROLE_RANK": own,
            "WORLD_SIZE": count,
            "LOCAL_WORLD_SIZE": count,
            "ROLE_WORLD_SIZE": count,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }

    def _exchange(self, requests: Sequence[Request], seconds: float) -> list[RankResult]:
        answers = {
            rank: RankResult(lost="absent")
            for rank, each in enumerate(requests)
            if each.do == "rest"
        }
        try:
            for rank, request in enumerate(requests):
                with contextlib.suppress(OSError):  # it is gone: reading says so
                    self._ends[rank].send_bytes(pickle.dumps(request))
            last, failed = time.monotonic() + seconds, False
            # A rank may wait for a rank that waits for the lost one, each until its collective's
            # limit: if this is judged, no rank is stopped before.
            patient = any(each.do in ("die", "rest") for each in requests)
            while len(answers) < self.count:
                waiting = [end for rank, end in enumerate(self._ends) if rank not in answers]
                ready = wait(waiting, max(0.0, last - time.monotonic()))
                if not ready:
                    break
                for end in ready:
                    rank = self._ends.index(end)  # type: ignore[arg-type]  # one of these
                    answers[rank] = self._read(rank)
                    if _failed(answers[rank]) and not failed:
                        failed, now = True, time.monotonic()
                        last = now + seconds if patient else min(last, now + GRACE)
        except BaseException:  # Ctrl-C: what comes later would answer another request
            self.close()
            raise
        every = [answers.get(rank, RankResult(lost="silent")) for rank in range(self.count)]
        if not any(map(_failed, every)):
            return every
        every = [self._worded(rank, each) for rank, each in enumerate(every)]
        if requests[0].do != "meet" and not self._are_even(every):
            self.close()
        return every

    def _are_even(self, every: Sequence[RankResult]) -> bool:
        """Tell whether all ranks have answered, left no message, and still meet.

        A collective message belongs to its group's next operation by number: after equally many
        operations on all ranks, no later operation can read it.
        """
        replies = [each.reply for each in every if each.reply is not None]
        if len(replies) < self.count or any(reply.direct for reply in replies):
            return False
        counts: dict[str, int] = {}
        for reply in replies:
            for name, count in reply.sent.items():
                if counts.setdefault(name, count) != count:
                    return False
        met = self._exchange([Request(do="meet") for _ in replies], GRACE)
        return not any(map(_failed, met))

    def _read(self, rank: int) -> RankResult:
        """Read the reply of a rank; the candidate in its process may write anything."""
        try:
            received = self._ends[rank].recv_bytes()
        except (EOFError, OSError):
            return RankResult(lost="died")
        try:
            return RankResult(reply=unpacked(received))
        except ValueError:
            return RankResult(lost="died", words="sent what is no reply")

    def _worded(self, rank: int, each: RankResult) -> RankResult:
        """Add a lost rank's exit status and last line, before all ranks are ended."""
        if not each.lost or each.words:
            return each
        status = None
        if each.lost == "died":  # its launcher would unpickle what the rank may have written
            process = self._children[rank]
            process.join(GRACE)
            status = process.exitcode
        printed = last_line(self._context.stderrs[rank]) or last_line(self._context.stdouts[rank])
        quoted = f", after printing {printed[:300]!r}" if printed else ""
        return RankResult(
            lost=each.lost, words=f"{ending_text(status) if each.lost == 'died' else ''}{quoted}"
        )

    def close(self) -> None:
        """End all ranks at once; their memory of earlier calls is lost."""
        self.generation += 1
        context, self._context = self._context, None
        for end in self._ends:
            end.close()
        self._ends = []
        if context is not None:
            with contextlib.suppress(ProcessLookupError):
                context.close(signal.SIGKILL)
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.cleanup()
            self._folder = None
        finalizer, self._finalizer = self._finalizer, None
        if finalizer is not None:
            finalizer.cancel()
        if self in _LIVE:
            _LIVE.remove(self)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's signal handlers: torch's launcher sets its own, also for Ctrl-C."""
    names = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]
    handlers = {name: signal.getsignal(name) for name in names}
    try:
        yield
    finally:
        for name, handler in handlers.items():
            if handler is not None and threading.current_thread() is threading.main_thread():
                signal.signal(name, handler)


def _keep_sockets_in(folder: str | None) -> None:
    """Place Python's folder of sockets in ``folder``, unless it exists already."""
    if folder is not None:
        usual, tempfile.tempdir = tempfile.gettempdir(), folder
        try:
            util.get_temp_dir()
        finally:
            tempfile.tempdir = usual


def _make_room() -> None:
    while len(_LIVE) >= _MOST_GROUPS:
        _LIVE[0].close()


def _failed(result: RankResult) -> bool:
    return result.reply is None or result.reply.violation is not None


def _message(failed: RankResult) -> str:
    violation = None if failed.reply is None else failed.reply.violation
    if violation is None:
        return "they gave no answer"
    return violation.message.removeprefix("raised UsageError: ")


def _loopback() -> str:
    """Return the name of the loopback interface, for ranks of one machine."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family == socket.AF_INET and each.address == "127.0.0.1" for each in addresses):
            return name
    return "lo"
