"""Runs candidates in this process: objects no worker can import, such as a notebook's.

A hanging call cannot be stopped, and a crash of the candidate ends this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...base.limits import Deadline, unsearched
from ...base.patience import starved_seconds
from ...base.results import ClauseResult
from ...declare.candidate import Candidate
from ...errors import UsageError
from ...targets.loading import named, one_line
from ..clause_run import Progress
from .messages import Loaded, Order, Ready, RunOptions
from .planning import CandidatePlan, check_devices, plan_candidates, run_clause
from .pool import DoJob, Job, Reported, WorkerPool, admit_all
from .supervisor import HarnessError, OutOfTime, Supervisor
from .worker import ready


class InProcess(Supervisor):
    """A supervisor without a worker: existing candidates, called in this process."""

    def __init__(
        self, candidates: Sequence[Candidate], options: RunOptions, deadline: Deadline | None = None
    ) -> None:
        super().__init__(options, deadline=deadline)
        self._candidates = candidates
        self._plans: list[CandidatePlan] = []
        self._current = (0, 0)  # candidate and round
        self._starved_when_loaded = starved_seconds()

    def start(self) -> Ready:
        """The specification and the environment."""
        answer: Ready = ready()
        return answer

    def load(self) -> list[Loaded]:
        """Plan the clauses of the candidates; raises UsageError for an unusable candidate."""
        check_devices(self._options.devices)
        self._plans = plan_candidates(self._candidates, self._options)
        self._loaded = [plan.loaded() for plan in self._plans]
        return self._loaded

    def _starved(self) -> float:
        """Return the seconds this thread has waited for a processor since loading."""
        return max(0.0, starved_seconds() - self._starved_when_loaded)

    def _run(self, index: int, number: int, order: Order, limit: float) -> ClauseResult:
        del limit
        if (index, order.round) != self._current:  # each holds a hundred megabytes
            self._plans[self._current[0]].run.forget()
            self._current = index, order.round
        if self._deadline is not None:
            order = replace(order, seconds=self._left(), search=self._deadline.search)
        clause = self._loaded[index].planned[number]
        if order.seconds == 0.0:
            return self._mark_cut_short(Progress().cut(clause, 0.0))

        def tell(tag: str, _what: Any) -> None:
            if tag == "failure":
                self.on_failure(self._loaded[index], clause.id)

        return self._mark_cut_short(run_clause(self._plans[index].run, clause, order, tell))

    def perform(
        self,
        index: int,
        job: str,
        argument: Any = None,
        on_event: Callable[[str, Any], None] = lambda _step, _what: None,
    ) -> Any:
        """What a job returns for a candidate's plan."""
        if self.is_over:
            raise OutOfTime
        try:
            return named(job)(self._plans[index], argument, on_event)
        except UsageError:
            raise
        except Exception as error:  # a worker would say the same of it
            msg = f"{job} raised {one_line(error)}"
            raise HarnessError(msg) from error


class InProcessPool(WorkerPool):
    """A pool of this process alone."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        options: RunOptions,
        *,
        deadline: Deadline | None = None,
    ) -> None:
        super().__init__(options, jobs=0)
        self._supervisors = [InProcess(candidates, options, deadline)]

    def work(
        self,
        jobs: Sequence[Job],
        do: DoJob[Job, Reported],
        receive: Callable[[Job, Reported], None],
        *,
        admits: Callable[[Job, Reported | None], bool] = admit_all,
        most: int | None = None,
    ) -> None:
        """Do every job in turn, in this thread."""
        del most
        self._supervisors[0].on_failure = self._on_failure
        with unsearched():
            for job in jobs:
                if not admits(job, None):
                    continue
                for report in do(self._supervisors[0], job, lambda: False):
                    if not admits(job, report):
                        break
                    receive(job, report)
