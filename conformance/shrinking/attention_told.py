"""The attention weights behind a small failure: those of the golden, and the candidate's own.

A candidate that returns no weights tells them all the same: its answer to values that are one at a
single key and zero at all others is the weight of that key.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from ..base.tables import MOST_ELEMENTS, table
from ..calls.calling import CandidateFailure, RowWithoutKeysRefused
from ..calls.recording import Call
from ..clauses.subject import Subject
from ..problems.inputs import Inputs

# Calls that are asked for the weights of one; each tells as many keys as a value has channels.
MOST_CALLS: Final = 16


def attention(subject: Subject, call: Call) -> dict[str, Any]:
    """``attention`` with the tables ``expected`` and ``got``, those of them that can be told.

    Both are ``[B, H, Lq, Lk]``. Empty where there is no golden answer, and for more weights than a
    report writes out. ``got`` is missing where the call returned weights itself, and where the
    candidate is a layer, whose values come out of its projections.
    """
    inputs = call.inputs
    if call.refused is not None or not subject.candidate.golden_known:
        return {}
    if subject.candidate.kind == "positions" or math.prod(inputs.score_shape) > MOST_ELEMENTS:
        return {}
    told = {"expected": table(subject.golden(inputs).weights)}
    if call.weights is None and (own := _own(subject, inputs)) is not None:
        told["got"] = table(own)
    return {"attention": told}


def _own(subject: Subject, inputs: Inputs) -> Tensor | None:
    """The weights of a core that takes values apart from its keys; None where it refuses them."""
    channels, keys = inputs.value.shape[-1], inputs.value.shape[-2]
    apart = inputs.mode == "separate" and not inputs.shared and not inputs.return_weights
    if inputs.is_layer or not apart or not channels or keys > channels * MOST_CALLS:
        return None
    try:
        with subject.recorded(None):
            asked = (_asking(inputs, first) for first in range(0, keys, channels))
            parts = [subject.answer(asking).double() for asking in asked]
    except (CandidateFailure, RowWithoutKeysRefused):
        return None
    return torch.cat(parts, dim=-1)[..., :keys] if parts else None


def _asking(inputs: Inputs, first: int) -> Inputs:
    """The same question with values whose channel c is one at the key first + c alone."""
    value = torch.zeros_like(inputs.value)
    for channel, key in enumerate(range(first, min(first + value.shape[-1], value.shape[-2]))):
        value[..., key, channel] = 1.0
    return inputs.replace(value=value, generic=False)
