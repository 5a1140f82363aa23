"""The statistical bound of the whole layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from conformance._golden import golden
from conformance.declare.promises import declare
from conformance.tolerance import (
    Contract,
    Statistics,
    contract_for,
    core_statistics,
    fit,
    has_statistical_bound,
    layer_statistics,
)
from conformance.tolerance.spread import ErrorSpread
from conformance.tolerance.statistical import projected_spread

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class LayerInputs:
    """Tokens and weights of a layer, and how it is called."""

    query: Tensor
    key: Tensor
    weights: golden.ProjectionWeights
    options: dict[str, Any]

    def golden(self) -> golden.MultiHeadAttention:
        """The exact answer."""
        return golden.multi_head_attention(
            self.query, self.key, self.key, self.weights, **self.options
        )

    def statistics(self, contract: Contract) -> Statistics:
        """The bound at the contract."""
        return layer_statistics(self.golden(), contract)


def make(
    dtype: str = "float32",
    *,
    lengths: tuple[int, int] = (20, 30),
    biases: bool = True,
    seed: int = 0,
    **options: Any,
) -> LayerInputs:
    """Normal tokens and weights: four heads of 8 channels, two key/value heads, 24 wide outside."""
    generator = Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(TYPES[dtype])

    weights = golden.ProjectionWeights(
        q=normal(32, 24) / 5,
        k=normal(16, 24) / 5,
        v=normal(16, 24) / 5,
        o=normal(20, 32) / 6,
        q_bias=normal(32) if biases else None,
        k_bias=normal(16) if biases else None,
        v_bias=normal(16) if biases else None,
        o_bias=normal(20) if biases else None,
    )
    return LayerInputs(
        query=normal(2, lengths[0], 24),
        key=normal(2, lengths[1], 24),
        weights=weights,
        options={"num_heads": 4, "num_kv_heads": 2, **options},
    )


def contract(dtype: str = "float32", **promises: Any) -> Contract:
    return contract_for(declare("layer", **promises), dtype, 8**-0.5)


def by_torch(inputs: LayerInputs) -> Tensor:
    """The layer by torch's functions in the dtype of its tensors."""
    weights = inputs.weights
    query = linear(inputs.query, weights.q, weights.q_bias).unflatten(-1, (4, 8)).transpose(1, 2)
    key = linear(inputs.key, weights.k, weights.k_bias).unflatten(-1, (2, 8)).transpose(1, 2)
    value = linear(inputs.key, weights.v, weights.v_bias).unflatten(-1, (2, 8)).transpose(1, 2)
    heads = scaled_dot_product_attention(
        query, key, value, is_causal=inputs.options.get("causal", False), enable_gqa=True
    )
    assert weights.o is not None
    return linear(heads.transpose(1, 2).flatten(-2), weights.o, weights.o_bias)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_torchs_layer_is_within_the_bound(dtype: str, *, biases: bool, causal: bool) -> None:
    """Grouped heads, biases and causality; 80 rows, of which 64 are judged; size and scale fit."""
    for seed in range(5):
        inputs = make(dtype, lengths=(80, 80), biases=biases, seed=seed, causal=causal)
        statistics = inputs.statistics(contract(dtype, scores="eager"))
        error = by_torch(inputs).double() - inputs.golden().output
        assert bool((error[:, statistics.rows].abs() <= statistics.bound).all())
        fitted = fit(error, statistics)
        assert fitted is not None
        assert fitted.rms <= 1.0
        assert abs(fitted.scale_error) <= fitted.scale_allowed


def test_the_bound_is_sharper_than_a_single_wrong_digit() -> None:
    """An error of a thousandth of the answer's size is far outside in float32."""
    inputs = make()
    statistics = inputs.statistics(contract())
    assert float((statistics.bound / inputs.golden().output.abs().mean()).max()) < 1e-4


@pytest.mark.parametrize("head_split", ["blocks", "interleaved", "reinterpret"])
@pytest.mark.parametrize("biases", [False, True])
def test_sampled_rows_have_the_bound_of_the_whole(head_split: str, *, biases: bool) -> None:
    """Leaving rows out changes no other row, however heads are cut; only the deviations count."""
    semantics = golden.STANDARD.replace(head_split=head_split)
    inputs = make(lengths=(90, 30), biases=biases, semantics=semantics)
    sampled = inputs.statistics(contract())
    assert sampled.bound.shape == (2, 64, 20)
    assert bool(sampled.bound.isfinite().all())
    # A head split that mixes rows cannot be evaluated on fewer tokens: the others are compared.
    if head_split == "reinterpret":
        return
    for rows in (slice(0, 10), slice(64, 90)):
        part = replace(inputs, query=inputs.query[:, rows])
        kept = [i for i, row in enumerate(sampled.rows.tolist()) if rows.start <= row < rows.stop]
        chosen = sampled.rows[kept] - rows.start
        of_part = part.statistics(contract())
        torch.testing.assert_close(of_part.slope[:, chosen], sampled.slope[:, kept])
        ratio = of_part.scale[:, chosen] / sampled.scale[:, kept]
        assert float((ratio - 1.0).abs().max()) < 0.02


def test_projections_that_only_move_numbers_add_nothing() -> None:
    """With signed permutations the layer's bound is the core's; TensorFloat-32 rounds them."""
    generator = Generator().manual_seed(0)
    signs = torch.ones(16)
    signs[::3] = -2.0
    moves = [torch.eye(16)[torch.randperm(16, generator=generator)] * signs for _ in range(4)]
    tokens = torch.randn(1, 20, 16, generator=generator)
    weights = golden.ProjectionWeights(q=moves[0], k=moves[1], v=moves[2], o=torch.eye(16))
    options = {"num_heads": 1, "scale": 0.25}
    inputs = LayerInputs(query=tokens, key=tokens, weights=weights, options=options)
    exact = contract_for(declare("layer"), "float32", 0.25)
    layer = inputs.golden()
    statistics, core = inputs.statistics(exact), core_statistics(layer.core, exact)
    torch.testing.assert_close(statistics.bound, core.bound[:, 0])
    torch.testing.assert_close(statistics.slope, core.slope[:, 0])
    rough = inputs.statistics(replace(exact, operand_roundoff=2.0**-11))
    assert float((rough.bound / statistics.bound).min()) > 10.0


def test_a_projection_maps_each_part_in_its_own_way() -> None:
    """Variances through squares, certain errors through magnitudes, the slope with its sign."""
    matrix = torch.tensor([[1.0, -2.0], [0.5, 0.25]], dtype=torch.float64)
    ones = torch.ones(1, 1, 2, dtype=torch.float64)
    incoming = ErrorSpread(variance=3 * ones, last=2 * ones, linear=ones, slope=ones)
    nothing = replace(
        contract(),
        unit_roundoff=0.0,
        underflow=0.0,
        accumulator_roundoff=2.0**-500,
        accumulator_underflow=0.0,
    )
    spread = projected_spread(incoming, ones, linear(ones, matrix), matrix, None, nothing)
    assert spread.variance.flatten().tolist() == pytest.approx([7.0 * 5.0, 7.0 * 0.3125])
    assert spread.linear.flatten().tolist() == [3.0, 0.75]
    assert spread.slope.flatten().tolist() == [-1.0, 0.75]
    assert not bool(spread.last.any())


@pytest.mark.parametrize("rule", ["zeros", "nan", "mean-of-all", "mean-of-valid"])
def test_rows_without_a_key_leave_numbers_finite(rule: str) -> None:
    """Also where their rule is NaN, and where only one head is without a key."""
    keep = torch.ones(2, 4, 20, 30, dtype=torch.bool)
    keep[:, :, 3] = False
    keep[0, 1, 5] = False
    semantics = golden.STANDARD.replace(empty_rows=rule)
    statistics = make(keep=keep, semantics=semantics).statistics(contract())
    for name in ("bound", "scale", "slope"):
        assert bool(getattr(statistics, name).isfinite().all()), name


def test_without_keys_the_bound_is_zero() -> None:
    """The output is then the bias, which is not rounded."""
    statistics = make(lengths=(5, 0)).statistics(contract())
    assert statistics.bound.shape == (2, 5, 20)
    assert not bool(statistics.bound.any())


def test_no_bound_where_rows_of_heads_are_no_rows_of_the_layer() -> None:
    """Merging heads along the tokens, or re-reading memory, is refused."""
    for merge in ("tokens", "reinterpret"):
        semantics = golden.STANDARD.replace(head_merge=merge)
        assert not has_statistical_bound(semantics)
        layer = make(semantics=golden.STANDARD).golden()
        layer = replace(layer, core=replace(layer.core, semantics=semantics))
        with pytest.raises(ValueError, match="side by side"):
            layer_statistics(layer, contract())
    assert has_statistical_bound(golden.STANDARD.replace(head_merge="interleaved"))
