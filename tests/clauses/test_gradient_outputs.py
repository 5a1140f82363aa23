"""gradients.weights, .dropout, .shared, .no-queries: what flows back, and who is not accused."""

from __future__ import annotations

import pytest
import torch
from examples import core, plan, problem, quickly, run_clause
from torch import Tensor

import conformance
from candidates.broken.gradient_outputs import (
    BiasGradientPromisedAndMissing,
    OneStep,
    ReturnedWeightsIgnoredBackward,
)
from candidates.eager import Answer, Call, EagerCore
from candidates.legitimate.features import with_weights_and_dropout
from conformance.clauses.subject import Subject
from conformance.oracle.gradient_oracle import GradientAnswer
from conformance.oracle.oracle import evaluate
from conformance.problems.inputs import Inputs

NEW = ("gradients.weights", "gradients.dropout", "gradients.shared", "gradients.no-queries")
OPTIONS = {
    "causal": True,
    "softcap": 3.0,
    "num_kv_heads": 2,
    "query_length": 7,
    "value_head_size": 8,
}


def drawn(*shape: int) -> Tensor:
    """Float64 numbers that are the same each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def by_autograd(inputs: Inputs, point: conformance.Semantics, total: object) -> dict[str, Tensor]:
    """Torch's own gradients of a sum that ``total`` makes of the golden attention and the value."""
    leaves = {
        name: getattr(inputs, name).double().requires_grad_() for name in ("query", "key", "value")
    }
    attention = evaluate(inputs.replace(**leaves), point, recorded=True)
    total(attention, leaves["value"]).backward()  # type: ignore[operator]  # a function
    return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def agree(answer: GradientAnswer, expected: dict[str, Tensor]) -> None:
    """The golden gradients are those of autograd, far within their own bounds."""
    for name, gradient in answer.gradients.items():
        if name in expected:
            assert torch.allclose(gradient.value, expected[name], rtol=1e-9, atol=1e-11), name


def test_golden_beside_weights_is_that_of_autograd() -> None:
    """With groups, a mask, a flag and a cap: both outputs have a gradient."""
    subject = Subject(core(), "float32")
    inputs = subject.inputs(problem(mask=plan("dense"), **OPTIONS))
    of_answer, of_weights = drawn(*inputs.output_shape), drawn(*inputs.score_shape)
    answer = subject.gradients.oracle.answer_with_weights(inputs, of_answer, of_weights)
    expected = by_autograd(
        inputs,
        subject.declaration.semantics,
        lambda result, _: (result.output * of_answer).sum() + (result.weights * of_weights).sum(),
    )
    agree(answer, expected)


def test_golden_of_dropped_weights_is_that_of_autograd() -> None:
    """The same with some weights dropped and the others doubled, for each head and row."""
    subject = Subject(core(), "float32")
    inputs = subject.inputs(problem(mask=plan("dense"), **OPTIONS))
    upstream = drawn(*inputs.output_shape)
    factors = 2.0 * (drawn(*inputs.score_shape) > 0.0).double()
    answer = subject.gradients.oracle.dropped_gradients(inputs, upstream, factors)
    heads = inputs.read_heads(subject.declaration.semantics)
    expected = by_autograd(
        inputs,
        subject.declaration.semantics,
        lambda result, value: ((result.weights * factors) @ value[:, heads] * upstream).sum(),
    )
    agree(answer, expected)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("slug", NEW)
def test_correct_kernels_are_not_accused(slug: str, dtype: str) -> None:
    """A backward pass in one step, with everything that is offered, in each dtype."""
    candidate = core(OneStep(), dtypes=[dtype])
    assert quickly(candidate, slug, dtype).status == "passed"


def test_autograd_is_not_accused() -> None:
    """Torch's own functions, which drop and return weights."""
    for slug in NEW:
        assert run_clause(with_weights_and_dropout, slug).status in ("passed", "not-applicable")


class Detached(EagerCore):
    """Weights to look at, without a history."""

    def attend(self, call: Call) -> Answer:
        """The same, as numbers."""
        answer = super().attend(call)
        return answer if isinstance(answer, Tensor) else (answer[0], answer[1].detach())


def test_weights_may_be_constants() -> None:
    """Returned weights without a history need no gradient; that of others must be right."""
    result = run_clause(core(Detached()), "gradients.weights")
    assert result.status in ("passed", "not-applicable"), result.reason
    failed = run_clause(
        ReturnedWeightsIgnoredBackward, "gradients.weights", examples=20, explain=True
    )
    assert failed.status == "failed"
    assert [each["name"] for each in failed.diagnosis] == ["gradient-of-returned-weights-lost"]


def test_a_promised_gradient_of_the_bias_must_come() -> None:
    """Without grad_bias none need come; with it, one that is missing fails a MUST."""
    result = run_clause(BiasGradientPromisedAndMissing, "gradients.bias", examples=20)
    assert (result.status, result.level) == ("failed", "MUST")
    assert result.violation is not None
    assert "no gradient reaches the additive mask" in result.violation.message


@pytest.mark.parametrize("masks", [["keep"], []])
def test_grad_bias_needs_a_bias(masks: list[str]) -> None:
    """It is refused in one sentence where no additive mask is declared."""
    with pytest.raises(conformance.DeclarationError, match=r"without masks=\['bias'\]"):
        core(masks=masks, features=["grad_bias"])
