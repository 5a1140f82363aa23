"""Python's garbage collector stays away from hundreds of modules that are loaded at once.

Loading torch makes a million objects that live as long as the process. The collector walks through
all of them again and again, and once more when the process ends.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """What is made meanwhile is never collected, nor looked through for what could be."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
