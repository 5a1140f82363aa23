"""Wrong masks have names."""

from __future__ import annotations

import math

import torch
from examples import core
from torch import Tensor

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
