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


@pytest.mark.parametrize("merge", ["blocks", "interleaved", "reinterpret"])
@pytest.mark.parametrize("split", ["blocks", "interleaved", "reinterpret"])
def test_tokens_reach_the_rows_that_they_change(split: Any, merge: Any) -> None:
    """However heads are split and merged, a token changes those rows of the answer it reaches."""
    point = STANDARD.replace(head_split=split, head_merge=merge)
    inputs = materialise(problem(num_kv_heads=2, mask=plan("random", "keep")), layer())
    assert inputs.weights is not None
    weights = inputs.weights.taking_part(point)
    sizes = inputs.geometry
    heads = {"num_heads": sizes.num_heads, "num_kv_heads": sizes.num_kv_heads}

    def answer(changed: Inputs) -> torch.Tensor:
        tokens = (changed.query, changed.key, changed.value)
        options = {"keep": changed.keep, "semantics": point, **heads}
        return golden.multi_head_attention(*tokens, weights, **options).output

    def moved(tokens: torch.Tensor, place: int) -> torch.Tensor:
        tokens = tokens.clone()
        tokens[:, place] += 1.0
        return tokens

    before, reached, own = answer(inputs), inputs.reached(point), inputs.own_rows(point)
    for place in range(sizes.key_length):
        after = answer(inputs.with_tokens(value=moved(inputs.value, place)))
        assert torch.equal((after != before).any(dim=-1), reached[..., place])
    inputs = inputs.without_mask()  # a row with one key answers every query alike
    before = answer(inputs)
    for place in range(sizes.query_length):
        after = answer(inputs.with_tokens(query=moved(inputs.query, place)))
        assert torch.equal((after != before).any(dim=-1), own[..., place])


def test_rows_of_the_answer_are_made_of_rows_of_heads() -> None:
    """A view without the transpose spreads a row of one head over other rows of the answer."""
    inputs = materialise(problem(), layer())
    marked = torch.zeros(2, 4, 5, dtype=torch.bool)
    marked[0, 0, 4] = True  # the fifth of twenty rows, of which four make a row of the answer
    point = STANDARD.replace(head_merge="reinterpret")
    assert inputs.answer_rows(marked, point).nonzero().tolist() == [[0, 1, 0]]
    assert inputs.answer_rows(marked, STANDARD).nonzero().tolist() == [[0, 4, 0]]


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
