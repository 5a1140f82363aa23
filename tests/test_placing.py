"""Tensors change their device and nothing else: strides, offsets, shared storages, neighbours."""

from __future__ import annotations

import torch
from torch import nn

from conformance.layouts import LAYOUTS
from conformance.placing import Mover, brought_back, module_on, placed, taken, weights_on


def test_arguments_on_the_cpu_are_the_same_objects() -> None:
    """Nothing is copied where nothing has to move."""
    given = ((torch.ones(2),), {"keep": torch.ones(2, dtype=torch.bool)})
    assert placed(given, "cpu") is given


def test_every_layout_survives() -> None:
    """Values, strides, offset and everything beside the elements are what they were."""
    values = torch.arange(24.0).reshape(1, 2, 3, 4)
    for name, layout in LAYOUTS.items():
        tensor = layout(values)
        (moved,), _ = brought_back(((tensor,), {}))
        assert torch.equal(moved, tensor), name
        place = tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes()
        assert place == (
            moved.stride(),
            moved.storage_offset(),
            moved.untyped_storage().nbytes(),
        ), name
        assert moved.data_ptr() != tensor.data_ptr(), name


def test_what_is_shared_stays_shared() -> None:
    """One object stays one object, and views of one storage stay views of one."""
    packed = torch.arange(12.0).reshape(3, 4)
    query, key = packed[0], packed[1]
    (first, again, second), keywords = brought_back(((query, query, key), {"scale": 0.5}))
    assert first is again
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert first.untyped_storage().data_ptr() != packed.untyped_storage().data_ptr()
    assert keywords == {"scale": 0.5}


def test_gradients_and_history_stay_behind() -> None:
    """A leaf that asks for a gradient is copied without asking; what is taken has no history."""
    leaf = torch.ones(3, requires_grad=True)
    ((moved,), _) = brought_back(((leaf,), {}))
    assert not moved.requires_grad
    assert not taken(leaf * 2).requires_grad


def test_other_devices_get_the_layout_too() -> None:
    """A tensor is laid over its storage on the device as it lay over it on the CPU."""
    tensor = torch.zeros(4, 6)[1:, ::2]
    moved = Mover("meta").move(tensor)
    assert moved.device.type == "meta"
    assert (moved.shape, moved.stride(), moved.storage_offset()) == ((3, 3), (6, 2), 6)


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
