from __future__ import annotations

from typing import Any

import pytest
import torch
from declared import CANDIDATES
from examples import core, layer, plan, problem

from conformance._golden import golden
from conformance.problems.inputs import Inputs
from conformance.problems.materialise import materialise
from conformance.problems.recipes import RECIPES

STANDARD = core().declaration.semantics


def test_sizes_follow_the_tensors() -> None:
    """Changed tokens change batch and lengths of the geometry, not the heads."""
    inputs = materialise(problem(), core())
    shorter = inputs.with_tokens(query=inputs.query[:1, :, :2], key=inputs.key[:1, :, :3])
    sizes = shorter.geometry
    assert (sizes.batch, sizes.query_length, sizes.key_length, sizes.num_heads) == (1, 2, 3, 4)
    assert shorter.output_shape == (1, 4, 2, 6)
    assert shorter.score_shape == (1, 4, 2, 3)


def test_memory_stays_one_object() -> None:
    """Changing the key of a memory changes its value."""
    inputs = materialise(problem(value_size=13), layer(inputs="memory"))
    moved = inputs.with_tokens(key=inputs.key * 2)
    assert moved.key is moved.value
    assert torch.equal(moved.query, inputs.query)


def test_allowed_joins_mask_causality_and_bias() -> None:
    """A key is allowed when mask, causal flag, window and bias all admit it."""
    inputs = materialise(
        problem(query_length=7, mask=plan("full", "keep"), causal=True, window=(2, -1)), core()
    )
    bias = torch.zeros(1, 1, 1, 7)
    bias[..., 0] = -torch.inf
    allowed = inputs.replace(bias=bias).allowed(STANDARD)
    ahead = torch.arange(7)[None, :] - torch.arange(7)[:, None]
    expected = (ahead <= 0) & (ahead >= -2) & (torch.arange(7) > 0)
    assert torch.equal(allowed, expected.expand(2, 4, 7, 7))


def attended(inputs: Inputs, point: golden.Semantics) -> torch.Tensor:
    """The golden's table of attended keys."""
    tokens = (inputs.query, inputs.key, inputs.value)
    return golden.attend(*tokens, semantics=point, **inputs.options).allowed


@pytest.mark.parametrize("polarity", ["keep", "drop"])
@pytest.mark.parametrize("rule", ["both", "causal-only", "mask-only", "either", "refused"])
def test_allowed_is_the_golden_table(rule: Any, polarity: Any) -> None:
    """At any rule of combination and polarity, the table of keys is the golden's own.

    So is that of some rows, and the golden that gets the table alone has no other.
    """
    point = STANDARD.replace(causal_combination=rule, mask_polarity=polarity)
    drawn = materialise(problem(query_length=7, mask=plan("random", "keep"), causal=True), core())
    bias = torch.zeros(1, 1, 1, 7)
    bias[..., 0] = -torch.inf
    rows = torch.tensor([1, 5])
    for inputs in (drawn, drawn.replace(window=(2, -1)), drawn.replace(bias=bias)):
        expected = attended(inputs, point)
        assert torch.equal(inputs.allowed(point), expected)
        assert torch.equal(inputs.allowed(point, rows), expected[:, :, rows])
        assert torch.equal(attended(inputs.attending(expected, point), point), expected)


def test_without_mask_forgets_form_and_shape() -> None:
    """The same inputs without their mask hand none over."""
    inputs = materialise(problem(mask=plan()), core())
    assert inputs.masked
    free = inputs.without_mask()
    assert not free.masked
    assert bool(free.allowed(STANDARD).all())
    assert free.query is inputs.query


def test_layers_are_told_from_cores() -> None:
    """Tokens make a layer, heads a core."""
    assert materialise(problem(), layer()).is_layer
    assert not materialise(problem(), core()).is_layer
    assert materialise(problem(), layer()).output_shape == (2, 5, 10)


@pytest.mark.parametrize("name", RECIPES)
def test_inputs_are_generic_as_their_recipe(name: str) -> None:
    """Cores and layers that draw their weights are as independent as the recipe says."""
    for candidate in (core(), layer()):
        inputs = materialise(problem(values=name), candidate)
        assert inputs.generic is RECIPES[name].generic


def test_weights_that_a_candidate_brings_are_not_generic() -> None:
    """Nobody knows whether weights that are not drawn here are independent."""
    candidate = CANDIDATES["fixed layer"]
    assert not candidate.draws_weights
    assert not materialise(problem(values="normal"), candidate).generic


def test_changed_tokens_are_not_generic() -> None:
    """Whoever changes tokens may tie them: the result is never called independent."""
    inputs = materialise(problem(values="normal"), core())
    assert inputs.generic
    for role in ("query", "key", "value"):
        assert not inputs.with_tokens(**{role: getattr(inputs, role) * 2}).generic
    assert inputs.without_mask().generic
