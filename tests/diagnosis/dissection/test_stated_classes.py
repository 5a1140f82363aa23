"""Kinds of mistakes are stated, each with its condition and a way to mend it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples import BARE_FLOAT32, core
from torch import Tensor
from torch.nn.functional import gelu

from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose

Logits = Callable[[Tensor], Tensor]


def said(function: Callable[..., Tensor], **promises: Any) -> dict[str, Any]:
    """The one thing that the diagnosis of a core says."""
    (entry,) = diagnose(Subject(core(function, **{**BARE_FLOAT32, **promises}), "float32"))
    return entry


def scaled(query: Tensor, key: Tensor) -> Tensor:
    """Scaled dot products."""
    scores: Tensor = query @ key.mT * query.shape[-1] ** -0.5
    return scores


def kept(logits: Tensor, keep: Tensor | None) -> Tensor:
    """Weights of the keys that a mask keeps; zeros in rows without keys."""
    if keep is not None:
        logits = logits.masked_fill(~keep, -math.inf)
    return logits.softmax(-1).nan_to_num(0.0)


def averaged_keys(q: Tensor, k: Tensor, v: Tensor, *, softcap: float | None = None) -> Tensor:
    """Products with the mean of the keys of all heads, under a softcap."""
    scores = scaled(q, k.mean(1, keepdim=True).expand_as(k))
    return (scores if softcap is None else softcap * torch.tanh(scores / softcap)).softmax(-1) @ v


def test_another_operand_is_stated_beside_a_softcap() -> None:
    """What enters the products is read behind the softcap, which bends their logits."""
    entry = said(averaged_keys, features=["softcap"])
    assert entry["name"] == "logits: the key averaged over the heads"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.mean(1, keepdim=True).expand_as(s), "the scores averaged over the heads"),
        (
            lambda s: s / (s.std(-1, keepdim=True, correction=0) + 1e-6),
            "the scores divided by their deviation over the keys and 1e-6",
        ),
        (
            lambda s: s / s.abs().amax(-1, keepdim=True).clamp_min(1e-6),
            "the scores divided by the largest size in their row",
        ),
    ],
)
def test_functions_of_whole_rows_of_scores_are_stated(change: Logits, words: str) -> None:
    """Scores that other heads, or the other keys of their row, change."""
    entry = said(lambda q, k, v: change(scaled(q, k)).softmax(-1) @ v)
    assert words in entry["text"]
    assert entry["fix"]


@pytest.mark.nightly
@pytest.mark.parametrize(("factor", "words"), [(3.0, "3"), (0.125, "0.125")])
def test_a_multiplied_bias_is_told_with_its_factor(factor: float, words: str) -> None:
    """The number is that of the mask, not of what it is too large or too small by."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None) -> Tensor:
        logits = scaled(q, k)
        return (logits if bias is None else logits + factor * bias).softmax(-1).nan_to_num(0.0) @ v

    entry = said(attend, masks=["bias"], empty_rows="zeros")
    assert entry["text"] == f"the additive mask is multiplied by {words} before it is added"


@pytest.mark.nightly
def test_queries_that_attend_nothing_are_told_by_the_mask_that_hides_them() -> None:
    """A mask of keys that blanks the answers of padded queries, too."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        if lengths is None:
            return scaled(q, k).softmax(-1) @ v
        keep = torch.arange(k.shape[2]) < lengths[:, None, None, None]
        answer = kept(scaled(q, k), keep) @ v
        padded = torch.arange(q.shape[2]) >= lengths[:, None]
        return answer.masked_fill(padded[:, None, :, None], 0.0)

    text = said(attend, masks=["lengths"], empty_rows="zeros")["text"]
    assert "queries whose place, counted from the first one, lies behind the last key" in text
    assert "attend no key" in text


@pytest.mark.nightly
def test_a_diagonal_that_ends_at_the_length_of_an_item_is_told() -> None:
    """The last query stands at the last key that its item has, not at the last of the tensor."""

    def attend(
        q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        count, places = k.shape[2], torch.arange(k.shape[2])
        ends = torch.full((q.shape[0],), count) if lengths is None else lengths
        ends = ends[:, None, None, None]
        keep = places < ends
        if causal:
            keep = keep & (places <= torch.arange(q.shape[2])[:, None] - q.shape[2] + ends)
        return kept(scaled(q, k), keep) @ v

    text = said(attend, masks=["lengths"], causal="bottom-right", empty_rows="zeros")["text"]
    assert "where the last query stands at the last key that the mask keeps" in text
    assert "(only with the causal flag)" in text


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("step", "words"),
    [(17, "indices 16, 33, 50, … have no weight"), (15, "indices 15, 30, 45, … count twice")],
)
def test_tiles_that_lie_too_far_apart_or_too_close_are_told(step: int, words: str) -> None:
    """Keys between two tiles of 16 are lost, those of both count twice."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        starts = range(0, k.shape[2], step)
        read = torch.cat([torch.arange(k.shape[2])[first : first + 16] for first in starts])
        return scaled(q, k[:, :, read]).softmax(-1) @ v[:, :, read]

    assert words in said(attend)["text"]


@pytest.mark.nightly
def test_a_window_of_nothing_that_is_taken_for_none_is_told() -> None:
    """Zero keys on a side are not the same as no limit."""

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool = False,
        window: tuple[int, int] | None = None,
    ) -> Tensor:
        lq, lk = q.shape[2], k.shape[2]
        ahead = torch.arange(lk) - torch.arange(lq)[:, None] - (lk - lq)
        keep = (ahead <= 0) if causal else torch.ones(lq, lk, dtype=torch.bool)
        if window is not None:
            keep = keep & (ahead >= -window[0]) if window[0] > 0 else keep
            keep = keep & (ahead <= window[1]) if window[1] > 0 else keep
        return kept(scaled(q, k), keep) @ v

    entry = said(attend, causal="bottom-right", features=["window"], empty_rows="zeros")
    assert entry["name"] == "band: every key on a side that has none"


def sunk(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """A core that makes its answer of that without sinks and of a factor of logits and sinks."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, sinks: Tensor | None = None) -> Tensor:
        logits = scaled(q, k)
        answer = logits.softmax(-1) @ v
        return answer if sinks is None else answer * change(logits, sinks[:, None, None])

    return attend


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda logits, sink: torch.sigmoid(sink - logits.logsumexp(-1, keepdim=True)),
            "multiplied by the sink's share",
        ),
        (lambda _logits, sink: torch.sigmoid(sink), "multiplied by the sigmoid of the sink"),
        (
            lambda logits, sink: torch.sigmoid(
                logits.logsumexp(-1, keepdim=True) - logits.amax(-1, keepdim=True) - sink
            ),
            "relative to the row's largest logit",
        ),
    ],
)
def test_sinks_in_other_places_are_told(
    change: Callable[[Tensor, Tensor], Tensor], words: str
) -> None:
    """A sink in a gate, or in a sum that is relative to something else."""
    assert words in said(sunk(change), features=["sinks"])["text"]


def test_sinks_that_are_lost_are_no_loss_of_precision() -> None:
    """What a rounding leaves out with the sink does not make the sink's absence a rounding."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, sinks: Tensor | None = None) -> Tensor:
        del sinks
        weights = scaled(q, k).softmax(-1)
        return weights / weights.sum(-1, keepdim=True).clamp_min(1e-9) @ v

    assert said(attend, features=["sinks"])["name"] == "sinks-ignored"


def test_values_cached_in_another_order_than_keys_are_told() -> None:
    """Each new value meets the weight of a cached key."""

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        past_key: Tensor | None = None,
        past_value: Tensor | None = None,
    ) -> Tensor:
        if past_key is not None and past_value is not None:
            k, v = torch.cat([past_key, k], dim=2), torch.cat([v, past_value], dim=2)
        return scaled(q, k).softmax(-1) @ v

    assert said(attend, features=["kv_cache"])["name"] == "heads: cached values behind the new ones"


@pytest.mark.nightly
def test_a_channel_that_is_lost_is_not_told_as_keys() -> None:
    """An answer of zeros in one channel has keys in the others."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        answer = scaled(q, k).softmax(-1) @ v
        return torch.cat([torch.zeros_like(answer[..., :1]), answer[..., 1:]], dim=-1)

    assert "keys" not in said(attend)["name"]


def test_an_activation_of_the_answer_is_told() -> None:
    """A function of each element of the answer."""
    entry = said(lambda q, k, v: gelu(scaled(q, k).softmax(-1) @ v))
    assert entry["name"] == "answer: the GELU of it"


@pytest.mark.nightly
def test_weights_of_the_next_head_that_are_mixed_in_are_told() -> None:
    """A tenth of the weights of the head before, for any number of heads."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = scaled(q, k).softmax(-1)
        return (weights + 0.1 * weights.roll(1, 1)) @ v

    assert "0.1 times those of the head before" in said(attend)["text"]
