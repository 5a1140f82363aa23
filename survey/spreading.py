"""Libraries on the machines of a Ray cluster: one a task, which makes its environment there."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from conformance.base.limits import read_share
from conformance.running.workers.cluster import LOCAL, Cluster

from . import library, records, sweep
from .library import Library, SurveyError

_CHECKOUT: Final = Path(__file__).resolve().parent.parent
_TOOL: Final = "attention-conformance"
Save = Callable[[Library, records.Record], None]


def survey(
    libraries: Sequence[Library],
    address: str,
    per_worker: Sequence[str],
    save: Save,
    **how: Any,
) -> Iterator[tuple[Library, records.Record]]:
    """The last record of each library, as each is done; ``save`` gets those before, too.

    ``how`` are the arguments of :func:`survey.sweep.judged`. The checkout is sent, as the working
    folder, to machines that are not this one.
    """
    if address != LOCAL and Path.cwd() != _CHECKOUT:
        msg = f"--cluster sends the working folder to the other machines: run it in {_CHECKOUT}"
        raise SurveyError(msg)
    share, stop = read_share(per_worker), threading.Event()
    progress = sys.stdout  # what Ray prints there is hidden as long as it is connected

    def survey_one(one: Library) -> records.Record:
        arguments = (one.name, version(_TOOL), how)
        with closing(
            machines.answers(_on_machine, share, *arguments, stopping=stop.is_set)
        ) as answers:
            said = map(_said, filter(None, answers))
            return sweep.kept(one, said, functools.partial(save, one), progress)

    with Cluster(address, share) as machines, ThreadPoolExecutor(machines.jobs) as threads:
        done = {threads.submit(survey_one, one): one for one in libraries}
        try:
            for future in as_completed(done):
                yield done[future], future.result()
        finally:
            stop.set()
            threads.shutdown(cancel_futures=True)


def _said(answer: records.Record | str) -> records.Record:
    """The record that a machine has made; raises SurveyError for its reason not to."""
    if isinstance(answer, str):
        raise SurveyError(answer)
    return answer


def _on_machine(name: str, tool: str, how: dict[str, Any]) -> Iterator[records.Record | str]:
    """The records of a library, or why there are none, in a process of Ray."""
    if version(_TOOL) != tool:
        yield f"the cluster has {_TOOL} {version(_TOOL)}, this machine {tool}: install the same"
        return
    yield from sweep.judged(library.read(name), **how)
