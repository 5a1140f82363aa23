from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import core, plan, problem
from torch import Tensor

from conformance.calls.calling import arguments
from conformance.problems.inputs import Inputs
from conformance.problems.materialise import materialise

SIZES = {"B": 2, "H": 4, "Q": 5, "K": 7, "1": 1}
SHAPES = ["BHQK", "B1QK", "1HQK", "B11K", "11QK", "111K", "BQK", "BHK", "BK", "QK", "HQK", "K"]
LENGTH_SHAPES = ["B", "BQ", "BH", "B1", "B11", "BHQ", "Q", "1", ""]
DTYPES = {
    "keep": torch.bool,
    "drop": torch.bool,
    "keep_int": torch.int64,
    "bias": torch.float32,
    "lengths": torch.int64,
}


def presented(form: str, shape: str, pattern: str = "random", **more: Any) -> tuple[Tensor, Inputs]:
    """A mask as the candidate gets it, and the inputs it was made from."""
    example = problem(mask=plan(pattern, form, shape, **more))
    inputs = materialise(example, core())
    (positional, keywords) = arguments(inputs)
    assert len(positional) == 3
    assert list(keywords) == [form]
    return keywords[form], inputs


def wide(mask: Tensor, shape: str) -> Tensor:
    """A mask in letters as four axes."""
    letters = dict(zip(shape, mask.shape, strict=True))
    return mask.reshape([letters.get(axis, 1) for axis in "BHQK"])


@pytest.mark.parametrize("form", ["keep", "drop", "keep_int", "bias"])
@pytest.mark.parametrize("shape", SHAPES)
def test_mask_has_exactly_the_declared_shape_and_dtype(form: str, shape: str) -> None:
    """Every form arrives in its letters, in its dtype and with its polarity."""
    mask, inputs = presented(form, shape)
    assert list(mask.shape) == [SIZES[letter] for letter in shape]
    assert mask.dtype == DTYPES[form]
    kept = {
        "keep": lambda: mask,
        "drop": lambda: ~mask,
        "keep_int": lambda: mask == 1,
        "bias": lambda: mask == 0,
    }[form]()
    assert inputs.keep is not None
    letters = shape.replace("1", "")
    table = inputs.keep.reshape([SIZES[axis] for axis in letters])
    assert torch.equal(kept.reshape(table.shape), table)


def test_integer_masks_hold_zeros_and_ones() -> None:
    """``keep_int`` holds 1 for attend and 0 for ignore, nothing else."""
    mask, _ = presented("keep_int", "BHQK")
    assert set(mask.flatten().tolist()) == {0, 1}


def test_plain_bias_is_zero_or_minus_infinity() -> None:
    """A bias without finite values only hides."""
    mask, _ = presented("bias", "BHQK")
    assert set(mask.flatten().tolist()) == {0.0, -torch.inf}


def test_finite_bias_hides_too() -> None:
    """A finite bias arrives in the query's dtype, minus infinity where keys are hidden."""
    mask, inputs = presented("bias", "B1QK", finite_bias=True)
    assert inputs.keep is not None
    assert inputs.bias is not None
    kept = inputs.keep
    assert bool((mask[~kept] == -torch.inf).all())
    assert torch.equal(mask[kept], inputs.bias[kept])


def test_bias_follows_the_dtype() -> None:
    """In float64 the bias is float64."""
    example = problem(mask=plan("random", "bias"), dtype="float64")
    _, keywords = arguments(materialise(example, core()))
    assert keywords["bias"].dtype == torch.float64


@pytest.mark.parametrize("shape", LENGTH_SHAPES)
@pytest.mark.parametrize("pattern", ["random", "empty-rows", "full"])
def test_lengths_count_the_kept_keys(shape: str, pattern: str) -> None:
    """Lengths are int64 in 0..Lk, and the keys before them are the kept ones."""
    lengths, inputs = presented("lengths", shape, pattern)
    assert list(lengths.shape) == [SIZES[letter] for letter in shape]
    assert lengths.dtype == torch.int64
    assert inputs.keep is not None
    counts = wide(lengths, shape)
    assert torch.equal((torch.arange(7) < counts).expand(inputs.keep.shape), inputs.keep)
    assert int(lengths.min()) == 0 if pattern == "empty-rows" else int(lengths.min()) >= 1


def test_mask_is_a_copy() -> None:
    """Writing into a mask never reaches the inputs."""
    mask, inputs = presented("keep", "BHQK")
    before = inputs.keep.clone()  # type: ignore[union-attr]  # it has a mask
    mask.fill_(False)  # noqa: FBT003 (torch's own)
    assert torch.equal(before, inputs.keep)  # type: ignore[arg-type]  # it has a mask
