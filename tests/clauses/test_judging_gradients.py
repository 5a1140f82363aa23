from __future__ import annotations

import pytest
import torch
from examples import core, problem
from gradient_problems import contract
from torch import Tensor

from conformance._golden import golden
from conformance.clauses.judging_gradients import in_common, measured_bounds
from conformance.clauses.subject import Subject
from conformance.problems.inputs import Inputs
from conformance.tolerance import core_gradients, model
from conformance.tolerance.gradient import Gradient


def test_bounds_are_measured_by_the_last_digit_of_the_inputs() -> None:
    """A gradient may err by a multiple of what one unit in the inputs' last place moves it."""
    subject = Subject(core(), "float32")
    gradients = {"query": torch.zeros(2, 3)}

    def again(_nudged: Inputs) -> dict[str, Tensor]:
        return {"query": torch.full((2, 3), 0.25)}

    bounds = measured_bounds(subject, subject.inputs(problem()), gradients, again)
    expected = torch.full((2, 3), 0.25 * model.SPREAD_FACTOR, dtype=torch.float64)
    assert torch.equal(bounds["query"], expected)


@pytest.mark.parametrize("error", [1e-5, 1e-4])
@pytest.mark.parametrize("name", ["query", "key"])
def test_a_wrong_scale_of_both_passes_is_no_factor(name: str, error: float) -> None:
    """Errors that a scale of the logits explains better are not called a multiple."""
    generator = torch.Generator().manual_seed(1)
    operands = [torch.randn(1, 2, 128, 16, generator=generator).double() for _ in range(3)]
    upstream = torch.randn(1, 2, 128, 16, generator=generator).double()

    def gradient(scale: float) -> Gradient:
        attention = golden.attend(*operands, scale=scale)
        bounds = core_gradients(attention, upstream, contract("float32", 0.25))
        return bounds[name]

    violation = in_common(name, gradient(0.25 * (1.0 + error)).value, gradient(0.25))
    assert violation is not None
    assert "a scale of the logits" in violation.message
    assert violation.got == pytest.approx(error, rel=0.1)
