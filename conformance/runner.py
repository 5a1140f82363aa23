"""Runs the clauses of one candidate: plan, examples, reduction, result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .candidate import Candidate
from .profile import Profile
from .results import ClauseResult


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One clause to run, in one dtype on one device; ``reason`` says why it is not applicable."""

    id: str
    family: str
    level: str
    dtype: str
    device: str
    reason: str = ""


class CandidateRun:
    """One candidate under one profile and seed. Pools, goldens and bounds are shared by its clauses."""

    def __init__(
        self,
        candidate: Candidate,
        *,
        profile: Profile,
        seed: int = 0,
        dtypes: tuple[str, ...] | None = None,
        devices: tuple[str, ...] | None = None,
        only: tuple[str, ...] = (),
        skip: tuple[str, ...] = (),
    ) -> None:
        self.candidate = candidate

    def planned(self) -> list[Planned]:
        """Every selected clause in every dtype, in order, the not-applicable ones too."""
        raise NotImplementedError

    def run(
        self, planned: Planned, on_example: Callable[[dict[str, Any]], None] | None = None
    ) -> ClauseResult:
        """Run one clause. ``on_example`` gets each problem (plain data) before it is tried."""
        raise NotImplementedError
