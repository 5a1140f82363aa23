"""Which line is to blame: that of the operation whose result first leaves the right computation.

Operations that a right value is made of are cleared. What is left of those that lead to the first
mistaken value, or to the answer where none is recognised, did it: if they stand on one line, it is
that line. If on several, it is that of the mistaken value, as long as what meets there is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from ...tolerance import model
from ..agreement import within
from .recording import Operation, OperationRecording, SourceLine

_SOFTMAXES: Final = frozenset({"softmax", "_softmax", "_safe_softmax"})
# What gives the numbers of a tensor another place or type, and no other values.
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


def blamed(
    recording: OperationRecording, right: Sequence[str], mistaken: Sequence[str]
) -> Blamed | None:
    """The line of a recorded wrong answer; None where it cannot be known.

    ``right`` says of each operation whether its result is a value of the right computation:
    "step", "inner" for one inside a softmax, or ""; ``mistaken`` whether it is one of a mistaken
    computation that is acted out.
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
        # A mask that is a right one, but not all of them, was left incomplete before.
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
    # What is unknown and made elsewhere has one line of its own, so that this one uses it.
    for one in used - cleared - neutral:
        behind = _ancestors(operations, [one], cleared | neutral) - cleared - neutral
        if len({own[number] for number in behind}) != 1:
            return None
    return Blamed(of_first)


def _cleared(
    operations: Sequence[Operation], right: Sequence[str], mistaken: Sequence[str]
) -> set[int]:
    """The arguments of the call, right values, and what these prove to be right.

    That is all they are made of, but for what a comparison, a sum or a maximum says little of, and
    for mistaken values, of which a part may be right.
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
    """Some operations and all whose results lead to them, none beyond those that stop."""
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
    """The innermost lines of cleared operations, with the ways that led to each."""
    shared: dict[SourceLine, set[object]] = {}
    for number in cleared:
        places = operations[number].places
        for depth, place in enumerate(places):
            shared.setdefault(place, set()).add(places[:depth])
    return shared


def _place(operation: Operation, shared: dict[SourceLine, set[object]]) -> SourceLine | None:
    """The innermost line of an operation that does nothing right when called from elsewhere."""
    for depth in reversed(range(len(operation.places))):
        place, way = operation.places[depth], operation.places[:depth]
        if not shared.get(place, set()) - {way}:
            return place
    return None


def _repeated(operations: Sequence[Operation]) -> set[tuple[SourceLine, ...]]:
    """Lines that are reached again after others: in a loop a value may be right by accident."""
    seen: set[tuple[SourceLine, ...]] = set()
    again: set[tuple[SourceLine, ...]] = set()
    last: tuple[SourceLine, ...] = ()
    for operation in operations:
        if operation.places and operation.places != last:
            last = operation.places
            (again if last in seen else seen).add(last)
    return again


def _neutral(operations: Sequence[Operation]) -> set[int]:
    """Tensors that are made of none, such as a range, or are from outside; and views of these."""
    found: set[int] = set()
    for number, operation in enumerate(operations):
        seen = operation.name in _VIEWS and all(one in found for one in operation.inputs)
        if not operation.given and (not operation.inputs or seen):
            found.add(number)
    return found


def _is_number(operation: Operation) -> bool:
    return operation.value.is_floating_point()


def _only_a_softmax(operations: Sequence[Operation], suspects: set[int]) -> bool:
    """Whether nothing is done but a softmax over the last axis, which is right by itself."""
    made = [operations[number] for number in suspects if operations[number].places]
    if len(made) != 1 or made[0].name not in _SOFTMAXES or not made[0].inputs:
        return False
    entered, left = operations[made[0].inputs[0]].value, made[0].value.double()
    if entered.shape != left.shape or not entered.dim():
        return False
    expected = torch.softmax(entered.double(), dim=-1)
    room = model.STEP_ROOM * torch.finfo(made[0].value.dtype).eps
    return bool(within(left, expected, torch.full_like(left, room)).all())
