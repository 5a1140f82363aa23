from __future__ import annotations

import math

import pytest
import torch
from examples import core, layer, problem, sizes

from conformance.oracle.oracle import evaluate
from conformance.problems.materialise import TORCH_DTYPES, materialise
from conformance.problems.recipes import HALF_PRECISION, LIVELY, ORDINARY, PROBES, RECIPES
from conformance.problems.strategies import HEAD_SIZES, SCALES, SOFTCAPS

LARGEST_SCALE = max(scale for scale in SCALES if scale is not None)


def test_wanted_recipes_exist() -> None:
    """The recipes that the design asks for are there."""
    assert {
        "normal", "large-logits", "negative-logits", "tied-keys", "dominant-key", "nearly-uniform",
        "cancelling", "tiny", "subnormal", "mixed-scales", "integers",
    } <= set(ORDINARY)  # fmt: skip
    assert set(LIVELY) <= set(ORDINARY)
    assert set(HALF_PRECISION) <= set(RECIPES)
    assert set(PROBES) <= set(HALF_PRECISION)
    assert not set(PROBES) & set(ORDINARY)


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("head_size", [40, max(HEAD_SIZES)])
def test_logits_of_cores_stay_below_a_hundred_thousand(name: str, head_size: int) -> None:
    """Logits beyond 1e5 belong to two clauses alone: a finite fill must not fail everywhere."""
    geometry = sizes(batch=3, query_length=8, key_length=128, head_size=head_size)
    for seed in range(3):
        example = problem(geometry=geometry, values=name, seed=seed, scale=LARGEST_SCALE)
        inputs = materialise(example, core())
        products = inputs.query.double() @ inputs.key.double().transpose(-1, -2)
        assert float(products.abs().max()) * LARGEST_SCALE < 1e5


@pytest.mark.parametrize("name", ORDINARY)
def test_logits_of_layers_stay_below_a_hundred_thousand(name: str) -> None:
    """The projections keep the spread, so that the same holds for layers."""
    candidate = layer()
    for seed in range(3):
        geometry = sizes(head_size=40, query_size=24, key_size=24, key_length=40)
        example = problem(geometry=geometry, values=name, seed=seed, scale=LARGEST_SCALE)
        inputs = materialise(example, candidate)
        core_of = evaluate(inputs, candidate.declaration.semantics).core  # type: ignore[union-attr]
        assert float(core_of.scores.abs().max()) < 1e5


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_are_finite_in_the_working_dtype(name: str, dtype: str) -> None:
    """Every recipe fits the dtype it is asked for, and is of that dtype."""
    inputs = materialise(problem(values=name, dtype=dtype), core())
    for tensor in (inputs.query, inputs.key, inputs.value):
        assert tensor.dtype == TORCH_DTYPES[dtype]
        assert bool(tensor.isfinite().all())


@pytest.mark.parametrize("name", HALF_PRECISION)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_recipes_fit(name: str, dtype: str) -> None:
    """The recipes left for half precision neither overflow nor vanish there."""
    inputs = materialise(problem(values=name, dtype=dtype), core())
    assert all(bool(t.isfinite().all() & (t != 0).any()) for t in (inputs.query, inputs.value))


def made(name: str, role: str, shape: tuple[int, ...] = (2, 3, 6, 4)) -> torch.Tensor:
    """One role of a recipe, in float64."""
    maker = getattr(RECIPES[name], role)
    tensor: torch.Tensor = maker(shape, torch.Generator().manual_seed(0))
    return tensor


def test_integers_are_exact() -> None:
    """Integer values are integers, small enough for exact products in half precision."""
    for role in ("query", "key", "value"):
        tensor = made("integers", role)
        assert torch.equal(tensor, tensor.round())
        assert float(tensor.abs().max()) <= 3


def test_tied_keys_are_equal() -> None:
    """All keys of a head are one and the same."""
    keys = made("tied-keys", "key")
    assert torch.equal(keys, keys[..., :1, :].expand_as(keys))
    assert not torch.equal(keys[:, 0], keys[:, 1])


def test_one_key_dominates() -> None:
    """One key is many times as long as the others."""
    norms = made("dominant-key", "key", (1, 1, 9, 16)).norm(dim=-1).flatten().sort().values
    assert float(norms[-1] / norms[-2]) > 5


def test_cancelling_values_alternate() -> None:
    """Values of opposite sign cancel in a mean."""
    values = made("cancelling", "value")
    assert float(values.abs().min()) > 9e3
    assert float(values.mean().abs()) < 10


def test_negative_logits_are_all_negative() -> None:
    """Every logit lies far below zero, where a softmax without its maximum underflows."""
    products = made("negative-logits", "query") @ made("negative-logits", "key").transpose(-1, -2)
    assert float(products.max()) < -50


def test_subnormal_values_are_subnormal_in_float32() -> None:
    """Values lie below the smallest normal number, but are not all flushed to zero."""
    values = made("subnormal", "value").float()
    assert float(values.abs().max()) < torch.finfo(torch.float32).tiny
    assert bool((values != 0).any())


def test_neighbouring_heads_differ_in_scale() -> None:
    """Heads differ by factors of a hundred."""
    spread = made("mixed-scales", "value", (2, 3, 50, 8)).abs().mean(dim=(0, 2, 3))
    assert math.isclose(float(spread[1] / spread[0]), 100.0, rel_tol=0.3)
    assert math.isclose(float(spread[2] / spread[1]), 100.0, rel_tol=0.3)


@pytest.mark.parametrize("name", ORDINARY)
def test_recipes_make_empty_tensors(name: str) -> None:
    """No token at all is no reason to fail."""
    for role in ("query", "key", "value"):
        assert made(name, role, (2, 3, 0, 4)).shape == (2, 3, 0, 4)


def test_softcaps_do_not_hide_everything() -> None:
    """Most problems have no cap, so that ordinary logits are seen too."""
    assert SOFTCAPS.count(None) > len(SOFTCAPS) / 2


NEAR_TIES = ("nearly-tied", "small-near-ties")


@pytest.mark.parametrize("name", NEAR_TIES)
@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_products_of_near_ties_are_exact(name: str, dtype: str) -> None:
    """Points of the lattice survive every dtype, and their products float32."""
    query, key = made(name, "query", (2, 3, 6, 64)), made(name, "key", (2, 3, 7, 64))
    for tokens in (query, key):
        assert torch.equal(tokens, tokens.to(TORCH_DTYPES[dtype]).double())
    exact = query @ key.mT
    assert torch.equal(exact, (query.float() @ key.float().mT).double())


def test_near_ties_are_large_and_near() -> None:
    """Logits lie in the hundreds, beyond what bfloat16 tells apart, and within a tenth of them."""
    logits = (
        made("nearly-tied", "query", (2, 3, 20, 16)) @ made("nearly-tied", "key", (2, 3, 20, 16)).mT
    )
    scaled = logits / 4.0
    spread = scaled.amax(-1) - scaled.amin(-1)
    assert float(scaled.min()) > 256
    assert float((spread / scaled.amax(-1)).max()) < 0.1
    assert float(spread.median()) > 1
    rounded = scaled.bfloat16().double()
    assert float((rounded - scaled).abs().max()) > 1


def test_small_near_ties_survive_rounding() -> None:
    """Small corners leave logits that bfloat16 still tells apart: its rounding changes little."""
    logits = (
        made("small-near-ties", "query", (2, 3, 20, 16))
        @ made("small-near-ties", "key", (2, 3, 20, 16)).mT
    )
    scaled = logits / 4.0
    assert float((scaled.amax(-1) - scaled.amin(-1)).median()) > 0.5
    assert float((scaled.bfloat16().double() - scaled).abs().max()) < 0.1


def test_independent_recipes_are_few() -> None:
    """Only tokens drawn one by one count as independent: no ties, no lattices, no nearly equal."""
    generic = {name for name, recipe in RECIPES.items() if recipe.generic}
    assert generic == {"normal", "decisive", "mixed-scales", "plain-projections"}
