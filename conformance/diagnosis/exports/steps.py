"""The steps from a module to its graph in the runtime, and where on the way answers depart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from torch import Tensor

from ...base.results import Violation
from ...calls.calling import CandidateFailure, arguments, guarded, read_answer
from ...clauses.export_runs import HIGHEST, LOWEST, agree, measured_spread, other_providers
from ...clauses.subject import Subject
from ...graphs.opened import OpenedGraph
from ...graphs.process import Setting
from ...oracle.comparison import compare
from ...problems.inputs import Inputs

SOURCE: Final = "source"
PROGRAM: Final = "exported program"
AT_LOWEST: Final = "graph at the lowest level"
AT_HIGHEST: Final = "graph at the highest level"
# Between the lowest and the highest.
MIDDLE: Final = ("basic", "extended")

Forward = Callable[..., Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportStep:
    """One step: ``setting`` is the runtime's, None for what runs in torch."""

    name: str
    forward: Forward
    setting: Setting | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class StepResult:
    """What a step answers; None with what is wrong where it gives no answer."""

    step: ExportStep
    output: Tensor | None = None
    violation: Violation | None = None

    @property
    def text(self) -> str:
        """How it gave no answer, "" when it did."""
        return "" if self.violation is None else self.violation.message


def steps(subject: Subject, graph: OpenedGraph) -> Iterator[ExportStep]:
    """Every step that can be run, the module first."""
    if graph.source is not None:
        yield ExportStep(name=SOURCE, forward=graph.source)
    if graph.exported is not None:
        yield ExportStep(name=PROGRAM, forward=graph.exported)
    for name, setting in ((AT_LOWEST, LOWEST), (AT_HIGHEST, HIGHEST)):
        yield ExportStep(name=name, forward=graph.forward(setting), setting=setting)
    for provider in other_providers(subject.candidate):
        setting = Setting(provider=provider)
        yield ExportStep(
            name=f"graph on {provider}", forward=graph.forward(setting), setting=setting
        )


def outcome(step: ExportStep, inputs: Inputs) -> StepResult:
    """What a step answers to some inputs."""
    try:
        answer = read_answer(guarded(step.forward, *arguments(inputs)), inputs)
    except CandidateFailure as failure:
        return StepResult(step=step, violation=failure.violation)
    return StepResult(step=step, output=answer.output)


class Trail:
    """The outcomes of all steps for some inputs.

    absolute
        Whether the first answer is held against the golden one, or only each against the one
        before it.
    sharp
        Whether the golden bound is the smallest that is known to hold.
    """

    def __init__(
        self,
        subject: Subject,
        inputs: Inputs,
        outcomes: Sequence[StepResult],
        *,
        absolute: bool,
        sharp: bool = False,
    ) -> None:
        self.subject = subject
        self.inputs = inputs
        self.outcomes = _that_tell(outcomes)
        self.absolute = absolute and subject.candidate.golden_known
        self.sharp = sharp

    @cached_property
    def departures(self) -> list[int]:
        """The numbers of the steps whose answer departs from what came before."""
        return [number for number in range(len(self.outcomes)) if self._departs(number)]

    def is_wrong(self, number: int) -> bool:
        """Whether an answer is not the golden one; False where there is none."""
        output = self.outcomes[number].output
        if output is None or not self.subject.candidate.golden_known:
            return output is None
        expected, bound, judged = self._golden
        found = compare(output, expected, bound, judged=judged.expand(output.shape))
        return bool(found.kind)

    @cached_property
    def _golden(self) -> tuple[Tensor, Tensor, Tensor]:
        """The golden answer, its bound, and the rows about which something is promised."""
        known = self.subject.golden(self.inputs)
        promised = self.subject.declaration.empty_rows != "any"
        rows = known.representable if promised else known.judged
        if not self.sharp:
            return known.output, known.bound, rows
        sharper = self.subject.yardstick(self.inputs)
        return sharper.output, sharper.bound, rows

    def _departs(self, number: int) -> bool:
        this = self.outcomes[number]
        if number == 0:
            return (self.absolute or this.output is None) and self.is_wrong(0)
        before = self._before(number)
        if this.output is None or self.outcomes[before].output is None:
            return this.output is None and self.outcomes[before].output is not None
        if self.absolute and self.is_wrong(number) and not self.is_wrong(before):
            return True
        return not self._agree(self.outcomes[before], this)

    def _before(self, number: int) -> int:
        """The step that a step is compared with: every provider with the best of the CPU's."""
        names = [outcome.step.name for outcome in self.outcomes]
        top = names.index(AT_HIGHEST) if AT_HIGHEST in names else number
        return top if number > top else number - 1

    def _agree(self, one: StepResult, other: StepResult) -> bool:
        if one.output is None or other.output is None:
            return False

        def spread() -> Tensor:
            return measured_spread(self.subject, self.inputs, one.step.forward)

        try:
            found = agree(self.subject, self.inputs, one.output, other.output, "", spread=spread)
        except CandidateFailure:  # it answers the first call and not the second
            return False
        return found.violation is None


def _that_tell(outcomes: Sequence[StepResult]) -> list[StepResult]:
    """Without the steps in torch that give no answer where the graph gives one.

    They say nothing then: a program need not be what a graph was traced from.
    """
    answered = any(one.output is not None for one in outcomes if one.step.setting is not None)
    return [
        one
        for one in outcomes
        if one.output is not None or one.step.setting is not None or not answered
    ]


def with_step(outcomes: Sequence[StepResult], outcome: StepResult) -> list[StepResult]:
    """The graph's first outcome and another one: for finding a level between."""
    lowest = [one for one in outcomes if one.step.setting is not None][:1]
    named = dataclasses.replace(outcome.step, name=AT_HIGHEST)
    return [*lowest, dataclasses.replace(outcome, step=named)]
