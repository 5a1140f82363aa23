"""Finds the line that makes a mistake, on a few problems that a candidate gets wrong.

To blame is the line of the operation whose result first leaves the right computation. Operations
that feed a right value are cleared. The remaining operations that lead to the first mistaken value,
or to the answer if none is recognised, are to blame: their common line, or else the line of the
mistaken value, if its operands are right.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor

from ...base.files import path_in_repository
from ...base.printable_text import printable
from ...base.record import LineEntry
from ...calls.calling import CandidateFailure, arguments, guarded
from ...clauses.subject import Subject
from ...oracle.comparison import GROSS
from ...problems.inputs import Inputs
from ...tolerance import model
from ..agreement import BatteryAnswer, within
from ..battery import answer_from
from ..conditions import plainness
from ..mistaken_answer import Combination, act, made_on
from ..mistakes import IMPOSSIBLE, NotExpressible
from .recording import Operation, OperationRecording, Recorder, SourceLine, tensors_of
from .steps import KnownValues, Step, mistaken_steps, right_steps

# Wrong answers on which a line is looked for; they must agree.
MOST_PROBLEMS: Final = 3
# Equally good explanations, which must agree on the line.
MOST_EXPLANATIONS: Final = 3
# Characters of a line that is shown.
LONGEST_LINE: Final = 160
# Kinds of candidates with known steps.
_KINDS: Final = ("core", "layer")


_SOFTMAXES: Final = frozenset({"softmax", "_softmax", "_safe_softmax"})
# Operations that move or convert the numbers of a tensor without changing their values.
_VIEWS: Final = frozenset(
    (
        *("unsqueeze", "squeeze", "view", "reshape", "expand", "__getitem__", "__get__", "to"),
        *("transpose", "permute", "float", "double", "clone", "contiguous", "detach", "flatten"),
    )
)


@dataclass(frozen=True)
class Blamed:
    """A line; ``before`` says that something is missing in front of it."""

    place: SourceLine
    before: bool = False


def telling(
    shown: BatteryAnswer | None,
    observed: Sequence[BatteryAnswer],
    named: bool,  # noqa: FBT001
) -> list[BatteryAnswer]:
    """Return answers that are wrong by themselves: of the battery, else the failing one.

    A ``named`` mistake is made on all battery answers, and the failing problem (``shown``) is too
    small to tell much. An unnamed failure may be another mistake: then it comes first.
    """
    failing = [shown] if shown is not None and shown.margin > 1.0 else []
    gross = (answer for answer in observed if answer.margin > GROSS)
    wrong = sorted(gross, key=lambda one: (not one.inputs.generic, plainness(one.inputs)))
    return (wrong or failing) if named else [*failing, *wrong]


class LineFinder:
    """Finds the lines of one candidate in one dtype."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def line(
        self,
        explanations: Sequence[Combination],
        wrong: Iterable[BatteryAnswer],
        *,
        besides: Combination = (),
    ) -> LineEntry | None:
        """Return the line behind wrong answers; None if it is not certain.

        Results of the mistakes ``besides`` are not blamed: other lines are sought. Without
        explanations a line is certain only if the sizes tell the axes apart.
        """
        candidate = self.subject.candidate
        if candidate.kind not in _KINDS or candidate.graph is not None or candidate.eager:
            return None
        found: set[Blamed] = set()
        answers, certain = list(wrong), bool(explanations)
        if not certain:  # a right value is told from others where axes are
            answers[1:] = sorted(answers[1:], key=lambda answer: not _tells_axes(answer.inputs))
        for answer in answers[:MOST_PROBLEMS]:
            shown = self._blamed_on(answer, explanations, besides)
            found |= shown
            certain = certain or (bool(shown) and _tells_axes(answer.inputs))
            if len({one.place for one in found}) > 1:
                return None  # further answers cannot make the line certain
        return _entry(min(found, key=lambda one: one.before)) if found and certain else None

    def line_of_kept(self, wrong: Iterable[BatteryAnswer]) -> LineEntry | None:
        """Return the line at which kept state of earlier calls enters wrong answers of a core."""
        candidate = self.subject.candidate
        if candidate.kind != "core" or candidate.graph is not None or candidate.eager:
            return None
        for answer in list(wrong)[:MOST_PROBLEMS]:
            try:
                recording = self._recorded(answer)
            except (*IMPOSSIBLE, NotExpressible, LookupError, AttributeError):
                continue
            lines = set() if recording is None else _entering(recording.operations)
            if len(lines) == 1:
                return _entry(Blamed(lines.pop()))
        return None

    def _blamed_on(
        self, answer: BatteryAnswer, explanations: Sequence[Combination], besides: Combination
    ) -> set[Blamed]:
        try:
            recording = self._recorded(answer)
            if recording is None:
                return set()
            return set(self._blamed(recording, answer, explanations, besides))
        except (*IMPOSSIBLE, NotExpressible, LookupError, AttributeError):
            return set()

    def _recorded(self, answer: BatteryAnswer) -> OperationRecording | None:
        inputs = answer.inputs
        try:
            forward = self.subject.forward(inputs)
            positional, keywords = arguments(inputs)
            recorder = Recorder()
            recorder.give(tensors_of((positional, keywords)))

            def recorded(*own: Any, **named: Any) -> Any:
                # Inside the guarded call, so that no mode is left behind.
                with _uncompiled(), recorder:
                    return forward(*own, **named)

            output = guarded(recorded, positional, keywords)
            again = answer_from(self.subject, inputs, output)
        except CandidateFailure:
            return None
        if again is None or not _is_same(again.output, answer.output, inputs.query.dtype):
            return None  # the recorded answer is another
        recording = recorder.answered(output)
        return recording if recording.complete else None

    def _blamed(
        self,
        recording: OperationRecording,
        answer: BatteryAnswer,
        explanations: Sequence[Combination],
        besides: Combination,
    ) -> Iterable[Blamed]:
        if not any(one.places for one in recording.operations):
            return  # nothing is made on a line that could be blamed
        inputs, oracle = answer.inputs, self.subject.oracle
        declared = self.subject.declaration.semantics
        values = self._values(right_steps(declared, inputs, answer.exact.output), inputs)
        if not values.telling:
            return
        right = [values.kind(one.value) for one in recording.operations]
        if besides:
            spared = self._mistaken(besides, inputs)
            right = [
                kind or spared.kind(one.value)
                for kind, one in zip(right, recording.operations, strict=True)
            ]
        if not explanations:
            one = blamed(recording, right, [""] * len(right))
            yield from [] if one is None else [one]
        for made in explanations[:MOST_EXPLANATIONS]:
            acted = act(oracle, declared, made, inputs)
            values = self._mistaken(made, inputs)
            mistaken = [
                "" if fine else values.kind(one.value)
                for one, fine in zip(recording.operations, right, strict=True)
            ]
            cut = _line_of_cut(recording.operations, acted.core.weights)
            one = blamed(recording, right, mistaken) if cut is None else Blamed(cut)
            yield from [] if one is None else [one]

    def _mistaken(self, made: Combination, inputs: Inputs) -> KnownValues:
        declared = self.subject.declaration.semantics
        acted = act(self.subject.oracle, declared, made, inputs)
        steps = mistaken_steps(declared, made_on(declared, made, inputs), inputs, acted.output)
        return self._values(steps, inputs)

    def _values(self, steps: Sequence[Step], inputs: Inputs) -> KnownValues:
        tiled = self.subject.declaration.semantics.group_order == "tile"
        return KnownValues(steps, inputs.geometry, inputs.query.dtype, tiled=tiled)


def _tells_axes(inputs: Inputs) -> bool:
    sizes = inputs.geometry
    tokens = {sizes.query_length, sizes.key_length}
    apart = {sizes.batch, sizes.num_heads, *tokens}
    return len(apart) == 2 + len(tokens) and min(apart) > 1


def _uncompiled() -> AbstractContextManager[Any]:
    """Run compiled functions as written: torch.compile would compile again for a mode."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return cast("AbstractContextManager[Any]", torch.compiler.set_stance("force_eager"))


def _is_same(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    if one.shape != other.shape:
        return False
    size = torch.where(torch.isfinite(other), other, 0.0).abs().max() if other.numel() else 0.0
    room = model.STEP_ROOM * torch.finfo(dtype).eps * float(size)
    return bool(within(one, other, torch.full_like(other, room)).all())


def _entry(found: Blamed) -> LineEntry | None:
    place = found.place
    text = linecache.getline(place.file, place.number).strip()
    if not text:
        return None
    cut = text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}…"
    entry = LineEntry(
        file=path_in_repository(Path(place.file)), number=place.number, text=printable(cut)
    )
    if found.before:
        entry["before"] = True
    return entry


def blamed(
    recording: OperationRecording, right: Sequence[str], mistaken: Sequence[str]
) -> Blamed | None:
    """Return the line of a recorded wrong answer; None if it cannot be known.

    ``right`` marks operations whose result is a value of the right computation ("step", or "inner"
    inside a softmax, else ""); ``mistaken`` marks values of the acted mistake.
    """
    operations, answer = recording.operations, recording.answer
    if answer is None or right[answer]:
        return None
    relevant = _ancestors(operations, [answer], frozenset())
    cleared = _cleared(operations, right, mistaken) & relevant
    neutral = _neutral(operations)
    wrong = sorted(
        number for number in relevant - cleared - neutral if mistaken[number] and not right[number]
    )
    first = wrong[0] if wrong else answer
    suspects = _ancestors(operations, [first], cleared) - cleared
    shared = _shared_lines(operations, cleared)
    own = {number: _place(operations[number], shared) for number in suspects}
    lines = {place for place in own.values() if place is not None}
    if len(lines) == 1:
        (line,) = lines
        used = {one for number in suspects for one in operations[number].inputs} - suspects
        # A right mask that lacks a part was left incomplete before this line.
        partial = {one for one in used if right[one] == "inner" and not _is_number(operations[one])}
        inside = used <= cleared and (mistaken[first] == "inner" or bool(partial))
        return Blamed(line, before=inside or _only_a_softmax(operations, suspects))
    of_first = own[first]
    if not wrong or of_first is None or operations[first].places in _repeated(operations):
        return None
    here = {number for number in suspects if own[number] == of_first}
    used = {one for number in here for one in operations[number].inputs} - here
    if not any(one in cleared or one in neutral for one in used):
        return None
    # An unknown operand from elsewhere must have a single line, else this line is not certain.
    for one in used - cleared - neutral:
        behind = _ancestors(operations, [one], cleared | neutral) - cleared - neutral
        if len({own[number] for number in behind}) != 1:
            return None
    return Blamed(of_first)


def _line_of_cut(operations: Sequence[Operation], weights: Tensor) -> SourceLine | None:
    """Return the line that cuts an argument to as many keys as have a weight."""
    keys = weights.shape[-1]
    left = int((weights != 0).flatten(0, -2).any(dim=0).sum())
    if not 0 < left < keys:
        return None
    for one in operations:
        whole = operations[one.inputs[0]] if one.inputs else None
        if whole is None or not whole.given or not one.places or whole.value.dim() < 2:  # noqa: PLR2004 (tokens and channels)
            continue
        sizes = list(whole.value.shape)
        if sizes[-2] == keys and list(one.value.shape) == [*sizes[:-2], left, sizes[-1]]:
            return one.places[-1]
    return None


def _entering(operations: Sequence[Operation]) -> set[SourceLine]:
    outside: set[int] = set()
    lines: set[SourceLine] = set()
    for number, one in enumerate(operations):
        kept = outside.intersection(one.inputs)
        if len(kept) == len(set(one.inputs)) and not one.given and (kept or not one.places):
            outside.add(number)
        elif kept and one.places:
            lines.add(one.places[-1])
    return lines


def _cleared(
    operations: Sequence[Operation], right: Sequence[str], mistaken: Sequence[str]
) -> set[int]:
    """Return the arguments, the right values, and the operations that right values prove right.

    A right value proves its operands, except of comparisons, sums and maxima, which say little, and
    except mistaken values, of which a part may be right.
    """
    found = {number for number, one in enumerate(operations) if one.given or right[number]}
    wrong = {number for number, kind in enumerate(mistaken) if kind} - found
    proving = {
        number
        for number, kind in enumerate(right)
        if kind == "step" or (kind and not _is_number(operations[number]))
    }
    for number in reversed(range(len(operations))):
        if number in proving:
            counts = operations[number].value.is_floating_point()
            for one in operations[number].inputs:
                if one not in wrong and (counts or not operations[one].value.is_floating_point()):
                    proving.add(one)
    return found | proving


def _ancestors(
    operations: Sequence[Operation], ends: Iterable[int], stops: frozenset[int] | set[int]
) -> set[int]:
    found: set[int] = set()
    left = list(ends)
    while left:
        number = left.pop()
        if number not in found:
            found.add(number)
            if number not in stops:
                left.extend(operations[number].inputs)
    return found


def _shared_lines(
    operations: Sequence[Operation], cleared: set[int]
) -> dict[SourceLine, set[object]]:
    """Return the innermost lines of cleared operations, with the call paths to each."""
    shared: dict[SourceLine, set[object]] = {}
    for number in cleared:
        places = operations[number].places
        for depth, place in enumerate(places):
            shared.setdefault(place, set()).add(places[:depth])
    return shared


def _place(operation: Operation, shared: dict[SourceLine, set[object]]) -> SourceLine | None:
    """Return the innermost line that does nothing right when called by another path."""
    for depth in reversed(range(len(operation.places))):
        place, way = operation.places[depth], operation.places[:depth]
        if not shared.get(place, set()) - {way}:
            return place
    return None


def _repeated(operations: Sequence[Operation]) -> set[tuple[SourceLine, ...]]:
    """Return lines that are reached again: in a loop a value may be right by accident."""
    seen: set[tuple[SourceLine, ...]] = set()
    again: set[tuple[SourceLine, ...]] = set()
    last: tuple[SourceLine, ...] = ()
    for operation in operations:
        if operation.places and operation.places != last:
            last = operation.places
            (again if last in seen else seen).add(last)
    return again


def _neutral(operations: Sequence[Operation]) -> set[int]:
    """Return tensors made of no argument, such as a range, from outside, and their views."""
    found: set[int] = set()
    for number, operation in enumerate(operations):
        seen = operation.name in _VIEWS and all(one in found for one in operation.inputs)
        if not operation.given and (not operation.inputs or seen):
            found.add(number)
    return found


def _is_number(operation: Operation) -> bool:
    return operation.value.is_floating_point()


def _only_a_softmax(operations: Sequence[Operation], suspects: set[int]) -> bool:
    """Whether the only operation is a softmax over the last axis that is right by itself."""
    made = [operations[number] for number in suspects if operations[number].places]
    if len(made) != 1 or made[0].name not in _SOFTMAXES or not made[0].inputs:
        return False
    behind = operations[made[0].inputs[0]]
    entered, left = behind.value, made[0].value.double()
    while behind.name in _VIEWS and behind.inputs:
        behind = operations[behind.inputs[0]]
    if behind.name in _SOFTMAXES:
        return False  # the softmax is superfluous
    if entered.shape != left.shape or not entered.dim():
        return False
    expected = torch.softmax(entered.double(), dim=-1)
    room = model.STEP_ROOM * torch.finfo(made[0].value.dtype).eps
    return bool(within(left, expected, torch.full_like(left, room)).all())
