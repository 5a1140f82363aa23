"""Kinds of mistakes are stated, each with its condition and a way to mend it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from examples import BARE_FLOAT32, CLAUSES, core, layer, problem
from torch import Tensor
from torch.nn.functional import elu, gelu, normalize, softplus

import conformance
from candidates.eager import Answer, EagerLayer
from conformance._golden import golden
from conformance.clauses.subject import Subject
from conformance.diagnosis import Diagnostician, diagnose
from conformance.diagnosis.earlier_calls import state_entry

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
    assert entry["name"] == "keys: averaged over the key/value heads"


def two_tiles_at_most(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A loop over as many tiles of 64 keys as were once enough."""
    return scaled(query, key[:, :, :128]).softmax(-1) @ value[:, :, :128]


@pytest.mark.nightly
def test_keys_past_a_fixed_number_are_no_last_tile() -> None:
    """Where two tiles of keys are read of however many, it is not the last one that is lost."""
    entry = said(two_tiles_at_most)
    assert entry["name"] == "exponentials: zero for keys past the first 128"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.mean(1, keepdim=True).expand_as(s), "the scores are averaged over the heads"),
        (
            lambda s: s / (s.std(-1, keepdim=True, correction=0) + 1e-6),
            "the scores are divided by their deviation over the keys and 1e-6",
        ),
        (
            lambda s: s / s.abs().amax(-1, keepdim=True).clamp_min(1e-6),
            "the scores are divided by the largest size over the keys",
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
    assert entry["text"] == f"the additive mask is {words} times what it should be"


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
    assert text.startswith("the weights are zero for queries whose own index the mask hides")


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
    assert "made with the last query at the last key that the mask keeps" in text
    assert text.startswith("the causal table")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("step", "words"),
    [
        (17, "the exponentials are zero for keys at the indices 16, 33, 50, …"),
        (15, "the exponentials are doubled for the keys at the indices 15, 30, 45, …"),
    ],
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
    assert entry["name"] == "table of the window: made without a limit of zero keys"


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
            "multiplied by its share",
        ),
        (lambda _logits, sink: torch.sigmoid(sink), "multiplied by the sigmoid of it"),
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

    name = "values: with the cached ones behind the new ones"
    assert said(attend, features=["kv_cache"])["name"] == name


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
    assert entry["name"] == "outputs of the heads: put through GELU"


@pytest.mark.nightly
def test_weights_of_the_next_head_that_are_mixed_in_are_told() -> None:
    """A tenth of the weights of the head before, for any number of heads."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = scaled(q, k).softmax(-1)
        return (weights + 0.1 * weights.roll(1, 1)) @ v

    assert "0.1 times those of the head before" in said(attend)["text"]


@pytest.mark.parametrize(
    ("weights_of", "name"),
    [
        (
            lambda s: softplus(s) / softplus(s).sum(-1, keepdim=True),
            "exponentials: the logits, put through softplus",
        ),
        pytest.param(
            lambda s: (s.softmax(-1) * 127).round() / 127,
            "weights-in-int8",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_other_functions_of_logits_are_told(weights_of: Logits, name: str) -> None:
    """What takes the place of the exponential may underflow: such rows tell nothing."""
    assert said(lambda q, k, v: weights_of(scaled(q, k)) @ v)["name"] == name


@pytest.mark.nightly
def test_exponentials_divided_over_the_queries_are_told() -> None:
    """They are relative to the largest of their own row, which is another axis."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = scaled(q, k)
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-2, keepdim=True) @ v

    assert said(attend)["name"] == "softmax: the exponentials divided by their sum over the queries"


@pytest.mark.nightly
def test_linear_attention_is_told() -> None:
    """Products of feature maps over their sum; where all of them round to zero nothing is told."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        products = (elu(q) + 1.0) @ (elu(k) + 1.0).mT
        return products / products.sum(-1, keepdim=True) @ v

    assert "each put through ELU and plus one first" in said(attend)["text"]


@pytest.mark.nightly
def test_an_answer_of_unit_length_is_told() -> None:
    """The answer of each query, divided by its length."""
    entry = said(lambda q, k, v: normalize(scaled(q, k).softmax(-1) @ v, dim=-1))
    assert entry["name"] == "outputs of the heads: divided by their length over the channels"


def test_any_number_added_to_hidden_logits_is_read() -> None:
    """It shows where the only kept key is so low that hidden ones weigh about as much."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> Tensor:
        logits = scaled(q, k)
        if keep is not None:
            logits = logits - 43.0 * (~keep).to(logits.dtype)
        return logits.softmax(-1) @ v

    entry = said(attend, masks=["keep"])
    assert entry["name"] == "hidden keys: -43 added to their logits"


def _sequences(heads: int, first: int, further: int) -> Tensor:
    """Slopes of two sequences, their exponents counted from these numbers."""
    power = 2 ** (heads.bit_length() - 1)
    exponents = [8 * (first + i) / power for i in range(power)]
    exponents += [4 * (further + 2 * i) / power for i in range(heads - power)]
    return torch.tensor([2.0**-exponent for exponent in exponents])


@pytest.mark.parametrize(
    ("slopes_of", "words"),
    [
        (lambda heads: 2.0 * golden.alibi_slopes(heads), "the bias by distance is doubled"),
        (lambda heads: _sequences(heads, 0, 0), "counted from 2 ** 0 in both sequences"),
        (lambda heads: _sequences(heads, 1, 2), "every other one from the second"),
    ],
    ids=["twice", "from zero", "further ones"],
)
def test_other_slopes_of_a_bias_by_distance_are_told(
    slopes_of: Callable[[int], Tensor], words: str
) -> None:
    """And not as a product with one key, which is the same for all keys."""
    point = conformance.Semantics(alibi=True)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ahead = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
        distance = (ahead - (k.shape[2] - q.shape[2])).abs()
        slopes = slopes_of(q.shape[1]).to(q.dtype)[:, None, None]
        return (scaled(q, k) - slopes * distance).softmax(-1) @ v

    assert words in said(attend, semantics=point)["text"]


@pytest.mark.nightly
def test_heads_of_a_core_that_are_normalised_or_turned_otherwise_are_told() -> None:
    """Which of queries and keys is normalised by which rule, and how many channels are turned."""

    def of_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled(q, k / (k.square().mean(-1, keepdim=True) + 1e-6).sqrt()).softmax(-1) @ v

    entry = said(of_keys, semantics=conformance.Semantics(qk_norm="rms"))
    assert entry["name"] == "qk-norm-key-only" or entry["text"].startswith("queries are left")


@pytest.mark.nightly
def test_rows_past_a_length_are_told_from_the_last_one() -> None:
    """One query past a length is the last one as well: twice as many tell them apart."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        answer = scaled(q, k).softmax(-1) @ v
        return torch.cat([answer[:, :, :32], answer[:, :, 31:-1]], 2) if q.shape[2] > 32 else answer

    subject = Subject(core(attend, **BARE_FLOAT32), "float32")
    failing = problem(query_length=33, key_length=33, values="normal")
    (entry,) = Diagnostician(subject).explain(CLAUSES["numerics.golden"], failing)
    assert "queries from index 32 on" in entry["text"]


@pytest.mark.nightly
def test_keys_that_calls_pile_up_are_told() -> None:
    """A second call attends to the keys and values of the first one, too."""
    seen: list[tuple[Tensor, Tensor]] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        before = seen[-1] if seen and seen[-1][0].shape == k.shape else None
        seen.append((k, v))
        if before is not None and before[1].shape == v.shape:
            k, v = torch.cat([before[0], k], 2), torch.cat([before[1], v], 2)
        return scaled(q, k).softmax(-1) @ v

    (entry,) = diagnose(Subject(core(attend, **BARE_FLOAT32), "float32"))
    assert entry["name"] == "state: the keys and values of an earlier call before its own"


def test_tokens_of_an_earlier_call_are_told_of_self_attention() -> None:
    """One tensor is query, key and value: what is kept may be the keys and values alone."""

    class Keeping(EagerLayer):
        seen: ClassVar[list[tuple[Tensor, Tensor]]] = []

        def __call__(self, tokens: Tensor, **options: Any) -> Answer:  # type: ignore[override]
            """Attend tokens to themselves."""
            return super().__call__(tokens, tokens, tokens, **options)

        def heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Keys and values of the last call of the same sizes, before its own."""
            query, key, value = super().heads(query, key, value)
            before = self.seen[-1] if self.seen and self.seen[-1][0].shape == key.shape else None
            self.seen.append((key, value))
            if before is not None and before[1].shape == value.shape:
                key, value = torch.cat([before[0], key], 2), torch.cat([before[1], value], 2)
            return query, key, value

    bare = {**BARE_FLOAT32, "inputs": "self"}
    entry = state_entry(Subject(layer(Keeping, **bare), "float32"))
    assert entry is not None
    assert entry["name"] == "state: the keys and values of an earlier call before its own"
