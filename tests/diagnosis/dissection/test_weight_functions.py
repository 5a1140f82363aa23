"""What is subtracted from logits in place of the row's largest is read where rows are lost."""

from __future__ import annotations

import pytest
from examples import BARE_FLOAT32, CLAUSES, core, problem
from torch import Tensor

from candidates.broken.bias import MaximumFlooredAtMinusTenThousand
from candidates.broken.masking import MaximumOverIgnoredKeys
from candidates.broken.reported.mask_reads import ConstantForMaximum
from candidates.eager import EagerCore
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis import Diagnostician, diagnose
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


def test_what_an_additive_mask_hides_is_no_largest_logit() -> None:
    """Minus infinity is lower than all others, where a mask of truth values leaves the logit."""
    failing = problem(
        batch=2,
        num_heads=3,
        num_kv_heads=1,
        query_length=4,
        key_length=4,
        head_size=16,
        value_head_size=1,
        seed=964,
        values="integers",
        causal=True,
        scale=1.7,
    )
    diagnostician = Diagnostician(Subject(MaximumOverIgnoredKeys, "float32"))
    entry, *_ = diagnostician.explain(CLAUSES["mask.causal-combined"], failing)
    assert entry["name"].endswith("keys that a mask of truth values hides as well")


def test_nothing_is_read_where_no_row_is_lost() -> None:
    """Wrong answers of usual logits are not looked at: no exponential vanishes there."""

    class Doubled(EagerCore):
        """The weights count twice."""

        def mix(self, weights: Tensor, value: Tensor) -> Tensor:
            """Twice the weighted sum."""
            return 2.0 * super().mix(weights, value)

    subject = Subject(core(Doubled(), **BARE_FLOAT32), "float32")
    plain = plain_problem(subject)
    assert plain is not None
    answer = answer_to(subject, subject.inputs(plain))
    assert answer is not None
    assert not list(shift_statements(answer))


def test_a_floor_that_half_precision_cannot_hold_is_none() -> None:
    """It is tried like the others where rows of float16 vanish."""

    def nothing(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return query.new_zeros(*query.shape[:-1], value.shape[-1]) * key.shape[-1]

    subject = Subject(core(nothing, **{**BARE_FLOAT32, "dtypes": ["float16"]}), "float16")
    plain = plain_problem(subject)
    assert plain is not None
    answer = answer_to(subject, subject.inputs(plain.replace(values="large-logits")))
    assert answer is not None
    assert not list(shift_statements(answer))
