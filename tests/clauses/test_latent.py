"""Latent attention: one key for all heads, whose first channels are the value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import failing, problem
from examples import sizes as sized

import conformance
from candidates.broken.latent import GradientOfTheKeyAlone, LastChannelsForTheValue
from candidates.latent_attention import PROMISES, LatentCore, latent_attention
from conformance.calls.calling import arguments
from conformance.errors import DeclarationError
from conformance.oracle.gradient_oracle import GradientOracle
from conformance.oracle.oracle import Oracle
from conformance.problems.fitting import fitted_geometry
from conformance.problems.materialise import materialise
from conformance.problems.space import Space


def _declared(**promises: Any) -> Any:
    return conformance.core(LatentCore(), **{**PROMISES, **promises})


def test_gradients_of_a_latent_are_the_sum_of_those_of_key_and_value() -> None:
    """Torch's own of the same attention agree with the golden's within its bound."""
    inputs = materialise(
        problem(num_kv_heads=1, head_size=20, value_head_size=16), latent_attention
    )
    inputs = inputs.replace(query=inputs.query.double()).with_tokens(key=inputs.key.double())
    (query, latent), _ = arguments(inputs.replace(keep=None, mask_form=None, causal=False))
    plain = inputs.without_mask().replace(causal=False, scale=0.25)
    query, latent = query.requires_grad_(), latent.requires_grad_()
    output = LatentCore()(query, latent, scale=0.25)
    assert isinstance(output, torch.Tensor)
    upstream = torch.ones_like(output)
    expected = torch.autograd.grad(output, (query, latent), upstream)
    oracle = Oracle(latent_attention.declaration, "float32")
    gradients = GradientOracle(oracle).answer(plain, upstream).gradients
    assert gradients.keys() == {"query", "context"}
    assert torch.allclose(gradients["query"].value, expected[0])
    assert torch.allclose(gradients["context"].value.squeeze(1), expected[1])


@pytest.mark.parametrize(
    ("slug", "mistake"),
    [("numerics.golden", LastChannelsForTheValue), ("gradients.golden", GradientOfTheKeyAlone)],
)
def test_mistakes_are_caught(slug: str, mistake: Any) -> None:
    """The value's channels, and each part of the latent's gradient, count."""
    assert failing(mistake, slug)
    assert not failing(latent_attention, slug)


@pytest.mark.parametrize(
    ("promises", "said"),
    [
        ({}, "how many channels of the latent are the value"),
        ({"geometry": {"value_head_size": 8, "num_kv_heads": 2}}, "one key for all heads"),
        ({"geometry": {"value_head_size": 8, "head_size": 4}}, "first channels of the key"),
        ({"geometry": {"value_head_size": 8}, "features": ["kv_cache"]}, "kv_cache"),
    ],
)
def test_promises_that_exclude_each_other(promises: dict[str, Any], said: str) -> None:
    """One sentence says which."""
    with pytest.raises(DeclarationError, match=said):
        _declared(**promises)


def test_values_fit_into_keys_of_any_size() -> None:
    """Where only the value's size is declared, keys are drawn as wide at least."""
    candidate = _declared(geometry={"value_head_size": 16})
    for width in (1, 16, 33):
        sizes = fitted_geometry(sized(head_size=width), candidate, Space())
        assert (sizes.value_head_size, sizes.num_kv_heads) == (16, 1)
        assert sizes.head_size >= sizes.value_head_size
