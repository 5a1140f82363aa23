"""Which of recorded operations is blamed, from what is right and what is mistaken."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.diagnosis.lines.finder import Blamed, blamed
from conformance.diagnosis.lines.recording import Operation, OperationRecording, SourceLine

VALUE = torch.tensor([0.2, 0.8])


def at(*numbers: int) -> tuple[SourceLine, ...]:
    """Lines that lead to an operation."""
    return tuple(SourceLine("mine.py", number) for number in numbers)


def made(
    inputs: tuple[int, ...], *lines: int, name: str = "op", value: Tensor = VALUE
) -> Operation:
    """An operation at some lines; without inputs and lines an argument."""
    return Operation(name, value, inputs, at(*lines), given=not inputs and not lines)


def judged(operations: list[Operation], right: str, mistaken: str = "") -> Blamed | None:
    """The line for the last operation as answer: ``r`` marks right ones, ``m`` and ``i`` others."""
    kinds = {"r": "step", "m": "step", "i": "inner", ".": ""}
    recording = OperationRecording(operations, answer=len(operations) - 1)
    marks = mistaken.ljust(len(operations), ".")
    return blamed(recording, [kinds[one] for one in right], [kinds[one] for one in marks])


GIVEN = made(())


def test_all_that_is_left_stands_on_one_line() -> None:
    """Nothing need be recognised then."""
    line = [GIVEN, made((0,), 1), made((1,), 2), made((2,), 2)]
    assert judged(line, "rr..") == Blamed(SourceLine("mine.py", 2))


def test_on_several_lines_nothing_is_certain() -> None:
    """As long as nothing is recognised."""
    assert judged([GIVEN, made((0,), 1), made((1,), 2)], "r..") is None


def test_the_first_mistaken_value_is_blamed() -> None:
    """What is made of it later is a consequence."""
    chain = [GIVEN, made((0,), 1), made((1,), 2), made((2,), 3)]
    assert judged(chain, "rr..", "..mm") == Blamed(SourceLine("mine.py", 2))


def test_a_right_answer_blames_nobody() -> None:
    """Nor does a recording without an answer."""
    assert judged([GIVEN, made((0,), 1)], "rr") is None
    assert blamed(OperationRecording([GIVEN]), ["step"], [""]) is None


def test_what_is_no_part_of_the_answer_is_not_blamed() -> None:
    """A mistaken value that nobody uses."""
    chain = [GIVEN, made((0,), 1), made((0,), 2)]
    assert judged(chain, "r..", ".mm") == Blamed(SourceLine("mine.py", 2))


def test_what_meets_the_mistake_has_one_line_at_most() -> None:
    """A value that is unknown and made in two steps elsewhere may be what is wrong."""
    one = [GIVEN, made((0,), 1), made((0, 1), 2), made((2,), 3)]
    assert judged(one, "r...", "..mm") == Blamed(SourceLine("mine.py", 2))
    two = [GIVEN, made((0,), 1), made((1,), 2), made((0, 2), 3), made((3,), 4)]
    assert judged(two, "r....", "...mm") is None


def test_a_comparison_proves_nothing() -> None:
    """That a right mask comes of them does not make numbers right."""
    flags = torch.tensor([True, False])
    chain = [GIVEN, made((0,), 1), made((1,), 2, value=flags), made((1, 2), 3)]
    assert judged(chain, "r.r.", "...m") == Blamed(SourceLine("mine.py", 3))
    assert judged(chain, "r.r.", ".m.m") == Blamed(SourceLine("mine.py", 1))


def test_a_part_that_is_right_does_not_clear_the_whole() -> None:
    """Of a packed projection the queries may be right and the values not."""
    packed = [GIVEN, made((0,), 1), made((1,), 2), made((1,), 2), made((2, 3), 3)]
    assert judged(packed, "r.r..", ".m.mm") == Blamed(SourceLine("mine.py", 1))
    assert judged(packed, "r.r..", "...mm") == Blamed(SourceLine("mine.py", 2))


def test_a_loop_may_be_right_by_accident() -> None:
    """A line that is reached again after others is not blamed for one of its rounds."""
    rounds = [
        GIVEN,
        made((0,), 1),
        made((0, 1), 2),
        made((2,), 1),
        made((0, 3), 2),
    ]
    assert judged(rounds, "r....", "..m.m") is None


def test_a_helper_that_was_right_elsewhere() -> None:
    """The line that calls it is blamed."""
    chain = [GIVEN, made((0,), 1, 9), made((0,), 2, 9), made((1, 2), 3)]
    assert judged(chain, "rr..", "..mm") == Blamed(SourceLine("mine.py", 2))


def test_missing_before_a_softmax() -> None:
    """A softmax that is right by itself, and what is inside of one written out."""
    entered = torch.tensor([[0.0, 1.0], [2.0, 0.5]])
    scores = made((0,), 1, value=entered)
    soft = made((1,), 2, name="softmax", value=entered.softmax(-1))
    assert judged([GIVEN, scores, soft], "rr.", "..m") == Blamed(
        SourceLine("mine.py", 2), before=True
    )
    other = made((1,), 2, name="softmax", value=entered.softmax(0))
    assert judged([GIVEN, scores, other], "rr.", "..m") == Blamed(SourceLine("mine.py", 2))
    soft = made((0,), 1, name="softmax", value=entered.softmax(-1))
    again = made((1,), 2, name="softmax", value=entered.softmax(-1).softmax(-1))
    assert judged([GIVEN, soft, again], "rr.", "..m") == Blamed(SourceLine("mine.py", 2))
    peak = made((1,), 2, name="amax")
    assert judged([GIVEN, scores, peak], "rr.", "..i") == Blamed(
        SourceLine("mine.py", 2), before=True
    )
