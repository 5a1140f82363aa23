"""What the process of a graph may use, and how it holds itself to it."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

if sys.platform != "win32":
    import resource


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one child may use: bytes of address space, seconds of CPU and of wall a run.

    answer
        Bytes that the outputs of one run may have together.
    """

    memory: int = 8 << 30
    cpu_seconds: float = 20.0
    wall_seconds: float = 10.0
    answer: int = 1 << 30


def confine(memory: int) -> None:
    """Limit the address space of this process (0: no limit), and leave no core files behind.

    Where the system knows no such limits nothing happens: then only the wall's clock holds.
    """
    if sys.platform == "win32":
        return
    _lower(resource.RLIMIT_CORE, 0)
    if memory:
        _lower(resource.RLIMIT_AS, memory)
    # When the machine itself runs short, the system shall end this process and not its parent.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _lower(which: int, limit: int) -> None:
    """Lower a limit for good, but never raise it."""
    soft, hard = resource.getrlimit(which)
    for known in (soft, hard):
        if known != resource.RLIM_INFINITY:
            limit = min(limit, known)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(which, (limit, limit))


def grant_cpu(seconds: float) -> None:
    """Let this process use some more seconds of CPU; then the system ends it with SIGXCPU."""
    if sys.platform == "win32":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(time.process_time() + seconds)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def size_text(size: int) -> str:
    """Bytes for readers: ``8 GiB``, ``512 MiB``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"
