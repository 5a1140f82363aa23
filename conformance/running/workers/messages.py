"""The messages between the command line's process and its workers: plain data, no torch.

Also: reading messages, a worker's printed output, and the versions and machine named in records.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import queue
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, metadata, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from ...base.expected import ExpectedFailure
from ...base.limits import is_slow
from ...base.parameter_names import OptionParameter
from ...base.profile import DEFAULT_PROFILE, DTYPES, WHOLE, GraphOptions, Shard
from ...base.record import Reading, SiteEntry
from ..clause_run import PlannedClause

_LAST_WORDS: Final = 2000  # bytes
PLAN_TARGETS: Final = "conformance.running.workers.planning:plan_targets"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The targets, the profile and the choices of a run: a worker can start over from them.

    ``loader`` names the function (``conformance.module:function``) that makes plans of the options
    in the worker: called like ``plan_targets``, returning plans with ``loaded()``. ``dtypes`` and
    ``devices`` replace the declared ones. ``only`` and ``skip`` are globs of clause slugs.
    ``graph_options`` are for the graphs among the targets. Without ``preflight`` layers are not
    built while loading: their builder killed a worker. Without ``trials`` no call is made then: a
    replay is the first call of its process. With ``compile`` each candidate also runs through
    torch.compile. A ``shard`` runs only its part of the examples. ``databases`` name the stores of
    failing problems. ``unchecked`` are globs of parameters that may stay unchecked. Without
    ``explain`` failures are neither reduced nor diagnosed. With ``exitfirst`` the run ends with the
    first failing MUST; clauses in ``first`` run before all others. With ``in_turn`` every clause
    has one example before any has many. When ``isolated``, candidates run in processes that cannot
    reach the judge's. ``max_memory`` limits a worker, and an isolated candidate's process, in
    bytes; None: ``usual_limit()``. With ``promises``, keywords of ``conformance.core`` as literals,
    each target names a function and promises exactly the keywords.
    """

    targets: tuple[str, ...]
    profile: str = DEFAULT_PROFILE
    seed: int = 0
    dtypes: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    preflight: bool = True
    trials: bool = True
    compile: bool = False
    loader: str = PLAN_TARGETS
    graph_options: GraphOptions = field(default_factory=GraphOptions)
    shard: Shard = WHOLE
    databases: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    explain: bool = True
    exitfirst: bool = False
    in_turn: bool = False
    isolated: bool = False
    first: tuple[str, ...] = ()
    max_memory: int | None = None
    promises: dict[str, Any] | None = None

    def knowing(self, loaded: Sequence[Loaded]) -> RunOptions:
        """The options of a further worker of a run, whose first one has loaded the targets."""
        del loaded
        return self


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A candidate as the report needs it, with its plan.

    ``deviations`` are the fields in which the semantics differs from the standard, except the
    causal alignment, a choice of every kernel. ``mistaken``: sentences on the deviations nobody
    chooses on purpose. ``gauge``: facts not verified and why, "" if none. ``location``: file and
    line of the source. ``notes``: sentences for the record. ``unchecked``: parameters that look
    like options but are never given. ``unjudged``: what could not be judged; only a failure is then
    certain. ``site``: the place in a whole model from which the attention was cut; ``sites``: all
    places of a whole model. ``reading``: the facts read from a candidate without a declaration.
    ``call_seconds``: the time of a trial call, 0.0 without one.
    """

    name: str
    target: str
    kind: str
    declaration: dict[str, Any] = field(default_factory=dict)
    gauge: str = ""
    deviations: tuple[str, ...] = ()
    expected: tuple[ExpectedFailure, ...] = ()
    planned: tuple[PlannedClause, ...] = ()
    location: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    unchecked: tuple[OptionParameter, ...] = ()
    mistaken: tuple[str, ...] = ()
    unjudged: str = ""
    isolation: str = ""
    site: SiteEntry | None = None
    reading: Reading | None = None
    sites: tuple[SiteEntry, ...] = ()
    call_seconds: float = 0.0

    @property
    def is_slow(self) -> bool:
        """Whether calls are slow: then few are made, the most telling ones first."""
        return is_slow(self.call_seconds)

    @property
    def deviations_said(self) -> str:
        """The deviations with their values: what is declared, or was read of a site."""
        values = self.declaration.get("semantics", {})
        fields = (
            f"{one}={_short(values[one])}" if one in values else one for one in self.deviations
        )
        read = self.site is not None or self.reading is not None
        verb = "computes with" if read else "declares"
        usual = ""
        if self.site is not None and "scale" in self.deviations:
            usual = _usual_scale(self.site)
        return f"it {verb} {', '.join(fields)}, other than the standard{usual}"


def _usual_scale(site: SiteEntry) -> str:
    """Describe the usual scale for a site's head size, "" for an unknown size."""
    size, heads, scale = site.get("head_size"), site.get("heads"), site.get("scale")
    if not size:
        return ""
    usual = f"1/sqrt of the head size {size} is {size**-0.5:.4g}"
    if heads and scale and f"{scale:.4g}" == f"{(heads * size) ** -0.5:.4g}":
        usual += f"; its scale is that of the width of all heads, {heads * size}"
    return f" ({usual})"


def _short(value: str) -> str:
    try:
        return f"{float(value):.4g}"
    except ValueError:
        return f"{value:.60}"


@dataclass(frozen=True, kw_only=True)
class Order:
    """Conditions for running a clause.

    ``seconds``: no example begins later; None: no limit. A ``deferred`` failure is not reduced; it
    is reduced and diagnosed when handed back as ``failure`` (the entry of a record). ``round`` is 0
    except in profiles that explore. After ``most`` examples a clause is laid aside, and continues
    when run again. All searches for names of a candidate's mistakes take at most ``search`` seconds
    together.
    """

    seconds: float | None = None
    deferred: bool = False
    failure: dict[str, Any] | None = None
    round: int = 0
    most: int | None = None
    search: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The specification and the environment, sent by a worker before loading.

    ``sentences``, ``levels`` and ``origins`` are by slug; the specification's own clauses have no
    origin. ``elsewhere``: slugs of clauses that never apply in one process on a CPU. ``clauses``:
    the texts of reports on each clause besides its results.
    """

    environment: dict[str, Any]
    specification: str
    sentences: dict[str, str]
    levels: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()
    clauses: dict[str, dict[str, str]] = field(default_factory=dict)


Event = tuple[str, Any]


class Inbox:
    """The complete messages received over a connection.

    A thread reads them: waiting for the rest of half a message has no time limit.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._whole: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._whole.put(self.connection.recv_bytes())
        self._whole.put(None)

    def next(self, seconds: float) -> bytes:
        """The next message; raises TimeoutError where none comes, EOFError where none ever will."""
        try:
            message = self._whole.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if message is None:
            raise EOFError
        return message

    def close(self) -> None:
        """Close the connection, also if an unknown process holds the other end."""
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(self.connection.fileno())) as end,
        ):
            end.shutdown(socket.SHUT_RDWR)  # the thread would not notice that it is closed
        self._reader.join()
        self.connection.close()


class LastWords:
    """The last bytes printed by a worker, read by a thread during the worker's life."""

    def __init__(self, listen: Connection) -> None:
        self._words = bytearray()
        threading.Thread(target=self._drain, args=(listen,), daemon=True).start()

    def _drain(self, listen: Connection) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(listen.fileno(), 65536):
                self._words.extend(chunk)
                del self._words[:-_LAST_WORDS]
        listen.close()

    def line(self) -> str:
        """The last line, such as the message of an abort; "" for none."""
        lines = self._words.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def environment() -> dict[str, Any]:
    """Return versions and platform as plain data; the device of a run without devices.

    The faults of torch's own operations on this machine are included.
    """
    import torch  # noqa: PLC0415 (whoever reads messages must not load it)

    from ...calls.platform_faults import platform_fault  # noqa: PLC0415

    faults = filter(None, map(platform_fault, DTYPES))
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # a plain text: a TorchVersion would load torch again
        "numpy": package_version("numpy"),
        "hypothesis": package_version("hypothesis"),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": "cpu",
        "cpu": f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}",
        "faults": "; ".join(faults) or "none found",
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or "unknown"


def project_url(name: str, label: str) -> str:
    """Return the URL a distribution publishes under a label, such as Documentation, or ""."""
    try:
        urls = metadata(name).get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    parts = (entry.partition(",") for entry in urls)
    return next((url.strip() for key, _, url in parts if key.strip() == label), "")


def package_version(name: str) -> str:
    """A distribution's version, ``unknown`` when it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
