"""Workers of a run on the machines of a Ray cluster: ``--cluster``, with the extra ``ray``.

A worker process under ``--jobs`` corresponds to a Ray task. The supervisor, which stops and
restarts candidates, runs in the task: a hanging or dying candidate is a verdict, as on one machine.
Ray places tasks by resources, ships the targets' code and repeats the work of a lost machine.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import itertools
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self

import psutil

from ...base.files import COPIED_FROM, path_in_repository
from ...base.limits import MOST_WORKERS, PER_WORKER, Deadline, Share
from ...base.printable_text import printable
from ...base.record import EXIT_HARNESS
from ...errors import UsageError
from ...targets.target_strings import path_of
from ..databases import is_on_this_machine
from .messages import Loaded, Ready, RunOptions, package_version
from .pool import OURS, DoJob, Job, Reported, TaskOrder, WorkerPool, default_jobs, plans_of, serve
from .supervisor import HarnessError, OutOfTime, Supervisor

OPTION: Final = "--cluster"
LOCAL: Final = "local"
AUTO: Final = "auto"
# Seconds for: connecting to a port, an answer of the cluster, cancelling a task, and the last
# answers of tasks after the deadline.
_PORT_LIMIT: Final = 5.0
_STATUS_LIMIT: Final = 30.0
_FAREWELL: Final = 5.0
_LAST_ANSWERS: Final = 5.0
_SLICE: Final = 0.2
# Seconds between probes of the head, and of its longest absence. Ray tries again for a minute, and
# then ends this process with its own words and exit code.
_LOOK: Final = 2.0
_HEAD_LIMIT: Final = 20.0
# Results are small: a local cluster needs little of the machine's memory for them.
_STORE: Final = 128 * 1024 * 1024
# Set where Ray runs the command as a job, with the folder already shipped.
_IN_A_JOB: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_STATUS: Final = "import sys; from ray.scripts.scripts import main; sys.argv[0] = 'ray'; main()"


def check_cluster(options: RunOptions, address: str) -> None:
    """Raise UsageError for a run that names files outside the working folder."""
    if address == LOCAL:
        return
    named = options.graph_options.record_options().values()
    correct = getattr(options, "correct", ())  # of a run of teeth
    for target in (*options.targets, *correct, *filter(None, named)):
        path = path_of(target)
        outside = path is not None and not path.resolve().is_relative_to(Path.cwd().resolve())
        if outside or Path(target).is_absolute():
            msg = (
                f"{target} would not be on the other machines: the working folder alone is sent to "
                f"them, so give a path below it, or {OPTION} {LOCAL}"
            )
            raise UsageError(msg)
    for place in options.databases:
        if is_on_this_machine(place):
            msg = (
                f"--database {place} is a folder of this machine: the workers of a cluster need "
                "redis://HOST:PORT/NUMBER"
            )
            raise UsageError(msg)


class Cluster:
    """A cluster of Ray while a run uses it; the context connects and disconnects.

    ``address`` is Ray's: ``auto`` for the cluster of this machine, HOST:PORT of the head, ``local``
    for a cluster on this machine that ends with the run. ``share`` is the resources of a worker.
    ``jobs`` limits the number of workers; None: as many as fit. Connecting raises UsageError where
    no cluster answers or no machine has room for a worker's share.
    """

    def __init__(self, address: str, share: Share, jobs: int | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            msg = f"{OPTION} needs Ray: pip install 'attention-conformance[ray]'"
            raise UsageError(msg)
        if address == AUTO:
            address = os.environ.get("RAY_ADDRESS") or AUTO
        _check_address(address)
        self.address, self.share, self.jobs = address, share, jobs or 1
        self._most = jobs
        self._quiet = contextlib.ExitStack()
        self._machines: list[Mapping[str, float]] = []
        self._tasks: dict[object, Any] = {}
        self._head = ""
        self._seen = self._looked = 0.0

    def __enter__(self) -> Self:
        import ray  # noqa: PLC0415 (an extra)

        # Ray prints lost machines to this stream, in the midst of a record.
        nowhere = self._quiet.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        self._quiet.enter_context(contextlib.redirect_stdout(nowhere))
        try:
            with _own_handlers():
                self._connect()
            self._head = ray.get_runtime_context().gcs_address
            self._seen = self._looked = time.monotonic()
            self._machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            places = self.places(self.share)
            if not places:
                msg = (
                    f"no machine of the cluster {self.address} has what a worker takes "
                    f"({self.share}): {PER_WORKER} says what that is, 'ray status' what there is"
                )
                raise UsageError(msg)  # noqa: TRY301 (as any other error here)
        except BaseException:
            self.__exit__()
            raise
        self.jobs = min(self._most or places, MOST_WORKERS)
        return self

    def __exit__(self, *_: object) -> None:
        import ray  # noqa: PLC0415 (an extra)

        if self._is_lost:  # Ray would wait for the head, and end by SIGSEGV
            atexit.register(_leave)
        else:
            ray.shutdown()
        self._quiet.close()

    @property
    def _is_lost(self) -> bool:
        return self._looked - self._seen > _HEAD_LIMIT

    def _require_head(self) -> None:
        """Probe the cluster's head from time to time; raises HarnessError after a long absence."""
        if self._head and time.monotonic() - self._looked > _LOOK:
            self._looked = time.monotonic()
            if not _unreachable(self._head):
                self._seen = self._looked
        if self._is_lost:
            msg = f"the head of the cluster, {self._head}, is gone: what it had to do is not done"
            raise HarnessError(msg)

    def places(self, share: Share) -> int:
        """How many workers with such a share all machines have room for."""
        return sum(map(share.places, self._machines))

    def make_pool(
        self, options: RunOptions, *, jobs: int, timeout: float, deadline: Deadline | None
    ) -> ClusterPool:
        """The workers of a run."""
        return ClusterPool(self, options, jobs=jobs, timeout=timeout, deadline=deadline)

    def answers(
        self,
        task: Callable[..., Iterator[Any]],
        share: Share,
        *arguments: Any,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Generator[Any]:
        """Yield the answers of a remote task as they arrive, and None now and then in between.

        The task is cancelled when the generator is closed. Raises UsageError for arguments that
        cannot be sent, HarnessError where no machine can run the task.
        """
        import ray  # noqa: PLC0415 (an extra)

        # Ray ships a function to the head once, however often it is called.
        known = self._tasks.setdefault(task, ray.remote(task))
        stream = known.options(**share.options()).remote(*arguments)
        try:
            while not stopping():
                if ray.wait([stream], timeout=_SLICE)[0]:
                    answer = next(stream, None)
                    if answer is None:
                        return
                    yield ray.get(answer)
                else:
                    self._require_head()
                    yield None
        except ray.exceptions.RayError as error:
            raise _refusal(error) from None
        finally:
            # The task ends its candidate itself: the candidate's process is in no group of Ray's.
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                if not self._is_lost and not ray.wait([stream.completed()], timeout=0)[0]:
                    ray.cancel(stream)
                    ray.wait([stream.completed()], timeout=_FAREWELL)

    def _connect(self) -> None:
        import ray  # noqa: PLC0415 (an extra)

        more: dict[str, Any] = {}
        if self.address == LOCAL:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            jobs = self._most or default_jobs()
            cpus = math.ceil(jobs * self.share.amounts["CPU"]) if self._most else jobs
            more = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": _STORE}
        elif _IN_A_JOB not in os.environ:
            here = PurePosixPath(path_in_repository(Path.cwd() / "any")).parent.as_posix()
            sent = {"working_dir": str(Path.cwd()), "env_vars": {COPIED_FROM: here}}
            more = {"runtime_env": sent}
        if self.address not in (LOCAL, AUTO):
            _require_answer(self.address)
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR, **more)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            msg = f"the cluster {self.address} cannot be used: {_first_line(error)}"
            if self.address == AUTO and isinstance(error, ConnectionError):
                msg = (
                    f"{OPTION} {AUTO}: this machine is part of no Ray cluster; give its head as "
                    f"HOST:PORT, or {LOCAL} to start one here"
                )
            raise UsageError(msg) from None


def _leave() -> None:
    """End this process and its children after a failure of the harness, without exit handlers."""
    for child in psutil.Process().children(recursive=True):  # a cluster of this machine
        with contextlib.suppress(psutil.Error):
            child.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_HARNESS)


def _check_address(address: str) -> None:
    if address in (LOCAL, AUTO):
        return
    if "://" in address:
        msg = (
            f"{OPTION} {address} is no cluster to work on: give HOST:PORT of its head from one of "
            "its machines, or let 'ray job submit' run the command there"
        )
        raise UsageError(msg)
    host, _, port = address.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= len("65535")
    if not host or not is_number or not 0 < int(port) < 1 << 16:
        msg = f"{OPTION} {address!r} is no address of Ray: give {AUTO}, {LOCAL} or HOST:PORT"
        raise UsageError(msg)


def _require_answer(address: str) -> None:
    """Raise UsageError unless a cluster answers at the address.

    Ray itself tries for two minutes, prints its attempts and may end the process.
    """
    if reason := _unreachable(address):
        msg = f"no Ray cluster answers at {address}: {reason}"
        raise UsageError(msg)
    command = [sys.executable, "-c", _STATUS, "status", "--address", address]
    try:
        # The command is ours, its address is checked.
        subprocess.run(command, capture_output=True, timeout=_STATUS_LIMIT, check=True)  # noqa: S603
    except subprocess.SubprocessError:
        msg = f"what listens at {address} does not answer as a Ray cluster: give the head's port"
        raise UsageError(msg) from None


def _unreachable(address: str) -> str:
    """Return why no connection to HOST:PORT is possible, or ""."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PORT_LIMIT).close()
    except UnicodeError as error:  # of a name that no host can have
        return str(error)
    except OSError as error:
        return str(error.strerror or error)
    return ""


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep the command line's SIGTERM handler: Ray would end the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _first_line(error: BaseException) -> str:
    return printable([*str(error).strip().splitlines(), type(error).__name__][0].strip())


class ClusterPool(WorkerPool):
    """The workers of a run as tasks of Ray; this process only hands out the work.

    The pool's own supervisors start no process: after the deadline they report the remaining
    clauses as not run.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: RunOptions,
        *,
        jobs: int,
        timeout: float,
        deadline: Deadline | None,
    ) -> None:
        super().__init__(options, jobs=jobs, timeout=timeout, deadline=deadline)
        self._cluster, self._options = cluster, options
        self._timeout, self._deadline = timeout, deadline
        self._first: Generator[tuple[str, Any]] | None = None
        self._sent: tuple[object, Any] | None = None  # what does the jobs, and Ray's copy of it

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._first is not None:
            self._first.close()
        super().__exit__(kind, *error)

    def start(self) -> Ready:
        """Start the first worker; raises HarnessError on failure."""
        share = self._cluster.share
        on_gpu = _names_gpu(self._options.devices or ())
        self._first = self._answers(share.add_gpu() if on_gpu else share)
        ready: Ready = self._next("ready")
        return ready

    def load(self) -> list[Loaded]:
        """Load the targets; raises UsageError for unusable targets.

        Where a candidate asks for a GPU the targets are loaded again on a machine with a GPU.
        """
        self._loaded = self._next("loaded")
        share = self._cluster.share.add_gpu()
        if any(map(_wants_gpu, self._loaded)) and self._cluster.places(share):
            self._first = self._answers(share)
            self._next("ready")
            self._loaded = self._next("loaded")
        for supervisor in self._supervisors:
            supervisor.adopt(self._loaded)
        return self._loaded

    def _next(self, expected: str) -> Any:
        """Return the payload of the next answer of the first task, the loading of the targets."""
        assert self._first is not None  # noqa: S101 (start comes first)
        tag, payload = next(self._first)
        if tag == "over":
            raise OutOfTime
        assert tag == expected  # noqa: S101 (serve answers in this order)
        return payload

    def _joins(self, _supervisor: Supervisor) -> bool:
        return True

    def _reports(
        self,
        supervisor: Supervisor,
        do: DoJob[Job, Reported],
        job: Job,
        stopping: Callable[[], bool],
    ) -> Generator[Reported]:
        import ray  # noqa: PLC0415 (an extra)

        index = job if isinstance(job, int) else getattr(job, "index", 0)
        share = self._cluster.share
        if _wants_gpu(self._loaded[index]) and self._cluster.places(share.add_gpu()):
            share = share.add_gpu()
        if self._sent is None or self._sent[0] is not do:
            self._sent = do, ray.put(do)
        received = 0
        with contextlib.closing(
            self._answers(share, self._sent[1], job, index, stopping)
        ) as answers:
            for tag, payload in answers:
                if tag == "over":
                    break
                received += 1
                yield payload
            else:
                return
        yield from itertools.islice(do(supervisor, job, stopping), received, None)

    def _answers(
        self,
        share: Share,
        do: Any = None,
        job: object = None,
        index: int = 0,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Generator[tuple[str, Any]]:
        """Yield the answers of a task as they arrive, last ``over`` if the deadline has passed.

        Raises UsageError if the task refuses.
        """
        deadline = self._deadline
        order = TaskOrder(
            options=self._options,
            timeout=self._timeout,
            limit=None if deadline is None else (deadline.limit, deadline.left()),
            version=package_version(OURS),
            plan=[] if do is None else plans_of([self._loaded[index]]),
            index=index,
        )
        last = math.inf if deadline is None else deadline.last + _LAST_ANSWERS
        for answer in self._cluster.answers(serve, share, order, do, job, stopping=stopping):
            if answer is not None:
                yield _unwrapped(answer)
            elif time.monotonic() >= last:
                yield "over", None
                return


def _unwrapped(answer: tuple[str, Any]) -> tuple[str, Any]:
    """Return an answer, or raise the exception a task reported."""
    tag, payload = answer
    if tag == "refused":
        raise UsageError(payload)
    if tag == "broken":
        raise HarnessError(payload)
    return answer


def _refusal(error: BaseException) -> Exception:
    """Translate an exception of Ray into a UsageError or HarnessError of one sentence."""
    from ray import exceptions  # noqa: PLC0415 (an extra)

    cause = getattr(error, "cause", None)
    if isinstance(cause, ModuleNotFoundError) and str(cause.name).startswith("conformance"):
        name = f"{OURS} {package_version(OURS)}"
        return UsageError(f"the machines of the cluster lack {name}: install it on each of them")
    if isinstance(error, exceptions.RuntimeEnvSetupError):
        return UsageError(f"the working folder could not be sent: {_first_line(error)}")
    if isinstance(error, (exceptions.WorkerCrashedError, exceptions.NodeDiedError)):
        return HarnessError("whoever did a part of the work was lost each time that Ray tried it")
    return HarnessError(f"the cluster failed: {_first_line(cause or error)}")


def _names_gpu(devices: Sequence[str]) -> bool:
    return any(name.partition(":")[0] == "cuda" for name in devices)


def _wants_gpu(loaded: Loaded) -> bool:
    return _names_gpu([planned.device for planned in loaded.planned])
