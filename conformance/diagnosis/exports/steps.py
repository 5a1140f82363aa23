"""The steps from a module to its graph in the runtime, and what each answers to some inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from ...base.results import Violation
from ...calls.calling import CandidateFailure, arguments, guarded, read_answer
from ...clauses.export_runs import HIGHEST, LOWEST, other_providers
from ...clauses.subject import Subject
from ...graphs.opened import OpenedGraph
from ...graphs.process import Setting
from ...problems.inputs import Inputs

SOURCE: Final = "source"
PROGRAM: Final = "exported program"
AT_LOWEST: Final = "graph at the lowest level"
AT_HIGHEST: Final = "graph at the highest level"
# Between the lowest and the highest.
MIDDLE: Final = ("basic", "extended")

Forward = Callable[..., Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One step: ``setting`` is the runtime's, None for what runs in torch."""

    name: str
    forward: Forward
    setting: Setting | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What a step answers; None with what is wrong where it gives no answer."""

    step: Step
    output: Tensor | None = None
    violation: Violation | None = None

    @property
    def text(self) -> str:
        """How it gave no answer, "" when it did."""
        return "" if self.violation is None else self.violation.message


def steps(subject: Subject, graph: OpenedGraph) -> Iterator[Step]:
    """Every step that can be run, the module first."""
    if graph.source is not None:
        yield Step(name=SOURCE, forward=graph.source)
    if graph.exported is not None:
        yield Step(name=PROGRAM, forward=graph.exported)
    for name, setting in ((AT_LOWEST, LOWEST), (AT_HIGHEST, HIGHEST)):
        yield Step(name=name, forward=graph.forward(setting), setting=setting)
    for provider in other_providers(subject.candidate):
        setting = Setting(provider=provider)
        yield Step(name=f"graph on {provider}", forward=graph.forward(setting), setting=setting)


def outcome(step: Step, inputs: Inputs) -> Outcome:
    """What a step answers to some inputs."""
    try:
        answer = read_answer(guarded(step.forward, *arguments(inputs)), inputs)
    except CandidateFailure as failure:
        return Outcome(step=step, violation=failure.violation)
    return Outcome(step=step, output=answer.output)
