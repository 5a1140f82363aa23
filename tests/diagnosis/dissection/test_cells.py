"""Masks that are read at another place are told, with the calls in which they are."""

from __future__ import annotations

import math

from examples import core
from torch import Tensor

from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose


def test_a_mask_of_exchanged_axes_is_told_with_the_masks_that_show_it() -> None:
    """Items and heads of a table are exchanged: a mask that is the same for either is right."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        logits = query @ key.mT * query.shape[-1] ** -0.5
        if keep is not None:
            exchanged = min(keep.shape[:2]) > 1
            table = keep.transpose(0, 1).reshape(keep.shape) if exchanged else keep
            logits = logits.masked_fill(~table, -math.inf)
        return logits.softmax(-1).nan_to_num(0.0) @ value

    promises = {"masks": ["keep"], "causal": None, "features": [], "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(attend, dtypes=["float32"], **promises), "float32"))
    assert entry["name"] == "mask: keys that the mask with batch items and heads exchanged keeps"
    assert "differs between heads" in entry["text"]
