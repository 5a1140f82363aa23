"""The worker's job of ``conformance identify``: load the targets, identify one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..identification.implementation import Implementation, implementation_at
from ..identification.job import identify
from ..running.workers.messages import Loaded, RunOptions


@dataclass(frozen=True)
class IdentifyPlan:
    """A worker's implementation to identify, without clauses to run."""

    implementation: Implementation

    def loaded(self) -> Loaded:
        """Plain data for the supervisor."""
        own = self.implementation
        return Loaded(name=own.name, target=own.target, kind=own.form)


def plans_of(
    options: RunOptions, tell: Callable[[str, str], None] = lambda _what, _name: None
) -> list[IdentifyPlan]:
    """The objects of the targets; raises UsageError with one sentence."""
    plans = []
    for target in options.targets:
        tell("loading", target)
        plans.append(IdentifyPlan(implementation_at(target)))
    return plans


def run(plan: IdentifyPlan, as_observed: Any, tell: Callable[[str, str], None]) -> dict[str, Any]:
    """The record of one implementation."""
    return identify(plan.implementation, as_observed, tell)
