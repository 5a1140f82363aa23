from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conformance.calls.calling import is_tensor, plainly


class Speaks(Tensor):
    """Answers every function of torch with sevens."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del func, types, args, kwargs
        return torch.full((2, 2), 7.0)


class Dispatches(Tensor):
    """Answers every operator with sevens."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del func, types, args, kwargs
        return torch.full((2, 2), 7.0)


class Wraps(Dispatches):
    """Has no numbers of its own."""


class Poses:
    """No tensor, though ``isinstance`` believes it."""

    __class__ = Tensor  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Speaks, Dispatches])
def test_numbers_are_read_where_they_lie(kind: Any) -> None:
    """A subclass that speaks for its numbers is not asked."""
    held = torch.arange(4.0).reshape(2, 2)
    made = (
        held.clone().as_subclass(Speaks)
        if kind is Speaks
        else Tensor._make_subclass(Dispatches, held.clone())
    )
    read = plainly(made)
    assert read is not None
    assert type(read) is Tensor
    assert torch.equal(read.detach().clone(), held)


def test_ordinary_tensors_are_taken_as_they_are() -> None:
    """Tensors and parameters are themselves, so that gradients and storages stay theirs."""
    for tensor in (torch.ones(2), nn.Parameter(torch.ones(2)), torch.ones(2).to_sparse()):
        assert plainly(tensor) is tensor


def test_gradients_go_through_a_subclass() -> None:
    """What was computed from inputs that want gradients still gives them."""
    leaf = torch.ones(2, 2, requires_grad=True)
    read = plainly((leaf * 3).as_subclass(Speaks))
    assert read is not None
    read.sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, torch.full((2, 2), 3.0))


def test_wrappers_are_refused() -> None:
    """What has no numbers in memory could make up others at each look."""
    assert plainly(Tensor._make_wrapper_subclass(Wraps, (2, 2))) is None


def test_a_false_class_is_no_tensor() -> None:
    """The type counts, not what an object says of itself."""
    assert isinstance(Poses(), Tensor)
    assert not is_tensor(Poses())
    assert is_tensor(nn.Parameter(torch.ones(1)))
