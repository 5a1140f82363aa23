"""Masks that are read at another place are told, with the calls in which they are."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from examples import core
from torch import Tensor

from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose


def test_a_mask_of_exchanged_axes_is_told_with_the_masks_that_show_it() -> None:
    """Items and heads of a table are exchanged: a mask that is the same for either is right."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        logits = query @ key.mT * query.shape[-1] ** -0.5
        if keep is not None:
            exchanged = min(keep.shape[:2]) > 1
            table = keep.transpose(0, 1).reshape(keep.shape) if exchanged else keep
            logits = logits.masked_fill(~table, -math.inf)
        return logits.softmax(-1).nan_to_num(0.0) @ value

    promises = {"masks": ["keep"], "causal": None, "features": [], "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(attend, dtypes=["float32"], **promises), "float32"))
    assert entry["name"] == "mask: read with batch items and heads exchanged"
    assert "differs between heads" in entry["text"]


def every_second(logits: Tensor, _keep: Tensor | None) -> Tensor:
    """Steps of 16 keys of which 8 are read, where there are several queries."""
    skipped = (torch.arange(logits.shape[-1]) % 16 >= 8) & (logits.shape[-2] > 1)
    return logits.masked_fill(skipped, -math.inf).softmax(-1)


def first_half(logits: Tensor, keep: Tensor | None) -> Tensor:
    """Rows are empty where the first of two splits of the keys is."""
    half = logits.shape[-1] // 2
    keep = torch.ones_like(logits, dtype=torch.bool) if keep is None else keep
    empty = ~keep.expand(logits.shape)[..., :half].any(-1, keepdim=True)
    return logits.softmax(-1).masked_fill(empty, 0.0)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (every_second, "exponentials: zero for every second tile of 8 keys"),
        (
            first_half,
            "weights: zero for queries from which the first half of the keys is hidden",
        ),
    ],
)
def test_keys_that_loops_lose_are_told_by_tiles_and_halves(
    weights: Callable[[Tensor, Tensor | None], Tensor], said: str
) -> None:
    """A step twice as wide as a tile, and a split that decides for the whole row."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        logits = query @ key.mT * query.shape[-1] ** -0.5
        logits = logits if keep is None else logits.masked_fill(~keep, -math.inf)
        return weights(logits, keep).nan_to_num(0.0) @ value

    promises = {"masks": ["keep"], "causal": None, "features": [], "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(attend, dtypes=["float32"], **promises), "float32"))
    assert entry["name"] == said


@pytest.mark.parametrize(("by_query", "said"), [(True, "query by query"), (False, "head by head")])
def test_places_of_rows_that_are_folded_heads_are_told(
    by_query: bool,  # noqa: FBT001
    said: str,
) -> None:
    """The heads of a group are rows of one product, whose indices are taken for places."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
        groups, shift = query.unflatten(1, (key.shape[1], -1)), key.shape[2] - query.shape[2]
        rows = groups.transpose(2, 3) if by_query else groups
        logits = rows.flatten(2, 3) @ key.mT * query.shape[-1] ** -0.5
        if causal:
            seen = torch.ones_like(logits, dtype=torch.bool).tril(shift)
            logits = logits.masked_fill(~seen, -math.inf)
        output = logits.softmax(-1).nan_to_num(0.0) @ value
        split = output.unflatten(2, rows.shape[2:4])
        return (split.transpose(2, 3) if by_query else split).flatten(1, 2)

    promises = {"masks": [], "causal": "bottom-right", "features": ["gqa"]}
    (entry,) = diagnose(Subject(core(attend, dtypes=["float32"], **promises), "float32"))
    assert entry["name"].endswith(f"where a group's heads are folded into rows {said}")
