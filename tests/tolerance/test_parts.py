"""Which stage a bound allows most."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerance_inputs import FAMILIES, make

from conformance.declare.promises import declare
from conformance.tolerance import Contract, contract_for, core_bound
from conformance.tolerance.attention_bound import shares
from conformance.tolerance.contract import STAGES

SIZE = (1, 2, 5, 33, 8)


def contract(dtype: str) -> Contract:
    return contract_for(declare("core", scores="fused"), dtype, 0.25)


def parts_of(family: str, dtype: str, factor: float = 1.0) -> dict[str, float]:
    """The shares of one element of a family's bound, the queries enlarged by a factor."""
    inputs = make(family, SIZE, "none")
    attention = type(inputs)(
        query=inputs.query * factor,
        key=inputs.key,
        value=inputs.value,
        bias=inputs.bias,
        scale=0.25,
    ).golden()
    return shares(lambda single: core_bound(attention, single), contract(dtype), (0, 1, 3, 2))


@pytest.mark.parametrize("family", ["normal", "ties", "logits to 1e3", "positive"])
def test_shares_sum_to_one_and_come_in_order(family: str) -> None:
    """Every stage has a part between 0 and 1, the largest first; integers only where declared."""
    parts = parts_of(family, "float32")
    assert set(parts) == set(STAGES) - {"quantisation"}
    assert abs(sum(parts.values()) - 1.0) < 1e-12
    assert list(parts.values()) == sorted(parts.values(), reverse=True)


def test_the_core_has_no_projection() -> None:
    """What a core receives is exact: the stage of the projections has no part."""
    assert parts_of("normal", "float32")["projection"] == 0.0


def test_larger_logits_give_the_scores_a_larger_part() -> None:
    """Larger logits are rounded absolutely more, the rest stays as it is."""
    shares_of_scores = [
        parts_of("normal", "float32", factor)["score"] for factor in (1.0, 3.0, 6.0)
    ]
    assert shares_of_scores == sorted(shares_of_scores)
    assert shares_of_scores[-1] > 1.5 * shares_of_scores[0]


def test_half_precision_is_dominated_by_what_is_stored() -> None:
    """Tied keys in bfloat16: weights and result are rounded, the scores cancel."""
    parts = parts_of("ties", "bfloat16")
    assert parts["rounding"] + parts["accumulation"] > parts["score"] + parts["exp"]


@pytest.mark.parametrize("family", sorted(FAMILIES))
@given(stage=st.sampled_from(STAGES))
def test_a_stage_alone_never_allows_more_than_all(family: str, stage: str) -> None:
    """Making stages exact only lowers the bound, everywhere."""
    attention = make(family, SIZE, "none").golden()
    whole = contract("float32")
    alone = core_bound(attention, whole.only(stage))
    assert bool((alone <= core_bound(attention, whole) * (1.0 + 1e-12)).all())


def test_nothing_rounds_when_every_stage_is_exact() -> None:
    """With all stages exact the bound is zero, up to what evaluating the variance may have lost."""
    attention = make("normal", SIZE, "none").golden()
    exact = contract("float32").only("projection")
    assert float(core_bound(attention, exact).max()) == 0.0
    assert shares(lambda one: core_bound(attention, one).mul(0.0), exact, (0, 0, 0, 0)) == {}


def test_at_another_stage_the_contract_is_itself() -> None:
    """Only the stages named exact lose their roundings."""
    only = contract("bfloat16").only("exp")
    assert only.at("exp").unit_roundoff == only.unit_roundoff > 0.0
    assert only.at("score").accumulator_roundoff == 0.0
    assert torch.tensor([only.at(stage).unit_roundoff for stage in STAGES]).count_nonzero() == 1
