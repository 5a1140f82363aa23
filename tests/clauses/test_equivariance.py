from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import bare, core, layer, plan, problem, run_clause, try_on
from torch import Tensor

PROMISES: dict[str, Any] = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}


def with_row_numbers(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each row knows its place."""
    return bare(query, key, value) + torch.arange(query.shape[2])[:, None]


def with_key_numbers(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each key knows its place."""
    return bare(query, key + torch.arange(key.shape[2])[:, None], value)


def with_item_numbers(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each item knows its place."""
    return bare(query, key, value) + torch.arange(query.shape[0])[:, None, None, None]


def with_head_numbers(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each head knows its place."""
    return bare(query, key, value) + torch.arange(query.shape[1])[:, None, None]


def with_batch_mean(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Items see each other."""
    return bare(query, key, value) + value.mean()


@pytest.mark.parametrize(
    ("broken", "slug"),
    [
        (with_row_numbers, "equivariance.queries"),
        (with_row_numbers, "equivariance.tokens"),
        (with_key_numbers, "equivariance.keys"),
        (with_item_numbers, "equivariance.batch"),
        (with_head_numbers, "equivariance.heads"),
        (with_batch_mean, "equivariance.batch-independent"),
    ],
)
def test_each_order_is_detected(broken: Any, slug: str) -> None:
    """A core in which one axis knows its order fails the clause of that axis."""
    assert run_clause(core(broken, **PROMISES), slug).status == "failed"


@pytest.mark.parametrize("slug", ["tokens", "queries", "keys", "batch", "heads"])
@pytest.mark.parametrize("shape", ["BHQK", "B11K", "11QK"])
@pytest.mark.parametrize("made", [core, layer])
def test_masks_move_along(slug: str, shape: str, made: Any) -> None:
    """Masks of every shape are reordered with what they speak of."""
    example = problem(query_length=7, mask=plan("random", "keep", shape))
    finding = try_on(made(), f"equivariance.{slug}", example)
    assert finding.violation is None
    assert finding.binding


def test_equivariance_does_not_apply_to_positions() -> None:
    """A layer that mixes in positions need not ignore the order."""
    candidate = layer(inputs="self", position="sinusoidal")
    result = run_clause(candidate, "equivariance.tokens")
    assert result.status == "not-applicable"
    assert result.reason == "it mixes in sinusoidal positions, so order matters"
