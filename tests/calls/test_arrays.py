"""Functions of arrays: what they are given, what may come back."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import conformance
from conformance.base.geometry import PROBE
from conformance.calls.arrays import OfArrays, Stranger, no_such_numbers, to_array
from conformance.calls.calling import CandidateFailure
from conformance.clauses.subject import Subject
from conformance.errors import DeclarationError
from conformance.problems.fitting import fitted_geometry
from conformance.problems.problem import Problem
from conformance.problems.space import Space


def valued(query: Any, key: Any, value: Any, *, out: Any = None) -> Any:
    """No attention at all."""
    del query, key, out
    return value


def listed(query: Any, key: Any, value: Any) -> Any:
    """Numbers that are in no array."""
    del query, key
    return value.tolist()


def test_array_of_numpy_shares_the_memory_of_its_tensor() -> None:
    """Strides stay, and what is written to the array is seen in the tensor."""
    tensor = torch.arange(6.0).reshape(2, 3).T
    array = to_array(tensor, "numpy")
    array[0, 1] = 9.0
    assert tensor[0, 1] == 9.0
    assert array.strides == tuple(4 * step for step in tensor.stride())


def test_answer_is_a_tensor_of_the_same_numbers() -> None:
    """An array that cannot be written to, or runs backwards, is copied."""
    tensor = torch.arange(4.0)
    assert torch.equal(OfArrays(lambda array: array[::-1], "numpy")(tensor), tensor.flip(0))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(3, dtype=">f4"),
        np.array([(0, 7), (1, 8), (2, 9)], dtype=[("number", "<f4"), ("other", "<i2")])["number"],
        np.arange(2, -1, -1, dtype=np.float32)[::-1],
        np.broadcast_to(np.arange(3, dtype=np.float32), (1, 3))[0],
    ],
)
def test_an_answer_that_lies_in_memory_as_no_tensor_can_is_copied(array: Any) -> None:
    """The other order of bytes, elements between others, backwards, or not to be written to."""
    answer = OfArrays(lambda: array, "numpy")()
    assert answer.dtype == torch.float32
    assert answer.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("value", [[1.0], torch.ones(1), np.float32(1.0), None])
def test_what_is_no_array_is_told_apart(value: object) -> None:
    """A list, a tensor, a scalar or nothing is no numpy.ndarray."""
    answer = OfArrays(lambda _array: value, "numpy")(torch.ones(1))
    assert answer == Stranger(value, "a numpy.ndarray")


def test_wrong_array_is_one_clear_violation() -> None:
    """The report says what came and what should have come."""
    candidate = conformance.core(arrays="numpy")(listed)
    subject = Subject(candidate, "float32")
    geometry = fitted_geometry(PROBE, candidate, Space())
    with pytest.raises(CandidateFailure, match=r"the output is a list, not a numpy\.ndarray"):
        subject.answer(subject.inputs(Problem(geometry=geometry, dtype="float32", seed=0)))


class FakeArray:
    """As much of jax.Array as the edge needs."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        del dtype, copy
        return self.values


def test_jax_is_asked_for_its_own_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors become arrays by ``jax.numpy.asarray`` and come back through NumPy."""
    jax, jax_numpy = ModuleType("jax"), ModuleType("jax.numpy")
    vars(jax)["Array"], vars(jax_numpy)["asarray"] = FakeArray, FakeArray
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.numpy", jax_numpy)
    types: list[object] = []

    def doubled(array: Any) -> FakeArray:
        types.append(array)
        return FakeArray(array.values * 2)

    answer = OfArrays(doubled, "jax")(torch.arange(3.0))
    assert isinstance(types[0], FakeArray)
    assert torch.equal(answer, torch.tensor([0.0, 2.0, 4.0]))


@pytest.mark.parametrize(
    ("promises", "message"),
    [
        ({"arrays": "numpy", "dtypes": ["bfloat16"]}, "which has no such numbers"),
        ({"arrays": "numpy", "features": ["gradients"]}, "needs tensors"),
        ({"arrays": "jax", "features": ["out"]}, "needs tensors"),
        ({"arrays": "numpy", "devices": ["cuda"]}, "handed over on the CPU"),
    ],
)
def test_promise_that_arrays_cannot_keep_is_refused(promises: dict[str, Any], message: str) -> None:
    """One sentence says what NumPy and JAX have no room for."""
    with pytest.raises(DeclarationError, match=message):
        conformance.core(**promises)(valued)


def test_numpy_is_not_asked_for_bfloat16() -> None:
    """A dtype of the command line that NumPy lacks is told, and nothing is asked in it."""
    declared = conformance.core(arrays="numpy")(valued).declaration
    assert "no bfloat16" in no_such_numbers(declared, "bfloat16")
    assert not no_such_numbers(declared, "float16")
