"""The golden and the second formulation agree at every point of Semantics."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import second_formulation as second
import torch
from agreement import disagreement
from golden_problems import CHOICES, Case, Shape, core_case, layer_case, points, shapes
from hypothesis import given, settings

from reference import STANDARD, Semantics

EVERY_CHOICE = [
    pytest.param(name, choice, id=f"{name}={getattr(choice, '__name__', choice)}")
    for name, values in CHOICES.items()
    for choice in values
]
# Problems on which every choice other than the standard one shows: more keys than queries and the
# reverse, every kind of mask alone and together, empty rows, no output matrix, sinks, two pairs of
# channels, one query.
ALL_AXES = (True, True, True, True)
BATTERY = [
    Shape(keep_axes=ALL_AXES, bias_axes=(True, False, True, True)),
    Shape(query_length=5, causal=True, keep_axes=(True, False, False, True), softcap=0.5),
    Shape(key_length=5, causal=True, window=(1, 1), bias_axes=ALL_AXES, length_form="BQ"),
    Shape(length_form="B", keep_axes=(False, True, True, True), window=(1, 0), seed=3),
    Shape(query_length=4, window=(0, -1), causal=True, output_size=None, softcap=0.5, seed=4),
    Shape(keep_axes=ALL_AXES, head_size=4, kv_heads=3, causal=True, sinks=True, seed=5),
    Shape(query_length=1, causal=True, seed=6),
    Shape(keep_axes=ALL_AXES, causal=True, learned="by all heads", seed=7),
    Shape(keep_axes=ALL_AXES, bias_axes=ALL_AXES, causal=True, learned="memory", seed=8),
    Shape(
        query_length=4,
        causal=True,
        window=(3, 2),
        positions=True,
        head_size=4,
        seed=7,
        learned="by head",
    ),
]
# The point at which a choice shows, where that is not the standard one. Adding minus infinity is
# replacing by it, so mask operations are told apart at a finite fill. The last of the keys hides
# nothing from one query.
BASES: dict[str, dict[str, Any]] = {
    "one_query_causal": {"causal_alignment": "top-left"},
    "mask_operation": {"mask_fill": -5.0},
    "qk_norm_epsilon": {"qk_norm": "rms"},
    "qk_norm_over": {"qk_norm": "rms"},
    "norm_order": {"qk_norm": "layer", "rotary": "halves"},
    "rotary_base": {"rotary": "halves"},
    "rotary_scaling": {"rotary": "halves"},
    "rotary_amplitude": {"rotary": "interleaved"},
    "rotary_fraction": {"rotary": "interleaved"},
    "relative_distance": {"relative": "t5-causal"},
}
# A refused call has no answer: the golden one is that of both, as the choice is documented to give.
NEVER_SHOWS = ("causal_combination", "refused")


def core_disagreement(golden: Any, answer: second.Answer) -> str:
    """Compare every intermediate value; scores only where a key is attended (others may be 0)."""
    own = golden.run["sizes"].key_length  # without the column of a memory
    shape = (*golden.weights.shape[:-1], own)
    scores = torch.where(golden.allowed, golden.scores, 0.0)[..., :own]
    live = _where(answer.attended, answer.scores)
    return (
        disagreement(golden.allowed[..., :own].expand(shape), answer.attended, "allowed")
        or disagreement(scores, live, "scores")
        or disagreement(golden.logits[..., :own].expand(shape), answer.logits, "logits")
        or disagreement(golden.weights[..., :own], answer.weights, "weights")
        or disagreement(golden.output, answer.output, "output")
    )


def _where(attended: Any, scores: Any) -> Any:
    if isinstance(attended, bool):
        return scores if attended else second.number(0.0)
    return [_where(a, s) for a, s in zip(attended, scores, strict=True)]


def case_disagreement(case: Case, point: Semantics, other: Semantics | None = None) -> str:
    """How the golden at one point departs from the second formulation at the same or another."""
    golden, answer = case.golden(point), case.second(point if other is None else other)
    if case.weights is None:
        return core_disagreement(golden, answer)
    return (
        core_disagreement(golden.core, answer.core)
        or disagreement(golden.merged, answer.merged, "merged")
        or disagreement(golden.output, answer.output, "output of the layer")
    )


@given(shape=shapes(), point=points())
def test_core_agrees(shape: Shape, point: Semantics) -> None:
    """Over any core problem and any point the golden lies within rounding of the exact answer."""
    assert case_disagreement(core_case(shape), point) == ""


@given(shape=shapes(), point=points())
def test_layer_agrees(shape: Shape, point: Semantics) -> None:
    """Over any layer problem and any point the golden lies within rounding of the exact answer."""
    assert case_disagreement(layer_case(shape), point) == ""


@pytest.mark.one_in(8)
@pytest.mark.parametrize(("name", "choice"), EVERY_CHOICE)
def test_every_choice_agrees(name: str, choice: object) -> None:
    """Each single choice agrees on a battery that has every kind of mask, not only when drawn."""
    point = STANDARD.replace(**{**BASES.get(name, {}), name: choice})
    for shape in BATTERY:
        assert case_disagreement(layer_case(shape), point) == ""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "choice"),
    [param for param in EVERY_CHOICE if param.values[1] != getattr(STANDARD, str(param.values[0]))],
)
def test_every_choice_shows(name: str, choice: object) -> None:
    """The comparison is not blind: no choice of the golden passes for the standard one but one."""
    base = STANDARD.replace(**BASES.get(name, {}))
    point = base.replace(**{name: choice})
    shows = any(case_disagreement(layer_case(shape), point, other=base) for shape in BATTERY)
    assert shows == ((name, choice) != NEVER_SHOWS)


@pytest.mark.parametrize("empty", ["batch", "query_length", "key_length"])
@pytest.mark.parametrize("rule", CHOICES["empty_rows"])
def test_empty_axes_agree(empty: str, rule: str) -> None:
    """No items, no queries or no keys give the empty answer, or zeros where there are no keys."""
    for shape in BATTERY:
        case = layer_case(shape.changed(**{empty: 0}))
        assert case_disagreement(case, STANDARD.replace(empty_rows=rule)) == ""


@given(shape=shapes())
@settings(max_examples=30)
def test_rounded_inputs_agree(shape: Shape) -> None:
    """An answer from float32 inputs lies within the rounding of the inputs of the exact one."""
    case = core_case(shape)
    query, key, value = case.inputs
    rounded = dataclasses.replace(case, inputs=(query.float(), key.float(), value.float()))
    answer = case.second(STANDARD, input_rounding=2.0**-24)
    assert disagreement(rounded.golden(STANDARD).output, answer.output, "output") == ""


def test_more_digits_change_nothing() -> None:
    """Fifty digits are plenty: with eighty the answer moves by less than 1e-40 of itself."""
    case = layer_case(BATTERY[0])
    fifty = case.second(STANDARD).output
    with second.digits(80):
        eighty = case.second(STANDARD).output
    for rows, more_rows in zip(fifty, eighty, strict=True):
        for row, more in zip(rows, more_rows, strict=True):
            for one, another in zip(row, more, strict=True):
                assert abs(one.value - another.value) < 1e-40 * abs(one.value)
