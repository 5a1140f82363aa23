"""Kinds of mistakes are stated, each with its condition and a way to mend it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from examples import BARE_FLOAT32, core, layer
from torch import Tensor
from torch.nn.functional import gelu, softplus

import conformance
from candidates.eager import Answer, EagerLayer
from conformance._golden import golden
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
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


def test_an_activation_of_the_answer_is_told() -> None:
    """A function of each element of the answer."""
    entry = said(lambda q, k, v: gelu(scaled(q, k).softmax(-1) @ v))
    assert entry["name"] == "outputs of the heads: put through GELU"


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
