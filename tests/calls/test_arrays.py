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


@pytest.fixture
def pulled_by_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JAX whose every gradient is twice that of the answer."""
    jax, jax_numpy = ModuleType("jax"), ModuleType("jax.numpy")
    vars(jax)["Array"], vars(jax_numpy)["asarray"] = FakeArray, FakeArray

    def vjp(call: Any, *leaves: Any) -> Any:
        return call(*leaves), lambda given: tuple(
            FakeArray(2.0 * np.asarray(given[-1] if isinstance(given, tuple) else given))
            for _ in leaves
        )

    vars(jax)["vjp"] = vjp
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.numpy", jax_numpy)


@pytest.mark.usefixtures("pulled_by_two")
@pytest.mark.parametrize("by_name", [False, True])
def test_gradients_of_jax_are_those_of_its_vjp(*, by_name: bool) -> None:
    """Each tensor that requires a gradient gets its own, wherever the call gives it."""
    first, second, third = (torch.ones(2, requires_grad=number != 1) for number in range(3))
    given = {"last": third} if by_name else {}
    answered = OfArrays(lambda *arrays, **_named: (arrays[0], arrays[1]), "jax")(
        first, second, *([] if by_name else [third]), **given
    )
    assert [each.requires_grad for each in answered] == [True, True]
    answered[1].sum().backward()
    assert first.grad is not None
    assert third.grad is not None
    assert first.grad.tolist() == third.grad.tolist() == [2.0, 2.0]
    assert second.grad is None
    with torch.no_grad():
        assert not OfArrays(lambda array: array, "jax")(first).requires_grad


def pulled(kept: Any, upstream: Any, scale: float = 1.0, *, centred: bool = True) -> Any:
    """The gradients of query, key and value, from what the forward pass kept."""
    query, key, value, weights = kept
    of_weights = upstream @ value.mT
    along = (weights * of_weights).sum(axis=-1, keepdims=True) if centred else 0.0
    of_scores = weights * (of_weights - along) * scale
    return of_scores @ key, of_scores.mT @ query, weights.mT @ upstream, None


WRONG_GRADIENTS = {
    "unscaled": lambda _scale, kept, upstream: pulled(kept, upstream),
    "uncentred": lambda scale, kept, upstream: pulled(kept, upstream, scale, centred=False),
    "channels reversed": lambda scale, kept, upstream: (
        *(each[..., ::-1] for each in pulled(kept, upstream, scale)[:2]),
        *pulled(kept, upstream, scale)[2:],
    ),
}


@pytest.mark.parametrize("wrong", WRONG_GRADIENTS)
def test_a_backward_pass_of_jax_is_judged_as_one_of_torch(wrong: str) -> None:
    """A custom_vjp without a scale or a sum, or with its channels reversed, fails."""
    pytest.importorskip("jax", reason="JAX is not installed: what it differentiates is not asked")
    from candidates.jax_attention import by_rule  # noqa: PLC0415 (it imports JAX)

    report = conformance.check(
        by_rule(WRONG_GRADIENTS[wrong]), only="gradients.golden", explain=False
    )
    assert report.verdict == "fails", report.reason


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
