from __future__ import annotations

import math

import pytest
import torch
from examples import core, plan, problem, run_clause, try_on
from torch import Tensor

from candidates.eager import EagerCore
from conformance.clauses.bias import MOST_COPIES
from conformance.subject import Subject

BIASED = problem(mask=plan("random", "bias", "BHQK", finite_bias=True))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_counts_hold_in_exact_arithmetic(seed: int, dtype: str) -> None:
    """The golden answers of the raised bias and of the repeated key are equal to rounding."""
    example = BIASED.replace(seed=seed, dtype=dtype)
    subject = Subject(core(), dtype)
    inputs = subject.inputs(example)
    assert inputs.bias is not None
    chosen, copies = seed % 7, 2 + seed % (MOST_COPIES - 1)
    raised = inputs.bias.double().clone()
    raised[..., chosen] += math.log(copies)
    index = torch.arange(7).repeat_interleave(torch.where(torch.arange(7) == chosen, copies, 1))
    repeated = inputs.with_tokens(key=inputs.key[:, :, index], value=inputs.value[:, :, index])
    assert inputs.keep is not None
    repeated = repeated.replace(keep=inputs.keep[..., index], bias=inputs.bias[..., index])
    one = subject.oracle.output(inputs.replace(bias=raised))
    two = subject.oracle.output(repeated)
    assert float((one - two).abs().max()) < 1e-13


def test_correct_core_counts() -> None:
    """A bias that joins the logits counts keys, and examples bind."""
    finding = try_on(core(), "mask.bias-counts", BIASED)
    assert finding.violation is None
    assert finding.binding


class Halved(EagerCore):
    """The bias joins at half its size."""

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        """The scores plus half the additive mask."""
        return scores + torch.where(bias.isfinite(), bias / 2, bias)


@pytest.mark.parametrize("slug", ["mask.bias", "mask.bias-counts"])
def test_halved_bias_fails(slug: str) -> None:
    """A bias of half its size is seen by the golden and by the law."""
    assert run_clause(core(Halved()), slug).status == "failed"
