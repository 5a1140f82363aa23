"""Finds where an answer first leaves its bound between a module and its graph in the runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from torch import Tensor

from ...base.results import Violation
from ...calls.calling import CandidateFailure, arguments, guarded, read_answer
from ...calls.recording import Recording
from ...clauses.export_file import feeds_of, has_influence
from ...clauses.export_runs import HIGHEST, LOWEST, agree, measured_spread, other_providers
from ...clauses.subject import Subject
from ...graphs.opened import OpenedGraph
from ...graphs.process import Setting
from ...oracle.comparison import compare
from ...problems.inputs import Inputs
from .stages import OUTPUT, SPOKEN, first_stage

SOURCE: Final = "source"
PROGRAM: Final = "exported program"
AT_LOWEST: Final = "graph at the lowest level"
AT_HIGHEST: Final = "graph at the highest level"
# Between the lowest and the highest.
MIDDLE: Final = ("basic", "extended")

Forward = Callable[..., Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportStep:
    """One step: ``setting`` is the runtime's, None for steps in torch."""

    name: str
    forward: Forward
    setting: Setting | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class StepResult:
    """The answer of a step, or the violation that left it without an answer."""

    step: ExportStep
    output: Tensor | None = None
    violation: Violation | None = None

    @property
    def text(self) -> str:
        """The message of the violation, "" if the step answered."""
        return "" if self.violation is None else self.violation.message


def steps(subject: Subject, graph: OpenedGraph) -> Iterator[ExportStep]:
    """Yield every step that can be run, the module first."""
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
    """Return the answer of a step to inputs."""
    try:
        answer = read_answer(guarded(step.forward, *arguments(inputs)), inputs)
    except CandidateFailure as failure:
        return StepResult(step=step, violation=failure.violation)
    return StepResult(step=step, output=answer.output)


class Trail:
    """The outcomes of all steps for inputs.

    absolute
        Whether the first answer is compared with golden, or each only with the one before.
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
        """The indices of steps whose answer departs from earlier ones."""
        return [number for number in range(len(self.outcomes)) if self._departs(number)]

    def is_wrong(self, number: int) -> bool:
        """Whether an answer is missing or differs from golden."""
        output = self.outcomes[number].output
        if output is None or not self.subject.candidate.golden_known:
            return output is None
        expected, bound, judged = self._golden
        found = compare(output, expected, bound, judged=judged.expand(output.shape))
        return bool(found.kind)

    @cached_property
    def _golden(self) -> tuple[Tensor, Tensor, Tensor]:
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
        before = self._number_before(number)
        if this.output is None or self.outcomes[before].output is None:
            return this.output is None and self.outcomes[before].output is not None
        if self.absolute and self.is_wrong(number) and not self.is_wrong(before):
            return True
        return not self._agree(self.outcomes[before], this)

    def _number_before(self, number: int) -> int:
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
    """Drop torch steps without an answer if the graph answers.

    They say nothing then: a program need not be the graph's origin.
    """
    answered = any(one.output is not None for one in outcomes if one.step.setting is not None)
    return [
        one
        for one in outcomes
        if one.output is not None or one.step.setting is not None or not answered
    ]


def pair_with_first(outcomes: Sequence[StepResult], outcome: StepResult) -> list[StepResult]:
    """Return the graph's first outcome and a further one, to find a level between."""
    lowest = [one for one in outcomes if one.step.setting is not None][:1]
    named = dataclasses.replace(outcome.step, name=AT_HIGHEST)
    return [*lowest, dataclasses.replace(outcome, step=named)]


def sentence(trail: Trail, number: int, stage: str, level: str) -> str:
    """Return the sentence for a person: the step, its stage, and the conclusion."""
    this = trail.outcomes[number]
    text = _step_sentence(trail, number, level)
    if this.text:
        return f"{text} ({this.text})"
    inside = f"; inside the graph, {SPOKEN[stage]} are the first to be wrong" if stage else ""
    return text + inside.replace("projection are", "projection is")


def _step_sentence(trail: Trail, number: int, level: str) -> str:
    names = [one.step.name for one in trail.outcomes]
    step, later = names[number], [names[at] for at in trail.departures if at > number]
    gives = "gives no answer" if trail.outcomes[number].output is None else "is wrong"
    if step == SOURCE:
        again = f", and the answer changes again in the {later[0]}" if later else ""
        return f"the source itself {gives}{again or ': the export is faithful'}"
    if step == PROGRAM:
        return "torch.export is to blame: the source is right, the exported program departs"
    if step == AT_HIGHEST:
        return (
            f"the graph is right until the runtime optimises it: it departs at the level {level!r}"
        )
    if step != AT_LOWEST:
        return f"the provider is to blame: the {step} departs from the graph on the CPU"
    if SOURCE in names or PROGRAM in names:
        verb = "gives no answer" if trail.outcomes[number].output is None else "departs"
        before = names[number - 1]
        return (
            f"the export is to blame: the {before} is right, the graph {verb} at the lowest level"
        )
    return (
        f"the graph {gives} with nothing optimised; name its module (--source) to see whether that "
        "is wrong, too"
    )


def _entry(
    step: str,
    text: str,
    steps: Sequence[tuple[str, bool, str]],
    *,
    stage: str = "",
    level: str = "",
) -> dict[str, Any]:
    return {
        "step": step,
        "stage": stage,
        "level": level,
        "text": text,
        "steps": [{"step": name, "departs": departs, "text": why} for name, departs, why in steps],
    }


def first_ignoring(
    graph: OpenedGraph, inputs: Inputs, name: str, some: Sequence[ExportStep]
) -> dict[str, Any] | None:
    """Return the first step whose answer ignores an input; None if all depend on it."""
    role = next((role for role in graph.reading.inputs if role.name == name), None)
    if role is None:  # what failed was no input
        return None
    feeds = feeds_of(graph, inputs)
    reads: list[tuple[str, bool]] = []
    for step in some:
        run = getattr(step.forward, "run", None)
        if run is None:  # a declared candidate takes no feeds
            continue
        try:
            reads.append((step.name, has_influence(run, role, feeds)))
        except CandidateFailure:
            continue
    number = next((at for at, (_, read) in enumerate(reads) if not read), None)
    if number is None:
        return None
    blamed = reads[number][0]
    before = reads[number - 1][0] if number else ""
    text = f"the {before} reads the input {name!r}, the {blamed} does not"
    if not before:
        text = f"the {blamed} does not read the input {name!r}"
    if blamed == SOURCE:
        text = f"the source itself does not read {name!r}: the export is faithful"
    return _entry(blamed, text, [(one, at == number, "") for at, (one, _) in enumerate(reads)])


def first_answering(outcomes: Sequence[StepResult]) -> dict[str, Any] | None:
    """Return the first step that answers an invalid call; None if all refuse."""
    answers = [outcome.output is not None for outcome in outcomes]
    if True not in answers:
        return None
    number = answers.index(True)
    step = outcomes[number].step.name
    before = outcomes[number - 1].step.name if number else ""
    text = f"the {before} refuses this, the {step} answers it"
    if not before:
        text = f"the {step} does not refuse this"
    if step == SOURCE:
        text = "the source itself does not refuse this: the export is faithful"
    every = enumerate(outcomes)
    return _entry(step, text, [(one.step.name, at == number, one.text) for at, one in every])


# Clauses that compare steps with each other: an error common to all steps does not fail them.
MATCHES: Final = "export.matches-source"
RELATIVE: Final = (MATCHES, "export.optimisation-levels", "export.providers")
INFLUENCE: Final = "export.inputs-matter"
# Violations that cost a process or all of its time: blamed once.
_LOST: Final = ("crashed", "hung")
# The calls of an example that are examined: the first ones.
_MOST_CALLS: Final = 4

Alive = Callable[[], None]


class Blamer:
    """Blames the failures of one graph in one dtype."""

    def __init__(self, subject: Subject, graph: OpenedGraph) -> None:
        self.subject = subject
        self.graph = graph
        self._lost: dict[str, dict[str, Any] | None] = {}

    def blame(
        self, clause: str, violation: Violation, recording: Recording, alive: Alive = lambda: None
    ) -> dict[str, Any] | None:
        """Return the step and stage to blame for a failure; None if no call shows a step.

        ``step`` and ``stage`` are names ("" for an unknown stage), ``level`` is the first departing
        level if optimisation departs, ``text`` is a sentence, and ``steps`` says which steps
        depart. ``alive`` is called before each step.
        """
        kind = violation.kind
        if kind in self._lost:
            return self._lost[kind]
        if clause == INFLUENCE and violation.got is not None:
            return self._first_ignoring(str(violation.got), recording)
        found = self._blamed(clause, violation, recording, alive)
        if kind in _LOST:
            self._lost[kind] = found
        return found

    def _first_ignoring(self, name: str, recording: Recording) -> dict[str, Any] | None:
        if not recording.calls:
            return None
        some = list(steps(self.subject, self.graph))
        return first_ignoring(self.graph, recording.calls[0].inputs, name, some)

    def _blamed(
        self, clause: str, violation: Violation, recording: Recording, alive: Alive
    ) -> dict[str, Any] | None:
        every = list({id(call.inputs): call.inputs for call in recording.calls}.values())
        some = [inputs for inputs in every if self._has_answer(inputs)][:_MOST_CALLS]
        answers = [(inputs, self._outcomes(inputs, alive)) for inputs in some]
        if every and not some and violation.kind == "not-raised":
            return first_answering(self._outcomes(every[-1], alive))
        for sharp in (False, True):
            for inputs, outcomes in answers:
                absolute = clause not in RELATIVE
                trail = Trail(self.subject, inputs, outcomes, absolute=absolute, sharp=sharp)
                if trail.departures:
                    return self._blame_of(self._trusted(trail))
        if not every and clause == MATCHES and self.graph.lacking:
            return self._blame_lacking_input()
        return None

    def _trusted(self, trail: Trail) -> Trail:
        """Drop the golden from the trail if the mask was read off a graph that may be wrong.

        This applies if the source departs and the graph departs from the source.
        """
        roles = [
            self.graph.declaration.inputs.get(role.name, {}) for role in self.graph.reading.masks
        ]
        guessed = trail.inputs.masked and not all("role" in one for one in roles)
        if not guessed or trail.departures[0] != 0 or len(trail.departures) == 1:
            return trail
        return Trail(self.subject, trail.inputs, trail.outcomes, absolute=False)

    def _blame_lacking_input(self) -> dict[str, Any]:
        names = ", ".join(self.graph.lacking)
        return _entry(AT_LOWEST, f"the export is to blame: the graph has no input for {names}", [])

    def _has_answer(self, inputs: Inputs) -> bool:
        """Whether a right answer exists: a call may be made to be refused."""
        if not self.subject.candidate.golden_known:
            return True
        try:
            self.subject.golden(inputs)
        except (ValueError, RuntimeError, TypeError, IndexError):
            return False
        return True

    def _outcomes(self, inputs: Inputs, alive: Alive) -> list[StepResult]:
        outcomes = []
        for step in steps(self.subject, self.graph):
            alive()
            outcomes.append(outcome(step, inputs))
        return outcomes

    def _blame_of(self, trail: Trail) -> dict[str, Any]:
        number = trail.departures[0]
        names = [one.step.name for one in trail.outcomes]
        step = names[number]
        stage = self._stage(trail, number)
        level = self._level(trail) if step == AT_HIGHEST else ""
        every = enumerate(trail.outcomes)
        return _entry(
            step,
            sentence(trail, number, stage, level),
            [(one.step.name, at in trail.departures, one.text) for at, one in every],
            stage=stage,
            level=level,
        )

    def _stage(self, trail: Trail, number: int) -> str:
        step = trail.outcomes[number].step
        at = number if step.setting is not None else self._lowest(trail)
        found = trail.outcomes[at]
        setting = found.step.setting
        known = self.subject.candidate.golden_known
        if not known or setting is None or found.output is None or not trail.is_wrong(at):
            return ""
        try:
            stage = first_stage(self.subject, self.graph, trail.inputs, setting)
        except CandidateFailure:
            return ""
        if stage or step.name == AT_HIGHEST:  # tapped stages are not fused
            return stage
        stages = self.graph.projections.stages
        return OUTPUT if stages.weights or stages.heads else ""

    def _lowest(self, trail: Trail) -> int:
        names = [one.step.name for one in trail.outcomes]
        return names.index(AT_LOWEST)

    def _level(self, trail: Trail) -> str:
        for level in MIDDLE:
            setting = Setting(level=level)
            step = ExportStep(name=level, forward=self.graph.forward(setting), setting=setting)
            tried = pair_with_first(trail.outcomes, outcome(step, trail.inputs))
            if Trail(self.subject, trail.inputs, tried, absolute=False).departures:
                return level
        return "all"
