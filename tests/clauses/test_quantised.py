"""Quantised keys and values: codes, scales, and what is declared of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import failing, problem

import conformance
from candidates.broken.quantised import LowestCodeClipped, ScalesRemembered, ValueScaleLeftOut
from candidates.quantised_attention import PROMISES, QuantisedCore, quantised_latent
from conformance.calls.calling import arguments
from conformance.declare.candidate import Candidate
from conformance.errors import DeclarationError
from conformance.problems.materialise import materialise
from conformance.problems.quantised import FORMATS


def _declared(**promises: Any) -> Candidate:
    return conformance.core(QuantisedCore(), **{**PROMISES, **promises})


@pytest.mark.parametrize("by", ["tensor", "head", "token"])
@pytest.mark.parametrize("kv_format", FORMATS)
def test_codes_times_scales_are_the_keys_and_values(kv_format: str, by: str) -> None:
    """Exactly, in every dtype of the query; zeros occur, and scales of both sides differ."""
    for dtype in ("float32", "float16", "bfloat16"):
        candidate = _declared(kv_format=kv_format, kv_scales=by, dtypes=[dtype])
        inputs = materialise(problem(dtype=dtype, num_kv_heads=2), candidate)
        (_, key, value), keywords = arguments(inputs)
        sizes = inputs.geometry
        batch, heads, length = sizes.batch, sizes.num_kv_heads, sizes.key_length
        expected = {"tensor": (), "head": (heads,), "token": (batch, length, heads)}[by]
        for codes, name in ((key, "key"), (value, "value")):
            scale = keywords[f"{name}_scale"]
            assert (codes.dtype, scale.dtype) == (FORMATS[kv_format].dtype, torch.float32)
            assert scale.shape == expected
            numbers = codes.double() * QuantisedCore().by_head(scale)
            assert torch.equal(numbers, getattr(inputs, name).double())
        assert bool((value.double() == 0.0).any() | (key.double() == 0.0).any())
        assert not torch.equal(keywords["key_scale"], keywords["value_scale"])


@pytest.mark.parametrize(
    ("slug", "mistake"),
    [
        ("quantised.golden", ValueScaleLeftOut),
        ("quantised.scales", ScalesRemembered),
        ("quantised.saturated", LowestCodeClipped),
    ],
)
def test_mistakes_are_caught_by_their_clauses(slug: str, mistake: Candidate) -> None:
    """Each clause catches its own, and passes a correct core."""
    assert failing(mistake, slug)
    assert not failing(_declared(kv_format="int8", kv_scales="token"), slug)


def test_a_latent_of_codes_has_one_scale() -> None:
    """Its value is a part of its key, so that both scales are equal."""
    inputs = materialise(
        problem(num_kv_heads=1, head_size=20, value_head_size=16), quantised_latent
    )
    (_, latent), keywords = arguments(inputs)
    assert latent.dtype == torch.float8_e4m3fn
    assert torch.equal(keywords["key_scale"], keywords["value_scale"])


@pytest.mark.parametrize(
    ("promises", "said"),
    [
        ({"kv_format": "int4"}, "kv_format"),
        ({"kv_scales": "head"}, "without kv_format"),
        ({"kv_format": "int8", "kv_scales": "channel"}, "kv_scales"),
        ({"kv_format": "int8", "features": ["gradients"]}, "codes have no gradients"),
        ({"kv_format": "int8", "features": ["kv_cache"]}, "judged without"),
        (
            {"kv_format": "int8", "layout": "packed-qkv", "features": ["scale"]},
            "whose queries lie with its keys",
        ),
        ({"kv_format": "int8", "kv_scales": "slot"}, "no caches"),
    ],
)
def test_promises_that_exclude_each_other(promises: dict[str, Any], said: str) -> None:
    """One sentence says which."""
    with pytest.raises(DeclarationError, match=said):
        _declared(**promises)
