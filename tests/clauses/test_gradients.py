"""gradients.*: what flows back through correct kernels, through wrong ones, and through none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import SMALL, bare, core, layer, plan, problem, run_clause, try_on
from torch import Tensor, nn

import conformance
from candidates.broken._backward import HandWritten, HandWrittenLayer
from candidates.eager import EagerLayer, EagerModule
from candidates.legitimate.backward import (
    backward_in_blocks,
    checkpointed,
    checkpointed_reentrantly,
    layer_checkpointed_reentrantly,
)
from candidates.legitimate.empty_rows import empty_rows_are_nan
from conformance.clauses.registry import all_clauses
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.oracle.gradient_oracle import GradientAnswer, GradientOracle
from conformance.problems.inputs import Inputs
from conformance.running.shrinking.smallest import Control

OURS = [clause.id for clause in all_clauses() if clause.family == "gradients"]


def status(candidate: Candidate, slug: str, dtype: str = "float32", examples: int = 20) -> str:
    """The status of one clause, with its reason."""
    result = run_clause(candidate, slug, examples=examples, dtype=dtype)
    return f"{result.status}: {result.reason}".removesuffix(": ")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("slug", OURS)
@pytest.mark.parametrize(
    "candidate",
    [
        core(HandWritten()),
        layer(HandWrittenLayer),
        layer(EagerModule),
        backward_in_blocks,
        checkpointed,
        checkpointed_reentrantly,
        layer_checkpointed_reentrantly,
    ],
    ids=["core", "layer", "module", "blocks", "checkpointed", "reentrant", "reentrant-layer"],
)
def test_correct_backward_passes_are_not_accused(candidate: Candidate, slug: str) -> None:
    """By hand, by autograd, in blocks, recomputed: nothing fails and nothing is untestable."""
    outcome = status(candidate, slug, examples=SMALL.examples)
    assert outcome.startswith(("passed", "not-applicable")), outcome


@pytest.mark.parametrize("rule", ["nan", "any"])
def test_a_row_of_nan_may_spoil_the_gradients(rule: str) -> None:
    """Where a query without keys may answer NaN, no combination of options leaves one so."""
    promises = {"masks": ["keep"], "features": ["scale"], "empty_rows": rule}
    candidate = core(empty_rows_are_nan.function, **promises)
    none_for_the_first = problem(causal=True, query_length=2, key_length=1)
    finding = try_on(candidate, "gradients.options", none_for_the_first)
    assert finding.violation is None
    assert status(candidate, "gradients.options") == "passed"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_precisions(dtype: str) -> None:
    """Half and double precision keep the golden gradients within their own bounds."""
    assert status(backward_in_blocks, "gradients.golden", dtype) == "passed"


def detached(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The answer, without any history."""
    return bare(query, key, value).detach()


def test_default_gradients_that_are_not_there_do_not_apply() -> None:
    """Who promises no gradients of its own accord is not accused of giving none."""
    outcome = status(conformance.core(name="detached")(detached), "gradients.golden")
    assert outcome.startswith("not-applicable: its answer carries no gradient")


def test_declared_gradients_that_are_not_there_fail() -> None:
    """Who names gradients among its features must give them."""
    promised = conformance.core(name="detached", features=["gradients"])(detached)
    assert status(promised, "gradients.golden").startswith("failed: the answer does not require")


def test_gradients_that_are_declared_away_do_not_apply() -> None:
    """without=["gradients"] is taken at its word."""
    without = conformance.core(name="bare", without=["gradients"])(bare)
    assert status(without, "gradients.golden").startswith("not-applicable: it declares")


def refusing(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """As NumPy would: no conversion of what requires a gradient."""
    return torch.from_numpy(bare(query, key, value).numpy())


def test_inputs_that_require_gradients_may_be_refused_by_default() -> None:
    """An exception that comes only because gradients are required is no failure by default."""
    outcome = status(conformance.core(name="refusing")(refusing), "gradients.golden")
    assert outcome.startswith("not-applicable: it refuses inputs that require gradients")


class Unimplemented(torch.autograd.Function):
    """A kernel without a backward pass that says so."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        """The answer."""
        del ctx
        return bare(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Nothing."""
        raise NotImplementedError


def test_a_backward_pass_that_is_not_implemented_does_not_apply() -> None:
    """NotImplementedError means that gradients are not offered."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        answer: Tensor = Unimplemented.apply(query, key, value)  # type: ignore[no-untyped-call]  # torch's own
        return answer

    assert status(conformance.core(name="kernel")(kernel), "gradients.golden").startswith(
        "not-applicable"
    )


class Frozen(EagerModule):
    """A module whose weights require no gradients."""

    def __init__(self, geometry: conformance.Geometry, weights: Any) -> None:
        super().__init__(geometry, weights)
        self.requires_grad_(requires_grad=False)


def test_weights_that_no_gradient_reaches_are_left_out() -> None:
    """Without grad_weights only the inputs are judged where no weight gets a gradient."""
    assert status(layer(Frozen), "gradients.golden") == "passed"


def test_declared_gradients_of_weights_must_arrive() -> None:
    """With grad_weights among the features a layer that detaches them fails."""

    class Detached(EagerLayer):
        def __init__(self, geometry: conformance.Geometry, weights: Any) -> None:
            super().__init__(geometry, weights)
            names = ("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "o_bias")
            held = {name: getattr(weights, name) for name in names}
            cut = {n: None if t is None else t.detach() for n, t in held.items()}
            self.weights = conformance.ProjectionWeights(**cut)

    assert status(layer(Detached), "gradients.golden") == "passed"
    promised = layer(Detached, features=["gqa", "grad_weights"])
    assert status(promised, "gradients.golden").startswith("failed: no gradient reaches the q")


def test_gradients_of_packed_parameters_are_judged() -> None:
    """torch.nn.MultiheadAttention passes, gradients of its packed weights included."""
    torchs = conformance.module(nn.MultiheadAttention)
    assert status(torchs, "gradients.golden") == "passed"


class Learning(nn.Module):
    """A kernel with a number that it learns, and a hook that counts when a gradient arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.arrived = 0
        self.factor.register_post_accumulate_grad_hook(self._count)

    def _count(self, _parameter: Tensor) -> None:
        self.arrived += 1

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The ordinary answer, times one."""
        return bare(query, key, value) * self.factor


def test_gradients_are_computed_as_in_training() -> None:
    """Hooks on accumulated gradients run; what a parameter held before is there afterwards."""
    module = Learning()
    module.factor.grad = torch.tensor(3.0)
    assert status(conformance.core(name="learning")(module), "gradients.golden") == "passed"
    assert module.arrived > 0
    assert float(module.factor.grad) == 3.0


@conformance.core(causal="bottom-right", empty_rows="zeros")
def divided_where_there_are_keys(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False
) -> Tensor:
    """Rows without keys are zero, and the gradient of what is not chosen is NaN."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if causal:
        ahead = key.shape[2] - query.shape[2]
        shown = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(ahead)
        scores = scores.masked_fill(~shown, -torch.inf)
    largest = scores.amax(-1, keepdim=True)
    weights = (scores - torch.where(largest.isinf(), 0.0, largest)).exp()
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights @ value / total, 0.0)


def test_what_a_row_without_keys_gives_is_not_laid_to_another_query() -> None:
    """It is NaN whichever answer the gradient is asked of."""
    said = status(divided_where_there_are_keys, "gradients.causal")
    assert "with no gradient of any answer a later" in said
    assert "where queries have no keys" in said


def test_golden_gradients_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The golden that stands in for a candidate is judged by the gradients that it answers with."""
    candidate = core(HandWritten(), masks=["keep"])
    asked: list[Inputs] = []
    compute = GradientOracle._answer

    def counted(oracle: GradientOracle, inputs: Inputs, *upstream: Any) -> GradientAnswer:
        asked.append(inputs)
        return compute(oracle, inputs, *upstream)

    monkeypatch.setattr(GradientOracle, "_answer", counted)
    emptied = problem(mask=plan("empty-rows", "keep", "BHQK"))
    (clause,) = (one for one in all_clauses() if one.id == "gradients.empty-row-finite")
    assert clause.check(Control(Subject(candidate, "float32")), emptied).violation is None
    assert len(asked) == 1
