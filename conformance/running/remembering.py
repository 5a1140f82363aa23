"""The job that asks, in the worker, whether the database of failures could be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .workers.loaded import Plan


def trouble_job(plan: Plan, _argument: Any, _tell: Callable[[str, str], None]) -> list[str]:
    """One sentence where a database could not be read or written during the run, else none."""
    memory = plan.run.memory
    if memory is None or not memory.trouble:
        return []
    return [f"failures were not all remembered: the database {memory.trouble}"]
