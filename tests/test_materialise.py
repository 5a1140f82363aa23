from __future__ import annotations

import pytest
import torch
from declared import CANDIDATES
from examples import core, layer, plan, problem

from conformance.geometry import Geometry
from conformance.materialise import generator_for, mask_sizes, materialise, pattern_for


def test_problem_decides_its_tensors() -> None:
    """The same problem gives the same tensors, another seed others."""
    first, second = (materialise(problem(mask=plan()), core()) for _ in range(2))
    assert torch.equal(first.query, second.query)
    assert torch.equal(first.keep, second.keep)  # type: ignore[arg-type]  # both have a mask
    assert not torch.equal(first.query, materialise(problem(seed=4), core()).query)


def test_form_of_the_mask_changes_neither_values_nor_mask() -> None:
    """One mask can be handed over in several forms: the tensors stay the same."""
    keep = materialise(problem(mask=plan(form="keep")), core())
    bias = materialise(problem(mask=plan(form="bias")), core())
    assert torch.equal(keep.value, bias.value)
    assert torch.equal(keep.keep, bias.keep)  # type: ignore[arg-type]  # both have a mask


def test_streams_of_purposes_differ() -> None:
    """Each purpose draws from a stream of its own, each time the same."""
    one, two = (torch.rand(3, generator=generator_for(problem(), n)) for n in (1, 2))
    assert not torch.equal(one, two)
    assert torch.equal(one, torch.rand(3, generator=generator_for(problem(), 1)))


def test_layer_gets_weights_of_its_sizes() -> None:
    """Weights are (out, in) matrices with biases, in the working dtype."""
    inputs = materialise(problem(num_kv_heads=2, dtype="float64"), layer(features=["gqa"]))
    weights = inputs.weights
    assert weights is not None
    shapes = [tuple(getattr(weights, role).shape) for role in "qkvo"]
    assert shapes == [(12, 11), (6, 13), (12, 9), (10, 24)]
    biases = [tuple(getattr(weights, f"{role}_bias").shape) for role in "qkvo"]
    assert biases == [(12,), (6,), (12,), (10,)]
    assert weights.q.dtype == torch.float64


def test_biases_may_be_absent() -> None:
    """Some problems have no biases at all, some semantics never have one of them."""
    weights = materialise(problem(biases=False), layer()).weights
    assert weights is not None
    assert weights.q_bias is weights.o_bias is None
    point = layer().declaration.semantics.replace(key_bias=False)
    weights = materialise(problem(), layer(semantics=point)).weights
    assert weights is not None
    assert weights.k_bias is None
    assert weights.q_bias is not None


def test_fixed_weights_are_cast() -> None:
    """A layer's own weights come in the working dtype."""
    candidate = CANDIDATES["fixed layer"]
    weights = materialise(problem(dtype="float64"), candidate).weights
    assert weights is not None
    assert weights.q.dtype == torch.float64


def test_memory_is_one_object() -> None:
    """Key and value of a memory are one object, the query another."""
    inputs = materialise(problem(value_size=13), layer(inputs="memory"))
    assert inputs.key is inputs.value
    assert inputs.query is not inputs.key


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("BHQK", (2, 4, 5, 7)),
        ("BK", (2, 1, 1, 7)),
        ("11QK", (1, 1, 5, 7)),
        ("B", (2, 1, 1, 7)),
        ("", (1, 1, 1, 7)),
    ],
)
def test_mask_sizes(shape: str, expected: tuple[int, ...]) -> None:
    """A mask varies along the axes of its letters alone."""
    geometry: Geometry = problem().geometry
    assert mask_sizes(shape, geometry) == expected


def test_lengths_turn_patterns_into_padding() -> None:
    """Lengths know padding only; other forms any pattern."""
    assert pattern_for(plan("sparse", "lengths", "B")) == "padding"
    assert pattern_for(plan("empty-rows", "lengths", "B")) == "empty-lengths"
    assert pattern_for(plan("sparse", "keep")) == "sparse"
