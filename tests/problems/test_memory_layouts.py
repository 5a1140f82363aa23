from __future__ import annotations

from itertools import product

import pytest
import torch

from conformance.problems.memory_layouts import (
    CANARIES,
    MARGIN,
    MEMORY_LAYOUTS,
    MIXED,
    STRIDED,
    arrange_mask,
)

SHAPE = (2, 3, 5, 4)
STRIDES = {
    "contiguous": (60, 20, 4, 1),
    "channels-first": (60, 20, 1, 5),
    "tokens-first": (60, 4, 12, 1),
    "every-other": (120, 40, 8, 2),
    "fused": (180, 60, 12, 1),
    "sliced-tokens": (96, 32, 4, 1),
    "odd-rows": (75, 25, 5, 1),
    "between-canaries": (60, 20, 4, 1),
    "nan-beside-channels": (180, 60, 12, 1),
    "nan-beside-tokens": (96, 32, 4, 1),
    "expanded": (0, 20, 4, 1),
    "expanded-heads": (20, 0, 4, 1),
}
OFFSETS = {
    "fused": 4,
    "sliced-tokens": 4,
    "between-canaries": MARGIN,
    "nan-beside-channels": 4,
    "nan-beside-tokens": 4,
}


def tokens(shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    """Values that are all different."""
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def test_every_layout_is_described() -> None:
    """The table of strides below knows every layout, and the strided ones are layouts."""
    assert set(STRIDES) == set(MEMORY_LAYOUTS)
    assert set(STRIDED) | set(CANARIES) | set(MIXED) < set(MEMORY_LAYOUTS)


@pytest.mark.parametrize("name", MEMORY_LAYOUTS)
def test_layout_has_the_claimed_strides(name: str) -> None:
    """Each layout lies in memory as its name says."""
    laid = MEMORY_LAYOUTS[name](tokens())
    assert laid.shape == SHAPE
    assert laid.stride() == STRIDES[name]
    assert laid.storage_offset() == OFFSETS.get(name, 0)


@pytest.mark.parametrize(
    "name", [name for name in MEMORY_LAYOUTS if not name.startswith("expanded")]
)
def test_layout_keeps_the_values(name: str) -> None:
    """The values are those of the original, in heads and in tokens, with empty axes too."""
    shapes = (SHAPE, (2, 5, 4), (1, 1, 1), (3, 0, 4), (0, 2, 3, 4))
    for shape, dtype in product(shapes, (torch.float32, torch.float64, torch.float16)):
        original = tokens(shape).to(dtype)
        laid = MEMORY_LAYOUTS[name](original)
        assert torch.equal(laid, original)
        assert laid.dtype == dtype


def test_expanded_layouts_repeat_the_first() -> None:
    """An expanded tensor holds one item, or one head, and shows it everywhere."""
    tensor = tokens()
    assert torch.equal(MEMORY_LAYOUTS["expanded"](tensor), tensor[:1].expand(SHAPE))
    assert torch.equal(MEMORY_LAYOUTS["expanded-heads"](tensor), tensor[:, :1].expand(SHAPE))


@pytest.mark.parametrize("name", MEMORY_LAYOUTS)
def test_layout_is_a_copy(name: str) -> None:
    """Writing into what a candidate gets never reaches the original."""
    tensor = tokens()
    laid = MEMORY_LAYOUTS[name](tensor)
    laid[0, 0] = -1.0
    assert torch.equal(tensor, tokens())
    flat = torch.ones(1, 1, 1, 4)  # whose transposes are contiguous as they are
    assert (
        MEMORY_LAYOUTS[name](flat).untyped_storage().data_ptr() != flat.untyped_storage().data_ptr()
    )


@pytest.mark.parametrize("name", STRIDED)
def test_strided_layouts_are_not_contiguous(name: str) -> None:
    """A kernel that ignores strides reads something else."""
    assert not MEMORY_LAYOUTS[name](tokens()).is_contiguous()


@pytest.mark.parametrize("name", CANARIES)
def test_canaries_surround_the_values(name: str) -> None:
    """What lies beside the elements is NaN, and each of them can be read as one storage."""
    laid = MEMORY_LAYOUTS[name](tokens())
    storage = laid.as_strided((laid.untyped_storage().nbytes() // 4,), (1,), 0)
    assert int(storage.isnan().sum()) == storage.numel() - laid.numel() > 0
    assert laid.stride(-1) == 1


@pytest.mark.parametrize("layout", [*STRIDED, *CANARIES, "expanded", "contiguous"])
def test_masks_keep_their_values(layout: str) -> None:
    """Masks of every form and number of axes keep what they say, and are copies."""
    shapes = ((2, 3, 5, 4), (2, 1, 5, 4), (5, 4), (3,), ())
    for shape, dtype in product(shapes, (torch.bool, torch.int64, torch.float32)):
        mask = (tokens(shape).remainder(3) > 0).to(dtype)
        laid = arrange_mask(mask, layout)
        assert torch.equal(laid, mask)
        assert laid.dtype == dtype
        assert laid.untyped_storage().data_ptr() != mask.untyped_storage().data_ptr()


def test_expanded_masks_hold_once_what_repeats() -> None:
    """Only an axis along which the mask repeats itself gets a stride of 0."""
    rows = torch.tensor([[True, False], [True, False]])
    assert arrange_mask(rows, "expanded").stride() == (0, 1)
    assert arrange_mask(torch.tensor([[True, False], [False, False]]), "expanded").stride() == (
        2,
        1,
    )
