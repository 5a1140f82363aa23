from __future__ import annotations

import torch
from examples import core, problem
from torch import Tensor

from conformance.clauses.judging_gradients import measured_bounds
from conformance.clauses.subject import Subject
from conformance.problems.inputs import Inputs
from conformance.tolerance import model


def test_bounds_are_measured_by_the_last_digit_of_the_inputs() -> None:
    """A gradient may err by a multiple of what one unit in the inputs' last place moves it."""
    subject = Subject(core(), "float32")
    gradients = {"query": torch.zeros(2, 3)}

    def again(_nudged: Inputs) -> dict[str, Tensor]:
        return {"query": torch.full((2, 3), 0.25)}

    bounds = measured_bounds(subject, subject.inputs(problem()), gradients, again)
    expected = torch.full((2, 3), 0.25 * model.SPREAD_FACTOR, dtype=torch.float64)
    assert torch.equal(bounds["query"], expected)
