"""Structural masks against explicit triangles, lengths, and the ways of combining them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from reference import STANDARD, Semantics, attend, counts, structural_mask

TOP_LEFT = STANDARD.replace(causal_alignment="top-left")
LENGTHS = st.integers(0, 7)


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


def test_bottom_right_triangles() -> None:
    """Under bottom-right alignment the last query sees the last key, whichever length is larger."""
    assert rows(structure(2, 4, causal=True)) == ["xxx.", "xxxx"]
    assert rows(structure(4, 2, causal=True)) == ["..", "..", "x.", "xx"]
    assert rows(structure(3, 3, causal=True)) == ["x..", "xx.", "xxx"]


def test_top_left_triangles() -> None:
    """Under top-left alignment the first query sees the first key only."""
    assert rows(structure(2, 4, causal=True, semantics=TOP_LEFT)) == ["x...", "xx.."]
    assert rows(structure(4, 2, causal=True, semantics=TOP_LEFT)) == ["x.", "xx", "xx", "xx"]


@given(queries=LENGTHS, keys=LENGTHS)
def test_causal_is_a_triangle(queries: int, keys: int) -> None:
    """Both alignments are lower triangles, on the diagonal that ends or starts in a corner."""
    full = torch.ones(queries, keys, dtype=torch.bool)
    assert torch.equal(structure(queries, keys, causal=True), full.tril(keys - queries))
    assert torch.equal(structure(queries, keys, causal=True, semantics=TOP_LEFT), full.tril())


@given(queries=LENGTHS, keys=LENGTHS, offset=st.integers(-3, 3))
def test_causal_offset_moves_the_diagonal(queries: int, keys: int, offset: int) -> None:
    """The offset shows that many keys beyond the diagonal."""
    full = torch.ones(queries, keys, dtype=torch.bool)
    moved = structure(queries, keys, causal=True, semantics=STANDARD.replace(causal_offset=offset))
    assert torch.equal(moved, full.tril(keys - queries + offset))


def test_windows() -> None:
    """A window counts keys before and after the query's position, -1 meaning no limit."""
    assert rows(structure(3, 3, window=(0, 0))) == ["x..", ".x.", "..x"]
    assert rows(structure(3, 3, window=(1, 0))) == ["x..", "xx.", ".xx"]
    assert rows(structure(3, 3, window=(-1, 0))) == ["x..", "xx.", "xxx"]
    assert rows(structure(3, 3, window=(0, -1))) == ["xxx", ".xx", "..x"]
    assert rows(structure(2, 4, window=(1, 0))) == [".xx.", "..xx"]
    assert rows(structure(2, 4, window=(1, 0), semantics=TOP_LEFT)) == ["x...", "xx.."]
    wider = STANDARD.replace(window_offset=1)
    assert rows(structure(4, 4, window=(1, 0), semantics=wider)) == ["xx..", "xxx.", "xxxx", ".xxx"]


@given(queries=LENGTHS, keys=LENGTHS)
def test_causal_is_a_window(queries: int, keys: int) -> None:
    """Causality is the window without a left limit, and the open window is no mask at all."""
    causal = structure(queries, keys, causal=True)
    assert torch.equal(causal, structure(queries, keys, window=(-1, 0)))
    assert bool(structure(queries, keys, window=(-1, -1)).all())


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


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("both", "..x"),
        ("refused", "..x"),
        ("either", "xxx"),
        ("causal-only", "xxx"),
        ("mask-only", "..x"),
    ],
)
def test_combination(rule: Any, wanted: str) -> None:
    """Each rule of combination is its own truth table, for the last of three queries."""
    keep = torch.tensor([False, False, True]).reshape(1, 1, 1, 3)
    point = STANDARD.replace(causal_combination=rule)
    heads = torch.ones(1, 1, 3, 2)
    allowed = attend(heads, heads, heads, keep=keep, causal=True, semantics=point).allowed
    assert rows(allowed[0, 0])[2] == wanted


@pytest.mark.parametrize(
    ("rule", "together"),
    [("both", "..."), ("either", "xxx"), ("causal-only", "xx."), ("mask-only", "..x")],
)
@pytest.mark.parametrize("given", ["causal", "mask", "bias", "all"])
def test_a_rule_of_combination_speaks_of_both_only(rule: Any, together: str, given: str) -> None:
    """Alone, the flag or a mask counts whatever the rule; a window always does."""
    keep = torch.tensor([False, False, True, True]).reshape(1, 1, 1, 4)
    bias = torch.where(keep, 0.0, float("-inf"))
    point = STANDARD.replace(causal_combination=rule, causal_alignment="top-left")
    heads = torch.ones(1, 1, 4, 2)
    calls: dict[str, dict[str, Any]] = {
        "causal": {"causal": True},
        "mask": {"keep": keep},
        "bias": {"bias": bias},
        "all": {"causal": True, "keep": keep, "window": (1, 1)},
    }
    allowed = attend(heads, heads, heads, semantics=point, **calls[given]).allowed
    # Of keys 0 to 3 query 1 sees 0 to 2 through the window.
    alone = {"causal": "xx..", "mask": "..xx", "bias": "..xx", "all": f"{together}."}
    assert rows(allowed[0, 0])[1] == alone[given]


@pytest.mark.parametrize("rule", ["both", "either"])
def test_what_a_bias_hides_stays_hidden(rule: Any) -> None:
    """The flag shows no key whose bias is minus infinity, whatever admits a key."""
    bias = torch.tensor([0.0, -torch.inf, 0.0]).reshape(1, 1, 1, 3)
    point = STANDARD.replace(causal_combination=rule)
    heads = torch.ones(1, 1, 3, 2)
    allowed = attend(heads, heads, heads, bias=bias, causal=True, semantics=point).allowed
    assert rows(allowed[0, 0]) == ["x..", "x..", "x.x"]


def test_a_single_query_need_not_be_causal() -> None:
    """Where one query is never causal, it sees every key; two queries are causal as ever."""
    point = TOP_LEFT.replace(one_query_causal=False)
    assert rows(structure(1, 3, causal=True, semantics=TOP_LEFT)) == ["x.."]
    assert rows(structure(1, 3, causal=True, semantics=point)) == ["xxx"]
    assert rows(structure(2, 3, causal=True, semantics=point)) == ["x..", "xx."]
    assert counts(point, causal=True, masked=True, query_length=1) == (False, True)


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
