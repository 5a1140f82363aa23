"""Logits that are raised or clamped are stated with their numbers."""

from __future__ import annotations

import pytest
import torch
from examples import BARE_FLOAT32, core
from torch import Tensor

import conformance
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose


@pytest.mark.parametrize(
    ("least", "most", "said"),
    [
        (None, 1.25, "at most 1.25"),
        (-1.0, None, "at least -1"),
        (-1.0, 3.0, "at least -1 and at most 3"),
    ],
)
def test_the_range_that_scores_are_clamped_to_is_read(
    least: float | None, most: float | None, said: str
) -> None:
    """From above, from below or both."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        return scores.clamp(least, most).softmax(-1) @ value

    (entry,) = diagnose(Subject(core(attend, **BARE_FLOAT32), "float32"))
    assert entry["name"] == f"logits: scores are clamped to {said}"


def test_logits_are_clamped_with_their_bias_or_without() -> None:
    """What is clamped is said: where it is the scores alone, the bias is added to them."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, bias: Tensor | None = None) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        return (scores if bias is None else scores + bias).clamp(max=1.0).softmax(-1) @ value

    candidate = core(attend, **{**BARE_FLOAT32, "masks": ["bias"], "empty_rows": "any"})
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert entry["name"] == "logits: logits are clamped to at most 1"


@pytest.mark.parametrize(("distance", "late"), [(1.7, False), (9.0, True)])
def test_the_distance_that_small_logits_are_raised_to_is_read(
    distance: float,
    late: bool,  # noqa: FBT001
) -> None:
    """With its number, and whether hidden keys are raised, too."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        hidden = torch.zeros((), dtype=torch.bool) if keep is None else ~keep
        scores = scores.masked_fill(hidden, -torch.inf)
        raised = (scores - scores.amax(-1, keepdim=True)).clamp(min=-distance)
        return (raised if late else raised.masked_fill(hidden, -torch.inf)).softmax(-1) @ value

    declare = conformance.core(dtypes=["float32"], masks=["keep"], empty_rows="any")
    (entry,) = diagnose(Subject(declare(attend), "float32"))
    said = f"logits: no farther than {distance:g} below the row's largest"
    assert entry["name"] == said + ", nor those of hidden keys" * late
