"""Attention with norm weights, temperatures and slopes that its caller gives, or a null key."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

import conformance
from conformance import Semantics

from .eager import Answer, Call, EagerCore, EagerLayer

RMS: Final = Semantics(qk_norm="rms")
ALL_HEADS: Final = Semantics(qk_norm="rms", qk_norm_over="all-heads")
PROMISES: Final[dict[str, Any]] = {
    "masks": ["keep", "bias", "lengths"],
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "dtypes": ["float32", "float64"],
}
PLAIN: Final = ["scale", "gqa", "softcap", "window", "kv_cache", "gradients"]
SINKS: Final = [*PLAIN, "sinks"]
EPSILON: Final = 1e-6


@dataclass(frozen=True, kw_only=True)
class LearnedCall(Call):
    """What one call was given, its learned arguments among it."""

    query_norm_weight: Tensor | None = None
    key_norm_weight: Tensor | None = None
    temperature: Tensor | None = None
    alibi_slopes: Tensor | None = None
    sinks: Tensor | None = None


class LearnedCore(EagerCore):
    """Attention whose steps with learned arguments can be replaced; a copy answers each call."""

    sinks: Tensor | None = None

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_norm_weight: Tensor | None = None,
        key_norm_weight: Tensor | None = None,
        temperature: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        sinks: Tensor | None = None,
        **options: Any,
    ) -> Answer:
        """Attend as :class:`EagerCore` does, with what the caller has learned."""
        call = LearnedCall(
            query=query,
            key=key,
            value=value,
            query_norm_weight=query_norm_weight,
            key_norm_weight=key_norm_weight,
            temperature=temperature,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            **options,
        )
        return copy.copy(self).attend(call)

    def attend(self, call: Call) -> Answer:
        """Normalise the queries and all keys, then attend."""
        call = self.join_cache(call)
        self.check(call)
        if isinstance(call, LearnedCall):
            self.sinks = call.sinks
            call = call.replace(query=self.queries(call), key=self.keys(call))
        return super().attend(call)

    def queries(self, call: LearnedCall) -> Tensor:
        """The queries, normalised and weighed."""
        return self.prepared(call.query, call.query_norm_weight)

    def keys(self, call: LearnedCall) -> Tensor:
        """The keys, normalised and weighed."""
        return self.prepared(call.key, call.key_norm_weight)

    def prepared(self, heads: Tensor, weight: Tensor | None) -> Tensor:
        """Heads ``[B, H, L, D]`` normalised and weighed, where there is a weight."""
        return heads if weight is None else self.normalised(heads) * weight

    def normalised(self, heads: Tensor) -> Tensor:
        """Each head over the root of its mean square."""
        return heads / (heads.square().mean(dim=-1, keepdim=True) + EPSILON).sqrt()

    def scores(self, call: Call, key: Tensor) -> Tensor:
        """The scaled products times the temperature of their head."""
        scores = super().scores(call, key)
        if isinstance(call, LearnedCall) and call.temperature is not None:
            return self.tempered(scores, call.temperature)
        return scores

    def tempered(self, scores: Tensor, temperature: Tensor) -> Tensor:
        """Scores ``[B, H, Lq, Lk]`` times temperatures ``[H]``."""
        return scores * temperature[:, None, None]

    def logits(self, call: Call, key: Tensor) -> Tensor:
        """The logits less the distances, as steep as the slopes say."""
        logits = super().logits(call, key)
        if isinstance(call, LearnedCall) and call.alibi_slopes is not None:
            return logits - self.slopes(call.alibi_slopes) * self.distances(call).to(logits.dtype)
        return logits

    def slopes(self, given: Tensor) -> Tensor:
        """Slopes ``[H]`` or ``[B, H]`` as they meet scores."""
        return given[..., None, None]

    def distances(self, call: Call) -> Tensor:
        """How far query and key are apart."""
        return self.ahead(call).abs()

    def softmax(self, logits: Tensor) -> Tensor:
        """Weights over the keys, beside the sink of each head."""
        if self.sinks is None:
            return super().softmax(logits)
        beside = self.sinks[:, None, None].expand(*logits.shape[:-1], 1)
        return torch.cat([logits, beside], dim=-1).softmax(dim=-1)[..., :-1]


class OverAllHeads(LearnedCore):
    """All heads of a token are normalised together."""

    def prepared(self, heads: Tensor, weight: Tensor | None) -> Tensor:
        """Heads as they come out of one norm over their channels side by side."""
        joined = heads.transpose(1, 2).flatten(2)
        joined = joined * torch.rsqrt(joined.square().mean(dim=-1, keepdim=True) + EPSILON)
        joined = joined if weight is None else joined * weight
        parted: Tensor = joined.unflatten(-1, (heads.shape[1], -1))
        return parted.transpose(1, 2)


class QueriesTempered(LearnedCore):
    """The temperature multiplies the queries, before their products."""

    def queries(self, call: LearnedCall) -> Tensor:
        """Queries times the temperature of their head."""
        heads = super().queries(call)
        return heads if call.temperature is None else heads * call.temperature[:, None, None]

    def tempered(self, scores: Tensor, temperature: Tensor) -> Tensor:
        """Scores, which have their temperature already."""
        del temperature
        return scores


class LayerNormalised(LearnedCore):
    """The norm takes the mean off first."""

    def normalised(self, heads: Tensor) -> Tensor:
        """Each head by torch's own layer norm."""
        return torch.nn.functional.layer_norm(heads, heads.shape[-1:], eps=EPSILON)


class TurnedBehindTheWeight(LearnedCore):
    """Halves of the weighed channels are turned by their positions."""

    def attend(self, call: Call) -> Answer:
        """Remember how many keys come before the first query."""
        past = 0 if call.past_key is None else call.past_key.shape[2]
        self.first = past + call.key.shape[2] - call.query.shape[2]
        return super().attend(call)

    def queries(self, call: LearnedCall) -> Tensor:
        """Weighed queries, turned."""
        return self.turned(super().queries(call), self.first)

    def keys(self, call: LearnedCall) -> Tensor:
        """Weighed keys, turned."""
        return self.turned(super().keys(call), 0)

    def turned(self, heads: Tensor, first: int) -> Tensor:
        """Heads whose first token stands at a place."""
        half = heads.shape[-1] // 2
        places = torch.arange(first, first + heads.shape[2], dtype=torch.float64)
        angles = places[:, None] * 10000.0 ** -(torch.arange(half).double() / max(half, 1))
        cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        one, two, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
        return torch.cat((one * cos - two * sin, one * sin + two * cos, rest), dim=-1)


class LearnedLayer(EagerLayer):
    """A layer whose heads meet learned arguments."""

    def __init__(self, geometry: Any, weights: Any) -> None:
        super().__init__(geometry, weights)
        self.core = LearnedCore()


class LayerOverAllHeads(EagerLayer):
    """A layer whose projected tokens are normalised before they are cut, as OLMo 2's are."""

    def __init__(self, geometry: Any, weights: Any) -> None:
        super().__init__(geometry, weights)
        self.core = OverAllHeads()


def _shown(**promises: Any) -> dict[str, Any]:
    return {**PROMISES, **promises}


norm_weights = conformance.core(
    name="norm_weights", **_shown(features=[*PLAIN, "norm_weight"], semantics=RMS)
)(LearnedCore())
norm_weights_of_all_heads = conformance.core(
    name="norm_weights_of_all_heads",
    **_shown(features=[*SINKS, "norm_weight"], semantics=ALL_HEADS),
)(OverAllHeads())
norm_over_all_heads = conformance.core(
    name="norm_over_all_heads", **_shown(features=PLAIN, semantics=ALL_HEADS)
)(OverAllHeads())
temperatures = conformance.core(name="temperatures", **_shown(features=[*SINKS, "temperature"]))(
    LearnedCore()
)
tempered_queries = conformance.core(
    name="tempered_queries",
    **_shown(features=[*PLAIN, "temperature"], causal="top-left", dtypes=["float32", "bfloat16"]),
)(QueriesTempered(causal="top-left"))
given_slopes = conformance.core(name="given_slopes", **_shown(features=[*SINKS, "alibi_slopes"]))(
    LearnedCore()
)
all_learned = conformance.core(
    name="all_learned",
    **_shown(
        features=[*SINKS, "norm_weight", "temperature", "alibi_slopes"],
        semantics=Semantics(qk_norm="layer"),
        keywords={"query_norm_weight": "q_scale", "key_norm_weight": "k_scale"},
    ),
)(
    lambda *heads, q_scale=None, k_scale=None, **more: LayerNormalised()(
        *heads, query_norm_weight=q_scale, key_norm_weight=k_scale, **more
    )
)
turned_norm_weights = conformance.core(
    name="turned_norm_weights",
    **_shown(
        features=[*PLAIN, "norm_weight", "temperature"],
        semantics=Semantics(qk_norm="rms", rotary="halves"),
        dtypes=["float32", "float16"],
    ),
)(TurnedBehindTheWeight())
learned_layer = conformance.layer(
    name="learned_layer",
    **_shown(features=[*PLAIN, "norm_weight", "temperature", "alibi_slopes"], semantics=RMS),
)(LearnedLayer)
layer_over_all_heads = conformance.layer(
    name="layer_over_all_heads",
    **_shown(features=[*PLAIN, "norm_weight"], semantics=ALL_HEADS),
)(LayerOverAllHeads)


class NullKey(EagerCore):
    """A key of zeros, whose value is zero, joins the softmax: a one joins its sum."""

    def softmax(self, logits: Tensor) -> Tensor:
        """Weights over the keys, beside that of the null key."""
        most = logits.amax(dim=-1, keepdim=True).clamp_min(0.0)
        exponentials = (logits - most).exp()
        return exponentials / (exponentials.sum(dim=-1, keepdim=True) + (-most).exp())


null_key = conformance.core(
    name="null_key",
    **_shown(features=[*PLAIN, "weights"], semantics=Semantics(null_key=True)),
)(NullKey())
