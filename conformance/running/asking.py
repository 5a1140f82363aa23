"""What is asked of a candidate's run: a planned clause, and on which terms."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..base.results import ClauseResult
from ..base.tally import Tally


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One clause to run, in one dtype on one device; ``reason`` says why it is not applicable."""

    id: str
    family: str
    level: str
    dtype: str
    device: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How a clause is run: how long, who listens, and what becomes of a failure.

    until
        The moment on the monotonic clock at which no further example is begun.
    on_example
        Gets each problem (plain data) before it is tried, and what was counted before it.
    on_failure
        Gets a failure as it was found, before it is made smaller and named.
    deferred
        A failure is left as it was found: :meth:`CandidateRun.explain_failure` does the rest.
    round
        0 for the examples of the profile, then others for each round of a profile that explores.
    """

    until: float | None = None
    on_example: Callable[[dict[str, Any], Tally], None] = lambda _problem, _tally: None
    on_failure: Callable[[ClauseResult], None] = lambda _result: None
    deferred: bool = False
    round: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.until is not None and time.monotonic() >= self.until


AT_LEISURE = Asking()
