"""What must hold of both bounds on any problem: order, symmetry, scale and legitimate errors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerance_cores import CORES
from tolerance_inputs import FAMILIES, MASKS, CoreInputs, make
from torch import Tensor

from conformance._golden import golden
from conformance.declare.promises import declare
from conformance.tolerance import (
    Contract,
    contract_for,
    core_bound,
    core_statistics,
    layer_bound,
    layer_statistics,
    least_core_bound,
    least_layer_bound,
    model,
    most_core_bound,
    most_layer_bound,
)
from conformance.tolerance.attention_bound import largest_norm

DTYPES = ("float64", "float32", "bfloat16", "float16")
# Independent tokens of moderate size: what the statistical bound speaks of.
GENERIC = ("normal", "logits to 30", "offset keys")
# Two orders of the same float64 sums differ by some roundoffs of their largest terms.
SAME = 1e-6

EXACT = Contract(
    unit_roundoff=0.0, underflow=0.0, accumulator_roundoff=0.0, accumulator_underflow=0.0
)

CoreBound = Callable[[golden.Attention, Contract], Tensor]


def statistical(attention: golden.Attention, contract: Contract) -> Tensor:
    """The statistical bound: of all rows, since the problems here are small."""
    statistics = core_statistics(attention, contract)
    assert torch.equal(statistics.rows, torch.arange(attention.query.shape[-2]))
    return statistics.bound


BOUNDS: dict[str, CoreBound] = {"worst": core_bound, "statistical": statistical}
both = pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)

sizes = st.tuples(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), st.integers(1, 40), st.integers(1, 9)
)
seeds = st.integers(0, 2**31 - 1)
problems = st.builds(make, st.sampled_from(list(FAMILIES)), sizes, st.sampled_from(MASKS), seeds)
generic = st.builds(make, st.sampled_from(GENERIC), sizes, st.sampled_from(MASKS), seeds)
softcaps = st.sampled_from([None, None, 5.0, 50.0])
promises = st.sampled_from(["eager", "fused"])
contracts = st.builds(
    lambda dtype, scores: contract_for(declare("core", scores=scores), dtype, 0.3),
    st.sampled_from(DTYPES),
    promises,
)


def coarser(contract: Contract) -> list[Contract]:
    """The contract with each of its freedoms increased on its own."""
    changed = [
        replace(contract, **{each.name: max(2.0 * getattr(contract, each.name), 2.0**-40)})
        for each in dataclasses.fields(contract)
        if isinstance(getattr(contract, each.name), float)
    ]
    return [
        *changed,
        replace(contract, pre_scaling_roundings=contract.pre_scaling_roundings + 2),
        replace(contract, key_block=contract.key_block // 2),
        replace(contract, sides=2 * contract.sides),
    ]


def at_most(smaller: Tensor, larger: Tensor) -> bool:
    return bool((smaller <= larger * (1.0 + SAME)).all())


def same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and at_most(one, other) and at_most(other, one)


@both
@given(inputs=problems, softcap=softcaps, contract=contracts)
def test_each_freedom_alone_widens_the_bound(
    bound: CoreBound, inputs: CoreInputs, softcap: float | None, contract: Contract
) -> None:
    """No roundoff, underflow, count of roundings or of sides makes a bound smaller by growing.

    But for a factor: the hull caps rows only once their weights move by more than HULL_MATTERS.
    """
    attention = replace(inputs, softcap=softcap).golden()
    least = bound(attention, contract) * (1.0 - 3.0 * model.HULL_MATTERS)
    for wider in coarser(contract):
        assert at_most(least, bound(attention, wider)), wider


@given(inputs=problems, softcap=softcaps, contract=contracts)
def test_what_is_soon_derived_lies_on_either_side_of_the_bound(
    inputs: CoreInputs, softcap: float | None, contract: Contract
) -> None:
    """The least bound is a positive part of the bound, element by element, and the most exceeds it.

    Under a softmax along another axis there is neither.
    """
    attention = replace(inputs, softcap=softcap).golden()
    least, bound = least_core_bound(attention, contract), core_bound(attention, contract)
    assert least is not None
    assert bool((least <= bound).all())
    assert bool((least[~attention.empty] > 0.0).all())
    assert float(bound.max()) <= most_core_bound(attention, contract)
    across = replace(attention, semantics=attention.semantics.replace(softmax_axis="query"))
    assert least_core_bound(across, contract) is None
    assert most_core_bound(across, contract) == math.inf


@given(inputs=problems, order=st.sampled_from(["before-scale", "after-scale"]), contract=contracts)
def test_most_of_the_bound_with_a_bias(inputs: CoreInputs, order: Any, contract: Contract) -> None:
    """A finite bias, wherever it joins, leaves the most that is soon derived above the bound."""
    query, key, value = (heads.double() for heads in (inputs.query, inputs.key, inputs.value))
    bias = torch.sin(torch.arange(query.shape[-2] * key.shape[-2])).double()
    attention = golden.attend(
        query,
        key,
        value,
        bias=30.0 * bias.reshape(1, 1, query.shape[-2], -1),
        semantics=golden.STANDARD.replace(bias_order=order),
    )
    bound = core_bound(attention, contract)
    assert float(bound.max()) <= most_core_bound(attention, contract)


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_that_a_bias_hides_have_no_part_in_the_bound(dtype: str) -> None:
    """Neither in what all keys have in common, whatever fill a mask would give them."""
    draw = torch.Generator().manual_seed(0)
    key, value = (torch.randn(1, 1, 400, 4, generator=draw).double() for _ in range(2))
    query, hidden = torch.ones(1, 1, 3, 4).double(), torch.full((1, 1, 3, 400), -math.inf).double()
    hidden[..., :3] = 0.0
    contract = contract_for(declare("core"), dtype, 0.25)
    bounds = []
    for fill in (-math.inf, -1e4):
        attention = golden.attend(
            query,
            1.0 + 0.01 * key,
            value.sign(),
            bias=hidden,
            scale=0.25,
            semantics=golden.STANDARD.replace(mask_fill=fill),
        )
        bounds.append(core_bound(attention, contract))
        assert float(bounds[-1].max()) <= most_core_bound(attention, contract)
    assert same(*bounds)


def test_most_of_the_bound_of_numbers_next_to_nothing() -> None:
    """Squares that float64 loses make no length zero."""
    tensor = torch.full((1, 4), 1e-170, dtype=torch.float64)
    assert largest_norm(tensor) == pytest.approx(2e-170)


def test_most_of_the_bound_tells_a_gross_error_from_rounding() -> None:
    """For moderate numbers in float32 it is no more than a hundred times the bound."""
    attention = make("normal", (2, 3, 5, 16, 8), "random", 1).golden()
    contract = contract_for(declare("core"), "float32", 0.3)
    most = most_core_bound(attention, contract)
    assert most <= 100.0 * float(core_bound(attention, contract).max())


@given(inputs=problems, softcap=softcaps, contract=contracts, size=st.floats(-40.0, 40.0))
def test_most_of_the_bound_with_sinks(
    inputs: CoreInputs, softcap: float | None, contract: Contract, size: float
) -> None:
    """One more logit in each row, with a bias, leaves the most soon derived above the bound."""
    query, key, value = (heads.double() for heads in (inputs.query, inputs.key, inputs.value))
    sinks = size * torch.cos(torch.arange(query.shape[1])).double()
    bias = torch.sin(torch.arange(key.shape[-2])).double().expand(1, 1, query.shape[-2], -1)
    attention = golden.attend(
        query, key, value, bias=bias, sinks=sinks, softcap=softcap, semantics=golden.STANDARD
    )
    most = most_core_bound(attention, contract)
    assert float(core_bound(attention, contract).max()) <= most


@given(seed=seeds, contract=contracts)
def test_what_is_soon_derived_lies_on_either_side_of_the_bound_of_a_layer(
    seed: int, contract: Contract
) -> None:
    """So it does for a layer, unless its tokens are quantised."""
    draw = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(2, 5, width, generator=draw).double() for width in (6, 4, 3))
    shapes = {"q": (8, 6), "k": (8, 4), "v": (8, 3), "o": (7, 8)}
    matrices = {n: torch.randn(*shape, generator=draw).double() for n, shape in shapes.items()}
    weights = golden.ProjectionWeights(**matrices)
    layer = golden.multi_head_attention(query, key, value, weights, num_heads=4, num_kv_heads=4)
    least = least_layer_bound(layer, contract)
    assert least is not None
    bound = layer_bound(layer, contract)
    assert bool((least <= bound).all())
    assert float(bound.max()) <= most_layer_bound(layer, contract)
    quantised = replace(contract, activation_steps=255)
    assert least_layer_bound(layer, quantised) is None
    assert most_layer_bound(layer, quantised) == math.inf


@given(inputs=problems, softcap=softcaps)
def test_without_roundings_there_is_no_error(inputs: CoreInputs, softcap: float | None) -> None:
    """A contract that rounds nothing leaves a worst case of exactly zero."""
    attention = replace(inputs, softcap=softcap).golden()
    assert float(core_bound(attention, EXACT).max()) == 0.0


@given(
    inputs=st.builds(make, st.sampled_from(GENERIC), sizes, st.sampled_from(MASKS), seeds),
    value=st.floats(2.0**-60, 2.0**60),
    dtype=st.sampled_from(["float64", "float32"]),
)
def test_equal_values_have_only_roundings(inputs: CoreInputs, value: float, dtype: str) -> None:
    """However wrong the weights, the mean of equal values is that value but for its roundings."""
    contract = contract_for(declare("core"), dtype, inputs.scale)
    attention = replace(inputs, value=torch.full_like(inputs.value, value)).golden()
    keys, unit = attention.weights.shape[-1], contract.accumulator_roundoff
    steps = keys + math.ceil(keys / contract.key_block) + model.SUM_ROUNDINGS
    lse = torch.logsumexp(attention.logits, dim=-1, keepdim=True).abs()
    rounding = (2 * steps + model.DIVISION_ROUNDINGS + 1) * unit
    relative = rounding + model.LOG_SUM_EXP_ROUNDINGS * unit * lse
    allowed = contract.sides * relative * attention.output.abs()
    assert at_most(core_bound(attention, contract), 1.01 * allowed)


@both
@given(inputs=problems, softcap=softcaps, power=st.integers(-40, 40), contract=contracts)
def test_values_times_a_power_of_two_scale_the_bound(
    bound: CoreBound, inputs: CoreInputs, softcap: float | None, power: int, contract: Contract
) -> None:
    """Values times 2^k multiply the bound by 2^k, where nothing underflows."""
    floating = replace(contract, underflow=0.0, accumulator_underflow=0.0, weight_underflow=0.0)
    inputs = replace(inputs, softcap=softcap)
    scaled = replace(inputs, value=inputs.value.double() * 2.0**power)
    before, after = (bound(each.golden(), floating) for each in (inputs, scaled))
    assert torch.equal(after, before * 2.0**power)


def reordered(inputs: CoreInputs, axis: int, order: Tensor) -> CoreInputs:
    """The inputs with one of the axes batch, head, query, key (0 to 3) in another order."""
    bias = inputs.bias
    if bias is not None:
        bias = bias.index_select(axis, order)
    query, key, value = inputs.query, inputs.key, inputs.value
    if axis != 3:
        query = query.index_select(axis, order)
    if axis != 2:
        key, value = (x.index_select(min(axis, 2), order) for x in (key, value))
    return replace(inputs, query=query, key=key, value=value, bias=bias)


@both
@pytest.mark.parametrize("axis", range(4), ids=["batch", "head", "query", "key"])
@given(inputs=generic, softcap=softcaps, contract=contracts, data=st.data())
def test_the_bound_follows_a_permutation(
    bound: CoreBound,
    axis: int,
    inputs: CoreInputs,
    softcap: float | None,
    contract: Contract,
    data: st.DataObject,
) -> None:
    """Items, heads and queries in another order have their bounds in that order; keys none."""
    inputs = replace(inputs, softcap=softcap)
    length = (inputs.key if axis == 3 else inputs.query).shape[min(axis, 2)]
    order = torch.tensor(data.draw(st.permutations(range(length))))
    before = bound(inputs.golden(), contract)
    after = bound(reordered(inputs, axis, order).golden(), contract)
    assert same(after, before if axis == 3 else before.index_select(axis, order))


@given(inputs=problems, name=st.sampled_from(list(CORES)))
def test_no_legitimate_error_exceeds_the_worst_case(inputs: CoreInputs, name: str) -> None:
    """Drawn sizes, families and masks: no correct float32 core leaves the bound."""
    attention = inputs.golden()
    error = (CORES[name](inputs).double() - attention.output).abs()
    contract = contract_for(declare("core"), "float32", inputs.scale)
    assert bool((error <= core_bound(attention, contract)).all())


@given(
    inputs=st.builds(
        make, st.sampled_from(["normal", "logits to 30"]), sizes, st.just("none"), seeds
    ),
    name=st.sampled_from(list(CORES)),
)
def test_no_independent_error_exceeds_the_statistical_bound(inputs: CoreInputs, name: str) -> None:
    """On independent inputs no correct float32 core leaves the statistical bound either."""
    attention = inputs.golden()
    error = (CORES[name](inputs).double() - attention.output).abs()
    contract = contract_for(declare("core"), "float32", inputs.scale)
    assert bool((error <= statistical(attention, contract)).all())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """Float32 tokens ``[B, L, width]``, each of another width, and weights of two groups."""

    query: Tensor
    key: Tensor
    value: Tensor
    weights: golden.ProjectionWeights

    def bound(self, name: str, contract: Contract) -> Tensor:
        """The worst-case or the statistical bound of the layer."""
        tokens = (self.query, self.key, self.value)
        layer = golden.multi_head_attention(*tokens, self.weights, num_heads=4, num_kv_heads=2)
        if name == "worst":
            return layer_bound(layer, contract)
        return layer_statistics(layer, contract).bound


def make_layer(seed: int, lengths: tuple[int, int], size: float) -> Layer:
    """Independent normal tokens and weights; the logits grow with ``size``."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    rows, columns = {"q": 12, "k": 6, "v": 4, "o": 5}, {"q": 6, "k": 7, "v": 5, "o": 8}
    matrices = {name: normal(rows[name], columns[name]) / 2.0 for name in rows}
    biases = {f"{name}_bias": normal(count) for name, count in rows.items()}
    return Layer(
        query=size * normal(3, lengths[0], 6),
        key=normal(3, lengths[1], 7),
        value=normal(3, lengths[1], 5),
        weights=golden.ProjectionWeights(**matrices, **biases),
    )


layers = st.builds(
    make_layer,
    seeds,
    st.tuples(st.integers(1, 6), st.integers(1, 20)),
    st.sampled_from([0.1, 1.0, 10.0]),
)
both_names = pytest.mark.parametrize("name", BOUNDS)


@both_names
@given(layer=layers, contract=contracts)
def test_each_freedom_alone_widens_the_bound_of_a_layer(
    name: str, layer: Layer, contract: Contract
) -> None:
    """The same of a layer, up to the same factor."""
    least = layer.bound(name, contract) * (1.0 - 3.0 * model.HULL_MATTERS)
    for wider in coarser(contract):
        assert at_most(least, layer.bound(name, wider)), wider


@given(layer=layers)
def test_a_layer_without_roundings_has_no_error(layer: Layer) -> None:
    """A contract that rounds nothing leaves a worst case of exactly zero."""
    assert float(layer.bound("worst", EXACT).max()) == 0.0


@both_names
@given(layer=layers, power=st.integers(-40, 40), contract=contracts)
def test_an_output_matrix_times_a_power_of_two_scales_the_bound_of_a_layer(
    name: str, layer: Layer, power: int, contract: Contract
) -> None:
    """Output matrix and bias times 2^k multiply the bound by 2^k, where nothing underflows."""
    floating = replace(contract, underflow=0.0, accumulator_underflow=0.0, weight_underflow=0.0)
    weights = layer.weights
    assert weights.o is not None
    assert weights.o_bias is not None
    factor = 2.0**power
    larger = replace(weights, o=weights.o * factor, o_bias=weights.o_bias * factor)
    after = replace(layer, weights=larger).bound(name, floating)
    assert same(after, layer.bound(name, floating) * factor)


@both_names
@given(layer=layers, contract=contracts, data=st.data())
def test_the_bound_of_a_layer_follows_a_permutation(
    name: str, layer: Layer, contract: Contract, data: st.DataObject
) -> None:
    """Items and queries in another order have their bounds in that order; keys change none."""
    before = layer.bound(name, contract)
    items, queries, keys = (
        torch.tensor(data.draw(st.permutations(range(length))))
        for length in (3, layer.query.shape[1], layer.key.shape[1])
    )
    moved = replace(
        layer,
        query=layer.query[items][:, queries],
        key=layer.key[items][:, keys],
        value=layer.value[items][:, keys],
    )
    assert same(moved.bound(name, contract), before[items][:, queries])
