from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from double_double_problems import MASKS, SHAPE, excesses, with_exact_scale
from golden_problems import Case, Shape, layer_case, points, shapes
from hypothesis import assume, given

from conformance.oracle.double_double import core_output, layer_output, supports
from reference import STANDARD, Semantics

# Learned factors are products that double-double takes as exact.
PLAIN = shapes().map(lambda shape: shape.changed(learned=""))


def assert_near_exact(case: Case, point: Semantics = STANDARD) -> None:
    """Require of each element the error that the operations may make."""
    case, layer = with_exact_scale(case, point)
    output = layer_output(layer)
    assert output[0].shape == output[1].shape == layer.output.shape
    assert max(excesses(case, point, output)) <= 1.0


@pytest.mark.parametrize("output_size", [None, 4])
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_layers_are_solved_to_double_double(
    mask: str, *, biases: bool, output_size: int | None
) -> None:
    """Grouped heads, with and without biases and output projection, under each mask."""
    shape = SHAPE.changed(projection_biases=biases, output_size=output_size, **MASKS[mask])
    assert_near_exact(layer_case(shape))


POINTS: tuple[dict[str, Any], ...] = (
    {"query_bias": False},
    {"key_bias": False},
    {"value_bias": False},
    {"output_bias": False},
    {"head_split": "interleaved"},
    {"head_split": "reinterpret"},
    {"head_merge": "interleaved"},
    {"head_merge": "reinterpret"},
    {"head_merge": "tokens"},
    {"group_order": "tile"},
    {"empty_rows": "mean-of-all"},
)


@pytest.mark.parametrize("changes", POINTS, ids=str)
def test_each_choice_is_honoured(changes: dict[str, Any]) -> None:
    """Left-out biases, and every way of splitting, merging and grouping."""
    shape = SHAPE.changed(output_size=4, keep_axes=(True, False, True, True), softcap=2.0)
    case = layer_case(shape)
    case.tensors["keep"][:, :, 0] = False
    assert_near_exact(case, STANDARD.replace(**changes))


@pytest.mark.parametrize("magnitude", [1e-3, 1e2])
def test_layers_of_other_magnitudes(magnitude: float) -> None:
    """Flat weights, and logits that let one key win."""
    assert_near_exact(layer_case(SHAPE.changed(magnitude=magnitude)))


@given(PLAIN, points())
def test_any_supported_point_is_solved_to_double_double(shape: Shape, point: Semantics) -> None:
    """Any geometry, masks and choices: splitting, merging, grouping and left-out biases."""
    assume(supports(point))
    assert_near_exact(layer_case(shape), point)


def test_projections_are_not_rounded_on_the_way() -> None:
    """The layer differs from the core on float64 projections by more than 2^-53 squared."""
    case = layer_case(SHAPE.changed(output_size=None))
    layer = case.golden(STANDARD)
    high, low = layer_output(layer)
    core = [part.transpose(1, 2).flatten(2) for part in core_output(layer.core)]
    difference = (high - core[0]) + (low - core[1])
    assert float(difference.abs().max()) > 2.0**-80


@pytest.mark.parametrize("rule", ["zeros", "mean-of-valid"])
def test_junk_tokens_that_nobody_reads_change_nothing(rule: Any) -> None:
    """NaN and infinity in unread key and value tokens leave every bit as it was."""
    point = STANDARD.replace(empty_rows=rule)
    case = layer_case(SHAPE.changed(keep_axes=(True, False, True, True), causal=True, seed=3))
    case.tensors["keep"][..., -1] = False
    case.tensors["keep"][:, :, 0] = False  # causality admits all keys but the last to this row
    clean = layer_output(case.golden(point))
    query, key, value = (tokens.clone() for tokens in case.inputs)
    key[:, -1], value[:, -1] = math.nan, math.inf
    dirty_case = dataclasses.replace(case, inputs=(query, key, value))
    dirty = layer_output(dirty_case.golden(point))
    assert bool(torch.isfinite(clean[0]).all())
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1])
