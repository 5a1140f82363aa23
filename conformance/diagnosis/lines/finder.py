"""Asks a candidate for the line that makes its mistake, on a few problems that it gets wrong."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor

from ...base.files import in_repository
from ...base.printable_text import printable
from ...base.record import LineEntry
from ...calls.calling import CandidateFailure, arguments, guarded
from ...clauses.subject import Subject
from ...problems.inputs import Inputs
from ...tolerance import model
from ..agreement import BatteryAnswer, within
from ..battery import answer_from
from ..mistaken_answer import Combination, act, made_on
from ..mistakes import IMPOSSIBLE, NotExpressible
from .choice import Blamed, blamed
from .matching import KnownValues
from .recording import OperationRecording, Recorder, tensors_of
from .steps import Step, mistaken_steps, right_steps

# Wrong answers on which a line is looked for: all that give one must give the same.
MOST_PROBLEMS: Final = 3
# Explanations that say as much; they must give the same line, too.
MOST_EXPLANATIONS: Final = 3
# Characters of a line that is shown.
LONGEST_LINE: Final = 160
# Candidates whose calls have steps that are known.
_KINDS: Final = ("core", "layer")


class LineFinder:
    """Finds the lines of one candidate in one dtype."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def line(
        self, explanations: Sequence[Combination], wrong: Iterable[BatteryAnswer]
    ) -> LineEntry | None:
        """The line that makes what explains some wrong answers; None where it is not certain.

        Without explanations the answers are wrong in a way that nothing explains.
        """
        candidate = self.subject.candidate
        if candidate.kind not in _KINDS or candidate.graph is not None or candidate.eager:
            return None
        found: set[Blamed] = set()
        for answer in list(wrong)[:MOST_PROBLEMS]:
            found |= self._on(answer, explanations)
            if len({one.place for one in found}) > 1:
                return None  # no other answer makes it certain
        return _entry(min(found, key=lambda one: one.before)) if found else None

    def _on(self, answer: BatteryAnswer, explanations: Sequence[Combination]) -> set[Blamed]:
        """The lines that one wrong answer shows."""
        try:
            recording = self._recorded(answer)
            if recording is None:
                return set()
            return set(self._blamed(recording, answer, explanations))
        except (*IMPOSSIBLE, NotExpressible, LookupError, AttributeError):
            return set()

    def _recorded(self, answer: BatteryAnswer) -> OperationRecording | None:
        """The recording of the call that gave an answer; None if it cannot be followed."""
        inputs = answer.inputs
        try:
            forward = self.subject.forward(inputs)
            positional, keywords = arguments(inputs)
            recorder = Recorder()
            recorder.give(tensors_of((positional, keywords)))

            def recorded(*own: Any, **named: Any) -> Any:
                # Inside of what is guarded, where no mode may be left behind.
                with _uncompiled(), recorder:
                    return forward(*own, **named)

            output = guarded(recorded, positional, keywords)
            again = answer_from(self.subject, inputs, output)
        except CandidateFailure:
            return None
        if again is None or not _is_same(again.output, answer.output, inputs.query.dtype):
            return None  # what is recorded is not what was wrong
        recording = recorder.answered(output)
        return recording if recording.complete else None

    def _blamed(
        self,
        recording: OperationRecording,
        answer: BatteryAnswer,
        explanations: Sequence[Combination],
    ) -> Iterable[Blamed]:
        if not any(one.places for one in recording.operations):
            return  # nothing is made on a line that could be blamed
        inputs, oracle = answer.inputs, self.subject.oracle
        declared = self.subject.declaration.semantics
        values = self._values(right_steps(declared, inputs, answer.exact.output), inputs)
        if not values.telling:
            return
        right = [values.kind(one.value) for one in recording.operations]
        if not explanations:
            one = blamed(recording, right, [""] * len(right))
            yield from [] if one is None else [one]
        for made in explanations[:MOST_EXPLANATIONS]:
            acted = act(oracle, declared, made, inputs)
            steps = mistaken_steps(declared, made_on(declared, made, inputs), inputs, acted.output)
            values = self._values(steps, inputs)
            mistaken = [
                "" if fine else values.kind(one.value)
                for one, fine in zip(recording.operations, right, strict=True)
            ]
            one = blamed(recording, right, mistaken)
            yield from [] if one is None else [one]

    def _values(self, steps: Sequence[Step], inputs: Inputs) -> KnownValues:
        tiled = self.subject.declaration.semantics.group_order == "tile"
        return KnownValues(steps, inputs.geometry, inputs.query.dtype, tiled=tiled)


def _uncompiled() -> AbstractContextManager[Any]:
    """Call what torch.compile compiled as it was written: it would be compiled again for a mode."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return cast("AbstractContextManager[Any]", torch.compiler.set_stance("force_eager"))


def _is_same(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    """Whether two answers are the same but for rounding."""
    if one.shape != other.shape:
        return False
    size = torch.where(torch.isfinite(other), other, 0.0).abs().max() if other.numel() else 0.0
    room = model.STEP_ROOM * torch.finfo(dtype).eps * float(size)
    return bool(within(one, other, torch.full_like(other, room)).all())


def _entry(found: Blamed) -> LineEntry | None:
    """A line as the report says it; None where its text cannot be read."""
    place = found.place
    text = linecache.getline(place.file, place.number).strip()
    if not text:
        return None
    cut = text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}…"
    entry = LineEntry(
        file=in_repository(Path(place.file)), number=place.number, text=printable(cut)
    )
    if found.before:
        entry["before"] = True
    return entry
