"""Tensors between guards: what torch makes lies where it can be seen, and is otherwise as ever."""

from __future__ import annotations

import torch

from conformance.calls.memory import GUARD, Allocations


def test_a_write_past_the_end_is_seen() -> None:
    """One element behind, one before; the tensor itself may be written."""
    for place, damage in ((6, "4 bytes behind"), (-1, "4 bytes before")):
        with Allocations() as made:
            tensor = torch.empty(2, 3)
        tensor.fill_(1.0)
        assert not made.damage()
        tensor.as_strided((1,), (1,), tensor.storage_offset() + place).fill_(7.0)
        assert made.damage() == f"{damage} a tensor [2, 3] that it allocated"


def test_what_is_unwritten_is_nan_and_what_is_filled_is_kept() -> None:
    """Poison is for memory that nobody has written; integers are left alone."""
    with Allocations() as made:
        empty, zeros, full = torch.empty(3), torch.zeros(2, 2), torch.full((2,), 5.0)
        like = torch.empty_like(torch.ones(2, dtype=torch.float16))
        counted = torch.empty(4, dtype=torch.int64)
    assert empty.isnan().all()
    assert like.isnan().all()
    assert torch.equal(zeros, torch.tensor([[0.0, 0.0], [0.0, 0.0]]))
    assert torch.equal(full, torch.tensor([5.0, 5.0]))
    assert counted.dtype == torch.int64
    assert made.unwritten == 2


def test_tensors_look_as_torch_makes_them() -> None:
    """Shape, strides, alignment, dtype; no view, and no gradient."""
    with Allocations():
        tensor = torch.empty_strided((2, 3), (1, 2))
        grown = torch.empty(0)
    assert (tensor.shape, tensor.stride()) == ((2, 3), (1, 2))
    assert tensor.data_ptr() % 64 == 0
    assert not tensor._is_view()
    assert tensor.storage_offset() * 4 == GUARD
    grown.resize_(100).fill_(1.0)
    assert grown.untyped_storage().nbytes() == 400


def test_what_is_resized_owns_what_lies_behind() -> None:
    """A tensor that torch grows in its storage has not been written past."""
    with Allocations() as made:
        tensor = torch.empty(4)
        tensor.resize_(100).fill_(1.0)
    assert not made.damage()
