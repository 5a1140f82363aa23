"""What a recording says of a call: each operation, of what it is made, and at which line."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from conformance.calls.calling import guarded
from conformance.diagnosis.lines import recording
from conformance.diagnosis.lines.recording import OperationRecording, Recorder, tensors_of


def recorded(function: Callable[..., object], *given: Tensor) -> OperationRecording:
    """The recording of one call, made as the harness makes it."""
    recorder = Recorder()
    recorder.give(iter(given))

    def under(*arguments: Tensor) -> object:
        with recorder:
            return function(*arguments)

    return recorder.answered(guarded(under, given, {}))


def names(function: Callable[..., object], *given: Tensor) -> list[str]:
    """What the operations that lead to an answer are called, the answer first."""
    made = recorded(function, *given)
    left, seen = [made.answer], []
    while left:
        number = left.pop(0)
        assert number is not None
        if number not in seen:
            seen.append(number)
            left.extend(made.operations[number].inputs)
    return [made.operations[number].name for number in seen]


def test_each_operation_has_its_line() -> None:
    """The innermost line of the user's, behind those that led to it."""

    def inner(x: Tensor) -> Tensor:
        return x.exp()

    def outer(x: Tensor) -> Tensor:
        return inner(x)

    made = recorded(outer, torch.ones(2, 3))
    assert made.answer is not None
    places = made.operations[made.answer].places
    first = inspect.getsourcelines(outer)[1]
    assert [place.number for place in places[-2:]] == [first + 1, first - 2]
    assert {place.file for place in places} == {__file__}


def test_history_reaches_the_arguments() -> None:
    """Through views, tuples of results, and lists of tensors."""

    def parts(x: Tensor) -> Tensor:
        one, two = x.chunk(2, dim=-1)
        return torch.cat([two, one.neg()], dim=-1)

    assert names(parts, torch.ones(2, 4)) == ["cat", "chunk", "neg", "", "chunk"]


def test_what_is_written_in_place_counts() -> None:
    """Into a tensor, into a part of it, by an operator, and through ``out=``."""

    def writes(x: Tensor) -> Tensor:
        made = torch.zeros(2, 4)
        made[:, :2] = x.exp()
        part = made[:, 2:]
        part.add_(x)
        made += 1.0
        torch.neg(made, out=made)
        return made

    found = names(writes, torch.ones(2, 2))
    assert {"__setitem__", "exp", "add_", "neg"} <= set(found)


def test_values_are_those_of_their_time() -> None:
    """A later write does not change what was recorded."""

    def overwrites(x: Tensor) -> Tensor:
        first = x + 1.0
        second = first * 2.0
        first.zero_()
        return second

    values = {
        one.name: one.value.tolist() for one in recorded(overwrites, torch.ones(1)).operations
    }
    assert values["add"] == [2.0]
    assert values["zero_"] == [0.0]


def test_a_shape_alone_is_no_history() -> None:
    """What is as large as another tensor is not made of it."""
    assert names(torch.ones_like, torch.zeros(2)) == ["ones_like"]


@pytest.mark.parametrize("limit", ["MOST_OPERATIONS", "MOST_NUMBERS"])
def test_there_is_a_limit(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it a recording is not complete."""
    monkeypatch.setattr(recording, limit, 3)
    assert not recorded(lambda x: x.exp().neg().exp().neg(), torch.ones(2)).complete


def test_an_answer_that_is_no_tensor() -> None:
    """It has no operation; of a pair the first entry is the answer."""
    assert recorded(lambda x: x.tolist(), torch.ones(1)).answer is None
    assert recorded(lambda x: (x.exp(), x), torch.ones(1)).answer == 1


def test_tensors_are_found_wherever_they_are() -> None:
    """In slices, dicts and nested lists; nothing else is taken for one."""
    a, b, c = (torch.ones(1) for _ in range(3))
    assert list(tensors_of((a, [{"x": b}], slice(c, None), 3, "x"))) == [a, b, c]
