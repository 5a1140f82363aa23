"""What the weights are made into before they meet the values is stated."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from examples import core
from torch import Tensor

from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose


def weighed(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """A core that makes something of its weights and logits, whatever keys are hidden."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        logits = query @ key.mT * query.shape[-1] ** -0.5
        logits = logits if bias is None else logits + bias
        logits = logits if keep is None else logits.masked_fill(~keep, -math.inf)
        return change(logits.softmax(-1).nan_to_num(0.0), logits) @ value

    return attend


def _shares_so_far(weights: Tensor, _logits: Tensor) -> Tensor:
    total = weights.cumsum(-1)
    return total / total.sum(-1, keepdim=True).clamp_min(1e-30)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda weights, _logits: weights.softmax(-1), "softmax-twice"),
        (lambda _weights, logits: logits.log_softmax(-1), "softmax-log"),
        (
            lambda weights, _logits: weights.mean().expand_as(weights),
            "weights: their mean over all",
        ),
        (
            _shares_so_far,
            "exponentials: summed up over the keys so far",
        ),
    ],
    ids=["softmax", "logarithm", "mean", "sums"],
)
def test_what_becomes_of_weights_is_stated_where_keys_are_hidden(
    change: Callable[[Tensor, Tensor], Tensor], name: str
) -> None:
    """A hidden key has what is made of a weight of zero, also in rows without other keys."""
    candidate = core(
        weighed(change),
        masks=["keep", "bias"],
        causal=None,
        features=[],
        empty_rows="zeros",
        dtypes=["float32"],
    )
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert entry["name"] == name
    assert entry["fix"]


def _divided(powers: Tensor) -> Tensor:
    return powers / powers.sum(-1, keepdim=True)


def test_keys_that_are_lost_behind_the_softmax_are_so_beside_sinks() -> None:
    """The sum of a row does not tell, as a sink has a share of it: the other weights do."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, sinks: Tensor | None = None) -> Tensor:
        logits = query @ key.mT * query.shape[-1] ** -0.5
        if sinks is not None:
            logits = torch.cat([logits, sinks.view(1, -1, 1, 1).expand_as(logits[..., :1])], -1)
        whole = key.shape[2] // 4 * 4
        return logits.softmax(-1)[..., :whole] @ value[:, :, :whole]

    candidate = core(attend, masks=[], causal=None, features=["sinks"], dtypes=["float32"])
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert entry["name"] == ("values: zero for keys past whole tiles of 4")


def test_an_answer_times_what_the_mask_keeps_is_stated() -> None:
    """The part of the keys that the mask alone leaves, whatever causality hides."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        logits = query @ key.mT * query.shape[-1] ** -0.5
        seen = torch.ones(logits.shape[-2:], dtype=torch.bool)
        seen = seen.tril(key.shape[2] - query.shape[2]) if causal else seen
        part = torch.ones(()) if keep is None else keep.float().mean(-1, keepdim=True)
        logits = logits.masked_fill(~(seen if keep is None else seen & keep), -math.inf)
        return part * (logits.softmax(-1).nan_to_num(0.0) @ value)

    promises = {"masks": ["keep"], "causal": "bottom-right", "features": [], "dtypes": ["float32"]}
    (entry,) = diagnose(Subject(core(attend, **promises, empty_rows="zeros"), "float32"))
    assert entry["name"] == "answer: times the part of the keys that the mask keeps"


def test_a_second_softmax_that_is_subtracted_is_told() -> None:
    """Each of one half of a head's channels: the weights sum to what is left of one."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        halves = zip(query.chunk(2, -1), key.chunk(2, -1), strict=True)
        one, other = ((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) for q, k in halves)
        return (one - 0.8 * other) @ value

    declared = {"masks": [], "causal": None, "features": [], "geometry": {"head_size": 8}}
    (entry,) = diagnose(Subject(core(attend, **declared), "float32"))
    assert "the softmax of the first half of a head's channels, -0.8 times that" in entry["text"]
    assert "each with the scale of half as many channels" in entry["text"]
