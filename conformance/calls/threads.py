"""The numbers of threads used by the libraries of this process.

One number serves all OpenMP libraries, whichever copy of a runtime they have loaded, and numba. A
library starting threads of its own is limited separately.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch

_RUNTIMES: Final = re.compile(r"/lib(gomp|omp|iomp)[^/]*\.so[^/]*$")


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Use this number of threads meanwhile, and a single one afterwards."""
    _set(count)
    try:
        yield
    finally:
        _set(1)


def why_one_thread(count: int = 2) -> str:
    """Why nothing can be asked on so many threads in this process, or ""."""
    with threads(count):
        given = torch.get_num_threads()
    limit = os.environ.get("OMP_THREAD_LIMIT", "")
    limited = limit.isdecimal() and int(limit) < count
    if given >= count and not limited:
        return ""
    why = f"OMP_THREAD_LIMIT is {limit}" if limited else "torch was built without threads"
    return f"it runs on one thread: {why}"


def _set(count: int) -> None:
    torch.set_num_threads(count)
    for runtime in _loaded(_runtimes()):
        runtime.omp_set_num_threads(count)
    numba: Any = sys.modules.get("numba")
    if numba is not None and hasattr(numba, "set_num_threads"):
        numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))


def _runtimes() -> tuple[str, ...]:
    """Return the files of the loaded OpenMP runtimes; none where the system does not say."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(sorted({line.split(maxsplit=5)[-1] for line in lines if _RUNTIMES.search(line)}))


@lru_cache(maxsize=8)
def _loaded(files: tuple[str, ...]) -> tuple[ctypes.CDLL, ...]:
    runtimes = []
    for file in files:
        with contextlib.suppress(OSError):  # a file that was replaced meanwhile
            runtime = ctypes.CDLL(file)
            if hasattr(runtime, "omp_set_num_threads"):
                runtimes.append(runtime)
    return tuple(runtimes)
