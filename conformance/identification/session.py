"""``conformance identify`` but for options and views: a worker, the job in it, the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..environment import package_version
from ..messages import RunOptions
from ..supervisor import DEFAULT_TIMEOUT, Supervisor, WorkerLost

SCHEMA: Final = 1
_LOADER: Final = "conformance.identification.thing:things_of"
_JOB: Final = "conformance.identification.job:identify"
Progress = Callable[[str, int, int], None]


def identify(
    target: str,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    progress: Progress = lambda _doing, _done, _total: None,
) -> dict[str, Any]:
    """The record of one target.

    A thing that hangs or dies is said in the record's ``reason``. Raises UsageError for a target
    that cannot be loaded, HarnessError when no worker can run.
    """
    options = RunOptions(targets=(target,), loader=_LOADER)
    doing = "how it is called"

    def hear(_step: str, what: Any) -> None:
        nonlocal doing
        doing = str(what)
        progress(f"probing {what}", 0, 0)

    with Supervisor(options, timeout=timeout) as supervisor:
        progress("starting", 0, 0)
        ready = supervisor.start()
        progress("loading", 0, 0)
        loaded = supervisor.load()[0]
        try:
            found = supervisor.perform(0, _JOB, None, hear)
        except WorkerLost as lost:
            found = {
                "target": target,
                "name": loaded.name,
                "form": loaded.kind,
                "identified": False,
                "reason": f"it {lost} (while probing {doing})",
                "facts": [],
                "declaration": None,
            }
    head = {
        "schema": SCHEMA,
        "tool": {
            "name": "attention-conformance",
            "version": package_version("attention-conformance"),
        },
        "environment": ready.environment,
    }
    return {**head, **found}
