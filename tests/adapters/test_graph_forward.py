"""Axes by letters, there and back."""

from __future__ import annotations

import pytest
import torch

from conformance.adapters.graph_forward import arrange, restore, spelled

SIZES = {"B": 2, "H": 3, "L": 5, "D": 4, "E": 7}


def numbered(axes: str) -> torch.Tensor:
    """A tensor whose elements are all different."""
    shape = [SIZES[letter] for letter in axes]
    return torch.arange(torch.Size(shape).numel()).reshape(shape)


@pytest.mark.parametrize(
    ("own", "theirs", "shape"),
    [
        ("BLE", "LBE", [5, 2, 7]),
        ("BLE", "BLE", [2, 5, 7]),
        ("LE", "LE", [5, 7]),
        ("LE", "1LE", [1, 5, 7]),
        ("BHLD", "BLHD", [2, 5, 3, 4]),
        ("BHLD", "BLM", [2, 5, 12]),
        ("BHLD", "LBM", [5, 2, 12]),
        ("BHLD", "FLD", [6, 5, 4]),
        ("HLD", "LM", [5, 12]),
    ],
)
def test_there_and_back(own: str, theirs: str, shape: list[int]) -> None:
    """A tensor arranged for a graph and restored is what it was."""
    tensor = numbered(own)
    arranged = arrange(tensor, own, theirs)
    assert list(arranged.shape) == shape
    assert torch.equal(restore(arranged, theirs, own, SIZES), tensor)


def test_packed_heads_are_blocks() -> None:
    """Head h owns the channels h*D to (h+1)*D of a packed axis."""
    tensor = numbered("BHLD")
    packed = arrange(tensor, "BHLD", "BLM")
    assert torch.equal(packed[1, 3, 4:8], tensor[1, 1, 3])


def test_folded_items_come_first() -> None:
    """Item 0's heads come first where items and heads are one axis."""
    tensor = numbered("BHLD")
    assert torch.equal(arrange(tensor, "BHLD", "FLD")[4], tensor[1, 1])


@pytest.mark.parametrize("shape", [(3, 4), (2, 5, 11), (2, 5, 12, 1)])
def test_what_cannot_be_restored_is_left(shape: tuple[int, ...]) -> None:
    """An answer of another shape is not bent into the right one: a clause shall see it."""
    answer = torch.zeros(shape)
    assert restore(answer, "BLM", "BHLD", SIZES) is answer


def test_masks_are_spelled_with_heads_apart() -> None:
    """A mask folded over items and heads is declared with both axes."""
    assert spelled("FQK") == "BHQK"
    assert spelled("B11K") == "B11K"
