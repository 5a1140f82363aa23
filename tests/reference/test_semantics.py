"""The point space: its choices, what it refuses and in which words."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest
from golden_problems import CHOICES, points
from hypothesis import given

from reference import STANDARD, Semantics, scale_value

REFUSED: list[tuple[str, Any, str]] = [
    ("softmax_axis", "row", "softmax_axis is 'row', not one of key, query, head, batch, none"),
    ("null_key", "yes", "null_key is 'yes', not True or False"),
    ("mask_polarity", True, "mask_polarity is True, not one of keep, drop"),
    ("mask_operation", "fill", "mask_operation is 'fill', not one of replace, add, add-to-kept"),
    ("causal_alignment", "left", "causal_alignment is 'left', not one of bottom-right, top-left"),
    ("causal_combination", "and", "causal_combination is 'and', not one of both, causal-only"),
    ("empty_rows", "any", "empty_rows is 'any', not one of zeros, nan, mean-of-all, mean-of-valid"),
    ("bias_order", "before", "bias_order is 'before', not one of after-scale, before-scale"),
    ("softcap_order", "after", "softcap_order is 'after', not one of before-mask, after-mask"),
    ("head_split", "block", "head_split is 'block', not one of blocks, interleaved, reinterpret"),
    ("head_merge", "token", "head_merge is 'token', not one of blocks, interleaved, reinterpret"),
    ("group_order", "cycle", "group_order is 'cycle', not one of repeat, tile"),
    ("one_query_causal", 0, "one_query_causal is 0, not True or False"),
    ("query_bias", 1, "query_bias is 1, not True or False"),
    ("key_bias", None, "key_bias is None, not True or False"),
    ("value_bias", "no", "value_bias is 'no', not True or False"),
    ("output_bias", 0, "output_bias is 0, not True or False"),
    ("scale", "sqrt", "scale is 'sqrt', not a number or one of"),
    ("scale", math.inf, "scale is inf, not a finite number or a rule"),
    ("scale", None, "scale is None, not a finite number or a rule"),
    ("scale_factor", math.nan, "scale_factor is nan, not finite"),
    ("mask_fill", math.nan, "mask_fill is nan, not finite or minus infinity"),
    ("mask_fill", math.inf, "mask_fill is inf, not finite or minus infinity"),
    ("causal_by", "place", "causal_by is 'place', not one of places, positions"),
    ("causal_offset", 0.5, "causal_offset is 0.5, not an integer"),
    ("window_offset", "1", "window_offset is '1', not an integer"),
    ("qk_norm", "rmsnorm", "qk_norm is 'rmsnorm', not one of none, rms, l2, layer"),
    ("qk_norm_over", "heads", "qk_norm_over is 'heads', not one of head, all-heads"),
    ("qk_norm_epsilon", -1e-6, "qk_norm_epsilon is -1e-06, negative or not finite"),
    ("qk_norm_epsilon", math.inf, "qk_norm_epsilon is inf, negative or not finite"),
    ("relative", "t6", "relative is 't6', not one of none, clipped, t5, t5-causal"),
    ("relative_distance", 0, "relative_distance is 0, not positive"),
    ("norm_order", "after", "norm_order is 'after', not one of before-rotary, after-rotary"),
    ("rotary", "half", "rotary is 'half', not one of none, halves, interleaved"),
    (
        "rotary",
        "neox",
        "rotary is 'neox', not one of none, halves, interleaved; did you mean 'halves'",
    ),
    ("rotary", None, "rotary is None, not one of none, halves, interleaved; did you mean 'none'?"),
    (
        "qk_norm",
        "RMSNorm",
        "qk_norm is 'RMSNorm', not one of none, rms, l2, layer; did you mean 'rms'",
    ),
    ("head_split", ["x"], "head_split is ['x'], not one of blocks, interleaved, reinterpret"),
    ("mask_fill", "-inf", "mask_fill is '-inf', not a number"),
    ("mask_fill", -(2**70), f"mask_fill is -{2**70}, larger than tensors hold"),
    ("causal_offset", 2**70, f"causal_offset is {2**70}, larger than tensors hold"),
    ("scale_factor", None, "scale_factor is None, not a number"),
    ("rotary_base", "1e4", "rotary_base is '1e4', not a number"),
    ("rotary_base", 0.0, "rotary_base is 0.0, not positive and finite"),
    ("rotary_base", math.inf, "rotary_base is inf, not positive and finite"),
    (
        "rotary_scaling",
        ("yarn", 4.0),
        "rotary_scaling is ('yarn', 4.0): give ('linear', factor) or",
    ),
    ("rotary_scaling", ["linear", 4.0], "rotary_scaling is ['linear', 4.0]: give ('linear',"),
    (
        "rotary_scaling",
        ("llama3", 8.0, 4.0, 1.0, 64),
        "rotary_scaling is ('llama3', 8.0, 4.0, 1.0, 64), whose low is not below high",
    ),
    (
        "rotary_scaling",
        ("yarn", 4.0, 1.0, 32.0, 64),
        "rotary_scaling is ('yarn', 4.0, 1.0, 32.0, 64), whose beta_slow is not below beta_fast",
    ),
    ("rotary_amplitude", 0.0, "rotary_amplitude is 0.0, not positive and finite"),
    ("rotary_fraction", 0.0, "rotary_fraction is 0.0, not in (0, 1]"),
    ("rotary_fraction", 1.5, "rotary_fraction is 1.5, not in (0, 1]"),
    ("alibi", 1, "alibi is 1, not True or False"),
    ("score_mod", "causal", "score_mod is 'causal', not a function"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_wrong_choice_is_refused(name: str, value: Any, message: str) -> None:
    """A value outside a field's choices is refused in a sentence that starts with the field."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Semantics(**{name: value})


def test_every_field_is_tested_for_refusal() -> None:
    """The list of refusals leaves no field out, so a new field needs its own check."""
    assert {name for name, _, _ in REFUSED} == {f.name for f in dataclasses.fields(Semantics)}


def test_every_field_is_drawn() -> None:
    """The strategy of points varies every field, and each has at least two values."""
    assert set(CHOICES) == {field.name for field in dataclasses.fields(Semantics)}
    assert all(len(values) > 1 for values in CHOICES.values())


def test_standard_is_the_paper() -> None:
    """The standard point is the specification: the paper's scale, exact masking, bottom-right."""
    assert Semantics() == STANDARD
    assert STANDARD.scale == "inverse-sqrt-head-size"
    assert STANDARD.softmax_axis == "key"
    assert STANDARD.mask_operation == "replace"
    assert STANDARD.mask_fill == -math.inf
    assert STANDARD.causal_alignment == "bottom-right"
    assert STANDARD.empty_rows == "zeros"


def test_points_are_frozen() -> None:
    """A point cannot be changed in place: the standard stays the standard."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        STANDARD.scale = 1.0  # type: ignore[misc]


def test_unknown_field_is_refused() -> None:
    """A field that does not exist is a TypeError that names it."""
    with pytest.raises(TypeError, match="temperature"):
        STANDARD.replace(temperature=2.0)


@given(point=points())
def test_differences_rebuild_the_point(point: Semantics) -> None:
    """The differences hold exactly what turns one point into another."""
    differences = STANDARD.differences(point)
    assert all(ours != theirs for ours, theirs in differences.values())
    assert STANDARD.replace(**{name: pair[1] for name, pair in differences.items()}) == point
    assert point.differences(point) == {}


@pytest.mark.parametrize(
    ("rule", "scale"),
    [
        ("inverse-sqrt-head-size", 1 / 4),
        ("none", 1.0),
        ("inverse-head-size", 1 / 16),
        ("sqrt-head-size", 4.0),
        ("inverse-sqrt-model-width", 1 / 8),
        ("inverse-sqrt-num-heads", 1 / 2),
        ("inverse-sqrt-value-head-size", 1 / 16),
        (3.0, 3.0),
    ],
)
def test_scale_rules(rule: Any, scale: float) -> None:
    """Each rule gives its number: head size 16, value head size 256 and 4 heads tell them apart."""
    sizes = {"head_size": 16, "value_head_size": 256, "num_heads": 4}
    assert scale_value(Semantics(scale=rule), **sizes) == scale
    assert scale_value(Semantics(scale=rule, scale_factor=-0.5), **sizes) == -0.5 * scale


def test_scale_of_empty_heads() -> None:
    """A head size of zero counts as one: no scale is infinite."""
    assert scale_value(STANDARD, head_size=0, value_head_size=0, num_heads=1) == 1.0
