from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from workspaces import KERNEL, write

from conformance.errors import UsageError
from conformance.running.workers.messages import RunOptions
from conformance.running.workers.pool import WorkerPool
from conformance.running.workers.supervisor import (
    HarnessError,
    OutOfTime,
    Supervisor,
    WorkerLost,
)

pytestmark = pytest.mark.usefixtures("warm_workers")

JOBS = """
import os
import time
from conformance.errors import UsageError


def name_twice(plan, argument, tell):
    tell("naming", plan.candidate.name)
    return [plan.candidate.name] * argument


def refuse(plan, argument, tell):
    raise UsageError(f"{argument} cannot be done")


def fail(plan, argument, tell):
    raise ZeroDivisionError("by the harness")


def die(plan, argument, tell):
    os._exit(7)


def hang(plan, argument, tell):
    time.sleep(600)
"""


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    """A supervisor with one candidate loaded, whose worker can import ``jobs``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write(tmp_path, {"attn.py": KERNEL, "jobs.py": JOBS})
    with Supervisor(RunOptions(targets=("attn.py",), profile="quick"), timeout=15.0) as made:
        made.start()
        made.load()
        yield made


def test_a_job_returns_its_answer_and_tells_on_the_way(supervisor: Supervisor) -> None:
    """A job sees the plan and its argument; what it tells arrives before what it returns."""
    events: list[tuple[str, str]] = []
    answer = supervisor.perform(0, "jobs:name_twice", 2, lambda *event: events.append(event))
    assert answer == ["my_kernel", "my_kernel"]
    assert events == [("naming", "my_kernel")]


def test_what_a_job_refuses_is_bad_input(supervisor: Supervisor) -> None:
    """A UsageError in the worker is a UsageError here, in the same words."""
    with pytest.raises(UsageError, match=r"^this cannot be done$"):
        supervisor.perform(0, "jobs:refuse", "this")


def test_a_job_that_fails_is_the_harness_own_fault(supervisor: Supervisor) -> None:
    """Any other error of a job names the job and the error in one sentence."""
    with pytest.raises(HarnessError, match=r"^jobs:fail raised ZeroDivisionError: by the harness"):
        supervisor.perform(0, "jobs:fail")


@pytest.mark.parametrize(("job", "kind"), [("die", "crashed"), ("hang", "hung")])
def test_a_job_that_takes_the_worker_along(supervisor: Supervisor, job: str, kind: str) -> None:
    """A crash or a hang is reported as such, and the next job meets a new worker."""
    supervisor._timeout = 3.0
    with pytest.raises(WorkerLost) as lost:
        supervisor.perform(0, f"jobs:{job}")
    assert lost.value.kind == kind
    supervisor._timeout = 15.0
    assert supervisor.perform(0, "jobs:name_twice", 1) == ["my_kernel"]


def test_a_worker_that_is_ended_from_here_did_not_crash(supervisor: Supervisor) -> None:
    """Who waits for a worker that the run gives up is out of time: no candidate is blamed."""
    threading.Timer(0.5, supervisor.abandon).start()
    with pytest.raises(OutOfTime):
        supervisor.perform(0, "jobs:hang")


def test_what_one_of_many_jobs_refuses_is_bad_input(supervisor: Supervisor) -> None:
    """A UsageError in the thread of a worker ends the run in the same words."""

    def refuse(worker: Supervisor, job: str, _stopping: Callable[[], bool]) -> Iterator[None]:
        yield worker.perform(0, "jobs:refuse", job)

    with WorkerPool(supervisor._options, timeout=15.0) as pool:
        pool.start()
        pool.load()
        with pytest.raises(UsageError, match=r"^this cannot be done$"):
            pool.work(["this"], refuse, lambda _job, _report: None)
