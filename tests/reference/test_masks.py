"""Structural masks against explicit triangles, lengths, and the ways of combining them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from refusals import refused

from reference import STANDARD, Semantics, attend, structural_mask


def structure(
    queries: int,
    keys: int,
    *,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    semantics: Semantics = STANDARD,
) -> torch.Tensor:
    """``structural_mask`` with nothing asked for by default."""
    return structural_mask(queries, keys, causal=causal, window=window, semantics=semantics)


def given_mask(
    shape: tuple[int, int, int, int], *, semantics: Semantics = STANDARD, **masks: Any
) -> torch.Tensor:
    """The keys that masks alone leave to queries, for scores of a shape."""
    batch, heads, queries, keys = shape
    query, key = torch.ones(batch, heads, queries, 1), torch.ones(batch, heads, keys, 1)
    return attend(query, key, key, **masks, semantics=semantics).allowed


def rows(mask: torch.Tensor) -> list[str]:
    """A mask as text, one row a query, x where a key is attended."""
    return ["".join("x" if entry else "." for entry in row) for row in mask.tolist()]


def test_lengths() -> None:
    """Lengths admit the keys before them, one number an item or one a query."""
    shape = (2, 1, 2, 3)
    per_item = given_mask(shape, lengths=torch.tensor([0, 2]))[:, 0]
    assert [rows(item) for item in per_item] == [["...", "..."], ["xx.", "xx."]]
    per_query = torch.tensor([[3, 0], [1, 2]])
    table = given_mask(shape, lengths=per_query)[:, 0]
    assert [rows(item) for item in table] == [["xxx", "..."], ["x..", "xx."]]


def test_lengths_have_no_polarity() -> None:
    """A "drop" polarity turns the boolean mask around and leaves lengths alone."""
    drop = STANDARD.replace(mask_polarity="drop")
    keep = torch.tensor([[[[True, False, False]]]])
    admitted = given_mask((1, 1, 1, 3), keep=keep, lengths=torch.tensor([2]), semantics=drop)
    assert admitted.tolist() == [[[[False, True, False]]]]


def test_empty_batch_with_lengths() -> None:
    """No items and no lengths give an empty table, of either form."""
    for lengths in (torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2, dtype=torch.int64)):
        table = given_mask((0, 1, 2, 3), lengths=lengths)
        assert table.shape[0] == 0


@pytest.mark.parametrize("rule", ["both", "either"])
def test_what_a_bias_hides_stays_hidden(rule: Any) -> None:
    """The flag shows no key whose bias is minus infinity, whatever admits a key."""
    bias = torch.tensor([0.0, -torch.inf, 0.0]).reshape(1, 1, 1, 3)
    point = STANDARD.replace(causal_combination=rule)
    heads = torch.ones(1, 1, 3, 2)
    allowed = attend(heads, heads, heads, bias=bias, causal=True, semantics=point).allowed
    assert rows(allowed[0, 0]) == ["x..", "x..", "x.x"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": torch.ones(1, 1, 2, 4)}, "keep has dtype torch.float32, not torch.bool"),
        (
            {"keep": torch.ones(1, 1, 2, 3).bool()},
            "keep has shape [1, 1, 2, 3], which does not broadcast to [2, 1, 2, 4] [B, H, Lq, Lk]",
        ),
        ({"lengths": torch.ones(2)}, "lengths has dtype torch.float32, not an integer one"),
        ({"lengths": torch.ones(2).bool()}, "lengths has dtype torch.bool, not an integer one"),
        ({"lengths": torch.tensor([1, 5])}, "lengths has entries outside 0..4"),
        ({"lengths": torch.tensor([-1, 1])}, "lengths has entries outside 0..4"),
        ({"lengths": torch.tensor([1])}, "lengths has shape [1], not [2] or [2, 2]"),
        ({"lengths": torch.ones(2, 3).long()}, "lengths has shape [2, 3], not [2] or [2, 2]"),
    ],
)
def test_wrong_masks_are_refused(arguments: dict[str, Any], message: str) -> None:
    """A mask of the wrong dtype, shape or range is refused by name."""
    with refused(message):
        given_mask((2, 1, 2, 4), **arguments)


def test_lengths_that_are_no_tensor_are_refused() -> None:
    """A list of lengths is a TypeError that names the argument."""
    lengths: Any = [1, 2]
    with refused("lengths is a list, not a torch.Tensor", TypeError):
        given_mask((2, 1, 2, 4), lengths=lengths)


def test_wrong_structure_is_refused() -> None:
    """A negative length or a window that is no pair is refused by name."""
    with refused("query_length is -1, which is negative"):
        structure(-1, 2)
    with refused("key_length is -2, which is negative"):
        structure(1, -2)
    with refused("window is (1,), not (left, right) with integers from -1"):
        structure(1, 2, window=(1,))  # type: ignore[arg-type]
