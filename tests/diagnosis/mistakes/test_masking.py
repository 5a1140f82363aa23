"""Wrong masks have names."""

from __future__ import annotations

import math

import pytest
import torch
from examples import core
from torch import Tensor

from candidates.broken.masking import MaskedAfterSoftmax
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose


def test_a_length_of_zero_that_is_taken_for_one_has_a_name() -> None:
    """An item without keys attends its first one, as where lengths are clamped to avoid NaN."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if lengths is not None:
            keep = torch.arange(key.shape[2]) < lengths.clamp_min(1)[:, None, None, None]
        if keep is not None:
            scores = scores.masked_fill(~keep, -math.inf)
        return scores.softmax(-1).nan_to_num(0.0) @ value

    promises = {"masks": ["keep", "lengths"], "causal": None, "features": [], "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(attend, dtypes=["float32"], **promises), "float32"))
    assert entry["name"] == "lengths-at-least-one"


@pytest.mark.parametrize(("fill", "name"), [(-6e4, "65000"), (-65504.0, "65000"), (-5e4, "5e4")])
def test_a_fill_near_the_least_half_has_one_name(fill: float, name: str) -> None:
    """No answer tells -6e4 from -65504, and the name says both; that of -5e4 is another."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if keep is not None:
            scores = scores.masked_fill(~keep, fill)
        return scores.softmax(-1) @ value

    promises = {"masks": ["keep"], "causal": None, "features": [], "empty_rows": "any"}
    (entry,) = diagnose(Subject(core(attend, dtypes=["float32"], **promises), "float32"))
    assert entry["name"] == f"mask-fill-{name}"
    assert ("-6e4 to -65504" in entry["text"]) == (name == "65000")


def test_a_mask_after_the_softmax_has_one_name_where_an_additive_one_is_added() -> None:
    """Masks and causality cut the weights; minus infinities are in the logits before."""
    (entry,) = diagnose(Subject(MaskedAfterSoftmax, "float32"))
    assert entry["name"] == "mask-multiplies-weights"
