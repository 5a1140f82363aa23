from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from examples import core, plan, problem, quickly, run_clause, try_on
from torch import Tensor

from candidates.eager import Call, EagerCore
from conformance.clauses import bias
from conformance.clauses.bias import MOST_COPIES
from conformance.clauses.subject import Subject

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
    raised_output = subject.oracle.output(inputs.replace(bias=raised))
    repeated_output = subject.oracle.output(repeated)
    assert float((raised_output - repeated_output).abs().max()) < 1e-13


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
    """A bias of half its size fails against the golden and against the law."""
    assert run_clause(core(Halved()), slug).status == "failed"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_far_biases_hide_nothing_by_themselves(dtype: str) -> None:
    """Rows of nothing but -4e4 are softmaxes; to take them for rows without keys fails."""
    promises: dict[str, Any] = {
        "masks": ["bias"],
        "causal": None,
        "features": [],
        "dtypes": [dtype],
    }

    class Taking(EagerCore):
        def tables(self, call: Call) -> Iterator[Tensor]:
            yield from super().tables(call)
            if call.bias is not None:
                yield call.bias > -1e4

    right, wrong = (
        quickly(core(kernel, **promises), "mask.bias-far-below", dtype)
        for kernel in (EagerCore(), Taking())
    )
    assert (right.status, wrong.status) == ("passed", "failed")
    assert right.binding >= 3


def test_far_biases_leave_some_keys_of_other_rows() -> None:
    """Rows that are not lowered altogether keep a key where it was, and stay judged."""
    made, rows = bias._with_far(Subject(core(), "float32").inputs(BIASED), BIASED, -4e4)
    assert made.bias is not None
    assert made.keep is not None
    far = made.bias < -1e4
    assert bool((far.all(dim=-1, keepdim=True) == rows).all())
    assert 0 < int(rows.sum()) < rows.numel()
    assert bool((made.keep & ~far).any(dim=-1, keepdim=True)[~rows].all())


def test_lowest_biases_give_a_mean() -> None:
    """Any mean of the values will do where the scores are lost; NaN and zeros will not."""
    promises: dict[str, Any] = {"masks": ["bias"], "causal": None, "features": []}

    class Zero(EagerCore):
        def softmax(self, logits: Tensor) -> Tensor:
            return super().softmax(logits).masked_fill(logits < -1e30, 0.0)

    kernels = EagerCore(), Zero()
    statuses = [
        run_clause(core(kernel, **promises), "mask.bias-lowest").status for kernel in kernels
    ]
    assert statuses == ["passed", "failed"]
