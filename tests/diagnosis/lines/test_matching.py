"""A tensor is one of some values where their axes are ordered or joined as usual, and not else."""

from __future__ import annotations

import pytest
import torch
from examples import sizes
from torch import Tensor

from conformance.base.geometry import Geometry
from conformance.diagnosis.lines.steps import KnownValues, Step, arrangements

B, H, N, L, K, D = 2, 4, 2, 3, 5, 6
SIZES: Geometry = sizes(batch=B, num_heads=H, num_kv_heads=N, query_length=L, key_length=K)
HEADS = torch.randn(B, H, L, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
SCORES = torch.randn(B, H, L, K, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def known(*steps: Step, dtype: torch.dtype = torch.float32, tiled: bool = False) -> KnownValues:
    """Some values of a candidate of a dtype."""
    return KnownValues(steps, SIZES, dtype, tiled=tiled)


@pytest.mark.parametrize(
    "value",
    [
        HEADS,
        HEADS.float(),
        HEADS.transpose(1, 2),
        HEADS.transpose(1, 2).flatten(2),
        HEADS.transpose(1, 2).reshape(B * L, H * D),
        HEADS.flatten(0, 1),
        HEADS.unflatten(1, (N, H // N)),
        HEADS.mT,
        HEADS[:, :, None],
        HEADS.expand(7, B, H, L, D),
    ],
)
def test_usual_layouts(value: Tensor) -> None:
    """Tokens, heads of items joined, groups apart, transposed, with axes of one or repeated."""
    assert known(Step("BHQD", HEADS)).kind(value) == "step"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_short_formats(dtype: torch.dtype) -> None:
    """A value of any format is one however often it is repeated, NaN and infinities included."""
    rounded = HEADS.to(dtype)
    rounded[0, 0, 0, :2] = torch.tensor([torch.nan, torch.nan]).to(dtype)
    step = Step("BHQD", rounded.double())
    assert known(step).kind(rounded.expand(3, B, H, L, D)) == "step"
    assert not known(step).kind(rounded.flip(1).expand(3, B, H, L, D))


@pytest.mark.parametrize(
    "value",
    [
        HEADS.reshape(B, L, H, D),
        HEADS.permute(0, 2, 3, 1).flatten(2),
        HEADS.flip(1),
        HEADS * 1.001,
        HEADS[:1],
        torch.zeros_like(HEADS),
        torch.ones(3),
        torch.ones(()),
        torch.ones(0, 2),
        HEADS.to(torch.complex64),
    ],
)
def test_other_values(value: Tensor) -> None:
    """Axes taken for others, channels before heads, other numbers, and one number throughout."""
    assert known(Step("BHQD", HEADS)).kind(value) == ""


def test_groups_dealt_out_in_turns() -> None:
    """Where heads share keys in turns the axes of groups are the other way round."""
    value = HEADS.unflatten(1, (H // N, N))
    assert known(Step("BHQD", HEADS), tiled=True).kind(value.transpose(1, 2)) == "step"


def test_a_table_of_masks_is_not_transposed() -> None:
    """What a triangle hides is not what its transpose hides, and of squares nobody knows."""
    square = torch.ones(K, K, dtype=torch.bool).tril(-1)
    assert known(Step("QK", square, ordered=True)).kind(square) == "step"
    assert known(Step("QK", square, ordered=True)).kind(square.mT) == ""
    assert known(Step("QK", square)).kind(square) == "step"
    assert known(Step("QK", square)).kind(square.mT) == ""
    assert known(Step("QK", square[1:])).kind(square[1:].mT) == "step"


def test_bool_is_not_number() -> None:
    """A table of flags is none of numbers."""
    flags = torch.tensor([True, False, True])
    assert known(Step("K", flags)).kind(flags.float()) == ""


def test_where_nothing_is_known_anything_goes() -> None:
    """Hidden scores may be whatever they are; the others must be right."""
    seen = SCORES.masked_fill(SCORES > 0, torch.nan)
    filled = SCORES.masked_fill(SCORES > 0, -1e9)
    assert known(Step("BHQK", seen, partial=True)).kind(filled) == "step"
    assert known(Step("BHQK", seen, partial=True)).kind(filled + 1.0) == ""


def test_values_inside_a_softmax_are_told_apart() -> None:
    """A step counts before an inner one of the same value."""
    inner = Step("BHQK", SCORES, inner=True)
    assert known(inner).kind(SCORES) == "inner"
    assert known(inner, Step("BHQK", SCORES)).kind(SCORES) == "step"


def test_half_precision_tells_nothing() -> None:
    """Neither do logits so large that rounding hides what they are."""
    assert known(Step("BHQK", SCORES)).telling
    assert not known(Step("BHQK", SCORES), dtype=torch.bfloat16).telling
    assert not known(Step("BHQK", 1e5 * SCORES)).telling


def test_orders_of_axes() -> None:
    """Each way to have a shape, with axes joined where that is usual; none where sizes differ."""
    assert arrangements("QK", (3, 5), (5, 3)) == ((1, 0),)
    assert arrangements("BNQ", (2, 3, 5), (6, 5)) == ((0, 1, 2),)
    assert arrangements("QD", (3, 5), (15,)) == ()
    assert arrangements("QK", (3, 5), (3, 4)) == ()
