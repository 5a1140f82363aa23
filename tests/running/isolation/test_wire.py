"""What is shared with a candidate's process: whatever it says, reading it is safe."""

from __future__ import annotations

import os

import pytest
import torch

from conformance.graphs.protocol import ProtocolError
from conformance.running.isolation import zygote
from conformance.running.isolation.wire import ARENA, Arena, new_arena

pytestmark = pytest.mark.skipif(
    bool(zygote.why_impossible()), reason="candidates are isolated on Linux alone"
)


@pytest.fixture
def arena() -> Arena:
    """Memory to share."""
    descriptor = new_arena()
    made = Arena(descriptor)
    os.close(descriptor)
    return made


def test_tensors_come_back_as_they_were_put(arena: Arena) -> None:
    """Of any shape, with their dtypes, the empty ones included."""
    tensors = [torch.arange(6.0).reshape(2, 3).mT, torch.zeros(2, 0, 5), torch.ones(1) > 0]
    described, end = arena.put(tensors, 0)
    assert end == 128
    for put, taken in zip(tensors, arena.take(described), strict=True):
        assert taken.dtype == put.dtype
        assert torch.equal(taken, put)


@pytest.mark.parametrize(
    "entry",
    [
        {"shape": [0, *[ARENA] * 8], "at": 0},
        {"shape": [ARENA] * 16, "at": 0},
        {"shape": [1], "at": ARENA},
        {"shape": [1], "at": -64},
        {"shape": [True], "at": 0},
        {"shape": [1.0], "at": 0},
        {"shape": [1] * 17, "at": 0},
        {"shape": [1], "at": 0, "dtype": "quint8"},
    ],
)
def test_a_tensor_that_cannot_be_is_refused(arena: Arena, entry: dict[str, object]) -> None:
    """A process that was taken over describes any; the error is of the one kind that counts as its.

    No elements at all, on axes too long for any place in memory, were an error of torch.
    """
    with pytest.raises(ProtocolError):
        arena.take([{"dtype": "float32", **entry}])
