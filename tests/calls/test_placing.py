"""Tensors change their device and nothing else: strides, offsets, shared storages, neighbours."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from conformance.calls.devices import (
    CPU,
    Mover,
    module_in_dtype,
    module_on,
    moved,
    placed,
    taken,
    weights_on,
)
from conformance.problems.memory_layouts import MEMORY_LAYOUTS


def test_arguments_on_the_cpu_are_the_same_objects() -> None:
    """Nothing is copied where nothing has to move."""
    call_arguments = ((torch.ones(2),), {"keep": torch.ones(2, dtype=torch.bool)})
    assert placed(call_arguments, "cpu") is call_arguments


def test_every_layout_survives() -> None:
    """Values, strides, offset and everything beside the elements are what they were."""
    values = torch.arange(24.0).reshape(1, 2, 3, 4)
    for name, layout in MEMORY_LAYOUTS.items():
        tensor = layout(values)
        (there,), _ = moved(((tensor,), {}), CPU)
        assert torch.equal(there, tensor), name
        place = tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes()
        assert place == (
            there.stride(),
            there.storage_offset(),
            there.untyped_storage().nbytes(),
        ), name
        assert there.data_ptr() != tensor.data_ptr(), name


def test_what_is_shared_stays_shared() -> None:
    """One object stays one object, and views of one storage stay views of one."""
    packed = torch.arange(12.0).reshape(3, 4)
    query, key = packed[0], packed[1]
    (first, again, second), keywords = moved(((query, query, key), {"scale": 0.5}), CPU)
    assert first is again
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert first.untyped_storage().data_ptr() != packed.untyped_storage().data_ptr()
    assert keywords == {"scale": 0.5}


def test_gradients_and_history_stay_behind() -> None:
    """A leaf that asks for a gradient is copied without asking; what is taken has no history."""
    leaf = torch.ones(3, requires_grad=True)
    ((there,), _) = moved(((leaf,), {}), CPU)
    assert not there.requires_grad
    assert not taken(leaf * 2).requires_grad


def test_other_devices_get_the_layout_too() -> None:
    """A tensor is laid over its storage on the device as it lay over it on the CPU."""
    tensor = torch.zeros(4, 6)[1:, ::2]
    there = Mover("meta").move(tensor)
    assert there.device.type == "meta"
    assert (there.shape, there.stride(), there.storage_offset()) == ((3, 3), (6, 2), 6)


def test_absent_weights_stay_absent() -> None:
    """A layer without known weights has none anywhere."""
    assert weights_on(None, "meta") is None


def test_a_users_module_is_copied_once() -> None:
    """The user's own stays where it is; one that is built for a question is moved itself."""
    own = nn.Linear(2, 2)
    moved = module_on(own, "meta", fresh=False)
    assert moved is not own
    assert own.weight.device.type == "cpu"
    assert module_on(own, "meta", fresh=False) is moved
    fresh = nn.Linear(2, 2)
    assert module_on(fresh, "meta", fresh=True) is fresh
    assert fresh.weight.is_meta


def test_what_is_there_already_is_left_alone() -> None:
    """A module on its device and what is no module are given back as they are."""
    own = nn.Linear(2, 2)
    assert module_on(own, "cpu", fresh=False) is own
    assert module_on(len, "meta", fresh=False) is len


def _in_half(own: nn.Module, *, rounds: bool) -> nn.Module:
    def answers(module: nn.Module) -> bool:
        try:
            module(torch.ones(1, 2, dtype=torch.float16))
        except RuntimeError:
            return False
        return True

    chosen = module_in_dtype(own, torch.float16, answers, rounds=rounds)
    assert module_in_dtype(own, torch.float16, answers, rounds=rounds) is chosen
    assert isinstance(chosen, nn.Module)
    return chosen


def test_a_users_module_is_put_in_the_dtype_that_is_judged() -> None:
    """A copy is, once; the user's own keeps its dtype."""
    own = nn.Linear(2, 2)
    assert _in_half(own, rounds=True).weight.dtype == torch.float16
    assert own.weight.dtype == torch.float32


def test_a_module_that_converts_by_itself_keeps_its_dtype() -> None:
    """Its parameters are rounded where the golden's are; nothing is changed where it has none."""

    class Converts(nn.Linear):
        def forward(self, given: Tensor) -> Tensor:
            return super().forward(given.float()).to(given.dtype)

    own = Converts(2, 2)
    assert _in_half(own, rounds=False) is own
    own = Converts(2, 2)
    rounded = _in_half(own, rounds=True)
    assert isinstance(rounded, Converts)
    assert rounded.weight.dtype == torch.float32
    assert torch.equal(rounded.weight, own.weight.half().float())
    assert not torch.equal(rounded.weight, own.weight)


def test_a_module_that_answers_in_no_dtype_is_left_as_it_is() -> None:
    """What it raises is then told of the user's own."""
    own = nn.Linear(3, 2)
    assert _in_half(own, rounds=True) is own
