from __future__ import annotations

import pytest
import torch
from declared import CANDIDATES
from examples import core, layer, plan, problem

from conformance.base.geometry import Geometry
from conformance.problems.materialise import (
    PROJECTIONS,
    TORCH_DTYPES,
    generator_for,
    mask_sizes,
    materialise,
    pattern_for,
)


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


def test_minus_infinity_leaves_nothing_of_a_bias() -> None:
    """A candidate that is given one tensor sees no values where that hides keys."""
    alone = materialise(problem(mask=plan(form="bias", finite_bias=True)), core())
    assert alone.bias is not None
    assert alone.keep is not None
    assert not alone.bias.expand_as(alone.keep)[~alone.keep].any()
    assert alone.bias.expand_as(alone.keep)[alone.keep].all()


def test_streams_of_purposes_differ() -> None:
    """Each purpose draws from a stream of its own, each time the same."""
    first, second = (torch.rand(3, generator=generator_for(problem(), n)) for n in (1, 2))
    assert not torch.equal(first, second)
    assert torch.equal(first, torch.rand(3, generator=generator_for(problem(), 1)))


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


@pytest.mark.parametrize("kind", ["selections", "signed-selections"])
@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (3, 7), (8, 3), (2, 1)])
def test_selections_pick_one_input_each(kind: str, rows: int, columns: int) -> None:
    """Each row has one entry, 1 or with signs -1; no input is used twice while others are free."""
    matrix, bias = PROJECTIONS[kind](rows, columns, torch.Generator().manual_seed(rows))
    assert bool((matrix.abs().sum(dim=1) == 1).all())
    assert bool((matrix.abs().amax(dim=1) == 1).all())
    used = matrix.abs().sum(dim=0)
    assert float(used.max() - used.min()) <= 1
    assert not bias.any()
    if kind == "selections":
        assert float(matrix.min()) >= 0


def test_signs_change() -> None:
    """Among many signed selections both signs occur."""
    matrix, _ = PROJECTIONS["signed-selections"](40, 40, torch.Generator().manual_seed(0))
    assert {float(row.sum()) for row in matrix} == {-1.0, 1.0}


@pytest.mark.parametrize("values", ["plain-projections", "nearly-tied", "small-near-ties"])
@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_projections_of_probes_are_exact(values: str, dtype: str) -> None:
    """In every dtype a projection only moves tokens: nothing of it is rounded."""
    inputs = materialise(problem(values=values, dtype=dtype, num_heads=4), layer())
    weights = inputs.weights
    assert weights is not None
    for tokens, matrix, bias in (
        (inputs.query, weights.q, weights.q_bias),
        (inputs.key, weights.k, weights.k_bias),
        (inputs.value, weights.v, weights.v_bias),
    ):
        exact = tokens.double() @ matrix.double().T
        assert torch.equal(torch.nn.functional.linear(tokens, matrix, bias).double(), exact)
        assert set(exact.abs().unique().tolist()) <= set(tokens.double().abs().unique().tolist())
