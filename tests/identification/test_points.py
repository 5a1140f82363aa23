"""Points of the semantics are read off the weights, with the numbers that people write."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
import unusual_attention

from conformance import STANDARD
from conformance.adapters.projection_search import ModuleRequest
from conformance.identification.agreement import PointJudge
from conformance.identification.behaviour import order_matters
from conformance.identification.caller import Caller
from conformance.identification.callers import (
    Understood,
    function_callers,
    module_callers,
    understood,
)
from conformance.identification.convention import sloped, windowed
from conformance.identification.implementation import implementation_of
from conformance.identification.plain_reading import (
    PlainReading,
    Weights,
    observe,
    read_further,
    read_plain,
)
from conformance.identification.points import Factor, round_numbers

BY_HEAD = (
    "score + torch.tensor([-0.5, -0.25, -0.125], dtype=score.dtype)[head] * (query - key).abs()"
)


@lru_cache
def caller(name: str) -> Caller:
    """The first way of calling that gives an answer."""
    value = getattr(unusual_attention, name)
    thing = implementation_of(value, target=name, name=name, imports=(), expression=name)
    if thing.form == "module":
        reading = understood(thing.value, ModuleRequest(shown=name))
        assert isinstance(reading, Understood)
        return next(iter(module_callers(reading)))
    return next(one for one in function_callers(thing) if one.answer(one.draw()) is not None)


@lru_cache
def plain(name: str) -> PlainReading | None:
    """What is read of plain calls."""
    observed = observe(caller(name))
    assert isinstance(observed, list)
    weights, judge = Weights(caller(name)), PointJudge(caller(name).kind, "float32")
    return read_plain(weights, observed, judge) or read_further(weights, observed, judge)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("rotary", {"rotary": "interleaved", "rotary_base": 5e5}),
        ("cosine_similarity", {"qk_norm": "l2", "scale": 10.0}),
        ("layer_normalised", {"qk_norm": "layer", "qk_norm_epsilon": 1e-5}),
        ("finely_normalised", {"qk_norm": "layer", "qk_norm_epsilon": 1e-12}),
        ("odd_scale", {"scale_factor": 0.75**0.5}),
        # Heads of four channels: a scale that is a little off would fit another epsilon as well.
        ("layer_of_normalised", {"qk_norm": "layer", "qk_norm_epsilon": 1e-5}),
    ],
)
def test_fields_are_read(name: str, fields: dict[str, Any]) -> None:
    """Norms, positions and numbers: exactly those that the function has, and nothing else."""
    reading = plain(name)
    assert reading is not None
    changed = STANDARD.differences(reading.point)
    assert {field: pair[1] for field, pair in changed.items()} == pytest.approx(fields, abs=0.0)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("name", "expression", "always"),
    [
        ("unscaled_cap", "3 * torch.tanh(score / 3)", "top-left"),
        ("high_cap", "50 * torch.tanh(score / 50)", None),
        (
            "local",
            "score.masked_fill((query - key > 10) | (key - query > 10), -torch.inf)",
            None,
        ),
        ("leaning", "score + -0.25 * (query - key).abs()", None),
        ("layer_sliding", "score.masked_fill(query - key > 1, -torch.inf)", "bottom-right"),
        (
            "layer_leaning",
            BY_HEAD,
            None,
        ),
    ],
)
def test_functions_of_scores_are_read(name: str, expression: str, always: str | None) -> None:
    """Caps, windows and slopes that no keyword turns off are functions that can be declared."""
    reading = plain(name)
    assert reading is not None
    assert (str(reading.point.score_mod), reading.always) == (expression, always)


@pytest.mark.parametrize(
    "name",
    ["with_one_more", "top_three", pytest.param("layer_sinks", marks=pytest.mark.nightly)],
)
def test_what_no_point_says_has_none(name: str) -> None:
    """No point is made of a softmax with one more term, or of the largest logits alone."""
    assert plain(name) is None


@pytest.mark.parametrize(
    ("read", "same", "written"),
    [
        (0.43301270, 1e-7, 0.75**0.5 / 2),
        (0.43301270, 1e-4, 0.433),
        (0.0833333, 1e-5, 1 / 12),
        (-0.125000004, 1e-6, -0.125),
        (0.123456789, 1e-9, 0.123456789),
    ],
)
def test_numbers_are_as_plain_as_was_read(read: float, same: float, written: float) -> None:
    """Of decimals, roots and inverses the first within what was read, else the number itself."""
    assert round_numbers(Factor(read, same))[0] == pytest.approx(written, abs=1e-9)


def test_a_bias_by_distance_is_an_order() -> None:
    """Reversed tokens keep their distances: another order shows that it matters."""
    assert order_matters(caller("leaning")) is True
    assert order_matters(caller("layer_leaning")) is True
    assert order_matters(caller("cosine_similarity")) is False


def test_a_point_holds_at_greater_lengths() -> None:
    """What is right up to ten keys from a query alone is not taken for the specification."""
    short = caller("local")
    few = short.answer(short.draw({"query_length": 8, "key_length": 8}))
    assert few is not None
    judge = PointJudge("core", "float32")
    expected = judge.oracle.output(few.inputs, STANDARD)
    assert torch.allclose(few.output, expected, atol=1e-5)
    assert plain("local") is not None
    assert plain("local").point != STANDARD  # type: ignore[union-attr]  # asserted above


def test_keys_that_all_weigh_the_same_have_no_scale() -> None:
    """Rounding is no number: of a layer, whose weights are solved for, it would be read."""
    for name in ("alike", "layer_alike"):
        reading = plain(name)
        assert reading is not None
        assert reading.point.scale == 0.0


def test_functions_of_scores_that_nobody_means_say_so() -> None:
    """A triangle the wrong way round, and far keys that win: no window and no slope besides."""
    assert windowed(0, None).mistake
    assert sloped([0.5, 0.25]).mistake
    assert not any(one.mistake for one in (windowed(0, 2), windowed(3, None), sloped([-0.5, 0.25])))
