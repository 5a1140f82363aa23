"""What is subtracted from logits in place of the row's largest is read where rows are lost."""

from __future__ import annotations

import pytest
from examples import BARE_FLOAT32, core
from torch import Tensor

from candidates.broken.bias import MaximumFlooredAtMinusTenThousand
from candidates.broken.reported.mask_reads import ConstantForMaximum
from candidates.eager import EagerCore
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis import diagnose
from conformance.diagnosis.battery import answer_to, plain_problem
from conformance.diagnosis.dissection.weight_functions import shift_statements


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (ConstantForMaximum, "the number 10"),
        (MaximumFlooredAtMinusTenThousand, "the largest one, or -10000 where that is larger"),
    ],
)
def test_what_stands_in_place_of_the_largest_logit_is_read(candidate: Candidate, said: str) -> None:
    """It shows where exponentials vanish or overflow, and is confirmed elsewhere."""
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert entry["name"] == f"exponentials: less {said}"


def test_nothing_is_read_where_no_row_is_lost() -> None:
    """Wrong answers of usual logits are not looked at: no exponential vanishes there."""

    class Doubled(EagerCore):
        """The weights count twice."""

        def mix(self, weights: Tensor, value: Tensor) -> Tensor:
            """Twice the weighted sum."""
            return 2.0 * super().mix(weights, value)

    subject = Subject(core(Doubled(), **BARE_FLOAT32), "float32")
    problem = plain_problem(subject)
    assert problem is not None
    answer = answer_to(subject, subject.inputs(problem))
    assert answer is not None
    assert not list(shift_statements(answer))
