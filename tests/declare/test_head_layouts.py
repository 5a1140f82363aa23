"""Head layouts: any order of the axes there and back, and equal items wherever their axis is."""

from __future__ import annotations

import itertools

import pytest
import torch

from conformance.declare.head_layouts import HEAD_LAYOUTS, OWN_AXES, HeadLayout
from conformance.problems.arrangements import in_memory

SIZES = {"B": 2, "H": 3, "S": 5, "D": 4}
ORDERS = ["".join(order) for order in itertools.permutations(OWN_AXES)]


def heads() -> torch.Tensor:
    return torch.arange(120.0).reshape(*(SIZES[letter] for letter in OWN_AXES))


@pytest.mark.parametrize("axes", ORDERS)
def test_any_order_there_and_back(axes: str) -> None:
    """Heads have the axes of a layout in its order, and come back as they were."""
    layout = HeadLayout(axes=axes)
    arranged = layout.arranged(heads())
    assert arranged.shape == tuple(SIZES[letter] for letter in axes)
    assert torch.equal(layout.restored(arranged), heads())
    assert layout.is_own == (axes == OWN_AXES)


@pytest.mark.parametrize(("name", "letter"), [("expanded", "B"), ("expanded-heads", "H")])
@pytest.mark.parametrize("axes", ORDERS)
def test_what_repeats_has_a_stride_of_zero(axes: str, name: str, letter: str) -> None:
    """Equal items and equal heads are held once, along their own axis."""
    layout = HeadLayout(axes=axes)
    at = OWN_AXES.index(letter)
    equal = heads().narrow(at, 0, 1).expand(heads().shape).contiguous()
    placed = in_memory(layout.arranged(equal), name, layout.axes)
    assert placed.stride(axes.index(letter)) == 0
    assert torch.equal(layout.restored(placed), equal)


def test_the_declared_layouts() -> None:
    """Each input of a layout holds each of query, key and value once."""
    for layout in HEAD_LAYOUTS.values():
        parts = [part for held in layout.inputs.values() for part in held]
        assert parts == ["query", "key", "value"]
        assert layout.has_sequences == ("B" not in layout.axes)
