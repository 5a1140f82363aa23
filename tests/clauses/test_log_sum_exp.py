"""Returned log-sum-exps: the golden, the bound, and what is declared."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import conformance
from candidates.broken.log_sum_exp import HeadsBehindQueries, LogarithmToBaseTwo
from candidates.log_sum_exp import PROMISES, CoreWithLogSumExp
from conformance.clauses.registry import all_clauses
from conformance.declare.candidate import Candidate
from conformance.tolerance import contract_for
from conformance.tolerance.attention_bound import log_sum_exp_bound
from reference import attend

CLAUSES = {clause.id: clause for clause in all_clauses()}


def test_a_sink_counts_and_no_key_is_minus_infinity() -> None:
    """The golden is the logarithm of the whole denominator, and that of nothing is -inf."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 2, 3, 4, generator=generator).double() for _ in range(2))
    keep = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    keep[..., 0, :] = False
    sinks = torch.tensor([0.5, -1.0]).double()
    logits = (query @ key.mT / 2.0).masked_fill(~keep, -math.inf)
    plain = attend(query, key, key, keep=keep).log_sum_exp
    assert torch.allclose(plain, logits.logsumexp(-1), rtol=1e-14)
    with_sinks = attend(query, key, key, keep=keep, sinks=sinks).log_sum_exp
    joined = torch.cat([logits, sinks[None, :, None, None].expand(1, 2, 3, 1)], dim=-1)
    assert torch.allclose(with_sinks, joined.logsumexp(-1), rtol=1e-14)


@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_the_bound_holds_a_common_part(offset: float) -> None:
    """An error that all logits of a row share moves no weight, but the log-sum-exp."""
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(1, 2, 40, 16, generator=generator) for _ in range(2))
    key = key + offset
    golden = attend(query.double(), key.double(), key.double())
    declared = _declared().declaration
    bound = log_sum_exp_bound(golden, contract_for(declared, "float32", golden.scale))
    error = ((query @ key.mT / 4.0).logsumexp(-1).double() - golden.log_sum_exp).abs()
    assert bool((error <= bound).all())
    assert float(bound.max()) < 1e-4 * max(1.0, float(golden.log_sum_exp.abs().max()))


def _declared(**promises: Any) -> Candidate:
    return conformance.core(CoreWithLogSumExp(), **{**PROMISES, **promises})


@pytest.mark.parametrize(
    "promises",
    [
        {"semantics": conformance.Semantics(null_key=True)},
        {"semantics": conformance.Semantics(rotary="halves")},
    ],
)
def test_keys_that_cannot_be_parted_are_not_merged(promises: dict[str, Any]) -> None:
    """Each half would have a null key of its own, or tokens at other places."""
    assert CLAUSES["lse.merge"].not_applicable(_declared(**promises))
    assert not CLAUSES["lse.golden"].not_applicable(_declared(**promises))


@pytest.mark.parametrize(
    ("promises", "said"),
    [
        ({"lse_base": "10"}, "lse_base"),
        ({"features": ["gqa"], "lse_shape": "BQH"}, "without features=\\['lse'\\]"),
        ({"features": ["lse", "bias_kv"], "masks": []}, "with 'lse'"),
    ],
)
def test_promises_that_exclude_each_other(promises: dict[str, Any], said: str) -> None:
    """One sentence says which."""
    with pytest.raises(conformance.DeclarationError, match=said):
        _declared(**promises)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (LogarithmToBaseTwo, "logarithms to the base 2"),
        (HeadsBehindQueries, "in the memory of [B, Lq, H], taken for [B, H, Lq]"),
    ],
)
def test_what_is_returned_instead_is_named(candidate: Candidate, said: str) -> None:
    """Beside right outputs."""
    report = conformance.check(candidate, profile="quick", only=["lse.golden"])
    (cause,) = report.candidates[0].causes
    assert said in cause.text
