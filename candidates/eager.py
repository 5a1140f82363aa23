"""Attention written out step by step, in the dtype of its inputs: a core, a layer and a module.

Each step is a method: a variation, and each mistake under ``broken/``, replaces one of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

import conformance

Answer = Tensor | tuple[Tensor, Tensor]

PROMISES: Final[dict[str, Any]] = {
    "masks": ["keep", "drop", "keep_int", "bias", "lengths"],
    "mask_shapes": ["BHQK", "B1QK", "1HQK", "B11K", "11QK", "B", "BQ"],
    "empty_rows": "zeros",
    "features": ["scale", "gqa", "softcap", "window", "weights", "kv_cache"],
    "dtypes": ["float32", "float64"],
}


@dataclass(frozen=True, kw_only=True)
class Call:
    """What one call of a core was given."""

    query: Tensor
    key: Tensor
    value: Tensor
    keep: Tensor | None = None
    drop: Tensor | None = None
    keep_int: Tensor | None = None
    bias: Tensor | None = None
    lengths: Tensor | None = None
    causal: bool = False
    scale: float | None = None
    softcap: float | None = None
    window: tuple[int, int] | None = None
    dropout: float = 0.0
    return_weights: bool = False
    past_key: Tensor | None = None
    past_value: Tensor | None = None

    def replace(self, **changes: Any) -> Call:
        """The same call with some arguments changed."""
        return dataclasses.replace(self, **changes)

    @property
    def query_length(self) -> int:
        """The number of queries."""
        return self.query.shape[2]

    @property
    def key_length(self) -> int:
        """The number of keys; those of the cache count once they have joined the others."""
        return self.key.shape[2]


class EagerCore:
    """Scores, mask, softmax, weighted sum. A row without any key is zeros."""

    def __init__(self, *, causal: str = "bottom-right") -> None:
        self.alignment = causal

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        drop: Tensor | None = None,
        keep_int: Tensor | None = None,
        bias: Tensor | None = None,
        lengths: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
        window: tuple[int, int] | None = None,
        dropout: float = 0.0,
        return_weights: bool = False,
        past_key: Tensor | None = None,
        past_value: Tensor | None = None,
    ) -> Answer:
        """Attend ``query [B, H, Lq, D]`` to ``key [B, Hkv, Lk, D]`` and ``value [B, Hkv, Lk, Dv]``.

        Returns ``[B, H, Lq, Dv]``, with ``return_weights`` also the weights ``[B, H, Lq, Lk]``
        before dropout. The cached ``past_key [B, Hkv, P, D]`` and ``past_value [B, Hkv, P, Dv]``
        come before the others; masks are for all of them. Raises ValueError for shapes that do not
        belong together.
        """
        return self.attend(
            Call(
                query=query,
                key=key,
                value=value,
                keep=keep,
                drop=drop,
                keep_int=keep_int,
                bias=bias,
                lengths=lengths,
                causal=causal,
                scale=scale,
                softcap=softcap,
                window=window,
                dropout=dropout,
                return_weights=return_weights,
                past_key=past_key,
                past_value=past_value,
            )
        )

    def attend(self, call: Call) -> Answer:
        """All the steps, in order."""
        call = self.join_cache(call)
        self.check(call)
        num_heads = call.query.shape[1]
        key, value = self.share(call.key, num_heads), self.share(call.value, num_heads)
        allowed = self.allowed(call)
        logits = self.logits(call, key)
        weights = self.weights(logits, allowed)
        output = self.mix_allowed(self.drop_out(weights, call.dropout), value, allowed)
        return (output, weights) if call.return_weights else output

    def join_cache(self, call: Call) -> Call:
        """The same call with the cached keys and values before the new ones."""
        if call.past_key is None or call.past_value is None:
            return call
        key = torch.cat([call.past_key, call.key], dim=2)
        value = torch.cat([call.past_value, call.value], dim=2)
        return call.replace(key=key, value=value, past_key=None, past_value=None)

    def check(self, call: Call) -> None:
        """Refuse shapes that do not belong together."""
        if call.query.shape[-1] != call.key.shape[-1]:
            msg = f"query has head size {call.query.shape[-1]} but key has {call.key.shape[-1]}"
            raise ValueError(msg)
        if call.value.shape[2] != call.key_length:
            msg = f"key has {call.key_length} tokens but value has {call.value.shape[2]}"
            raise ValueError(msg)
        for name in ("keep", "drop", "keep_int", "bias"):
            mask = getattr(call, name)
            if mask is not None and mask.shape[-1] not in (1, call.key_length):
                msg = f"{name} is for {mask.shape[-1]} keys but there are {call.key_length}"
                raise ValueError(msg)

    def share(self, heads: Tensor, num_heads: int) -> Tensor:
        """Repeat key/value heads so that each query head has its own."""
        return heads.repeat_interleave(num_heads // heads.shape[1], dim=1)

    def scale(self, call: Call) -> float:
        """What the dot products are multiplied by."""
        return 1 / math.sqrt(call.query.shape[-1]) if call.scale is None else call.scale

    def scores(self, call: Call, key: Tensor) -> Tensor:
        """The scaled dot products ``[B, H, Lq, Lk]``."""
        return (call.query @ key.transpose(-1, -2)) * self.scale(call)

    def logits(self, call: Call, key: Tensor) -> Tensor:
        """The scores, capped where asked for, plus the bias."""
        scores = self.scores(call, key)
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        return scores if call.bias is None else self.add_bias(scores, call.bias)

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        """The scores plus the additive mask."""
        return scores + bias

    def allowed(self, call: Call) -> Tensor | None:
        """Which keys each query may attend, or None when nothing is said: it may attend all."""
        tables = list(self.tables(call))
        return functools.reduce(operator.and_, tables) if tables else None

    def tables(self, call: Call) -> Iterator[Tensor]:
        """Each restriction as a boolean table that broadcasts to ``[B, H, Lq, Lk]``."""
        if call.keep is not None:
            yield call.keep
        if call.drop is not None:
            yield ~call.drop
        if call.keep_int is not None:
            yield call.keep_int != 0
        if call.bias is not None:
            yield call.bias != -math.inf
        if call.lengths is not None:
            yield self.within_lengths(call, call.lengths)
        if call.causal:
            yield self.ahead(call) <= 0
        if call.window is not None:
            yield self.within_window(call, call.window)

    def within_lengths(self, call: Call, lengths: Tensor) -> Tensor:
        """The keys before each length; lengths are ``[B]`` or ``[B, Lq]``."""
        keys = torch.arange(call.key_length, device=lengths.device)
        return keys < lengths.reshape(lengths.shape[0], 1, -1, 1)

    def within_window(self, call: Call, window: tuple[int, int]) -> Tensor:
        """At most so many keys before and after the query's own; -1 is no limit."""
        left, right = window
        ahead = self.ahead(call)
        far = torch.zeros_like(ahead, dtype=torch.bool)
        if left >= 0:
            far = far | (ahead < -left)
        if right >= 0:
            far = far | (ahead > right)
        return ~far

    def ahead(self, call: Call) -> Tensor:
        """How far each key lies ahead of each query: ``[Lq, Lk]``, 0 is the query's own key."""
        shift = call.key_length - call.query_length if self.alignment == "bottom-right" else 0
        queries = torch.arange(call.query_length, device=call.query.device) + shift
        keys = torch.arange(call.key_length, device=call.query.device)
        return keys[None, :] - queries[:, None]

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        """The softmax of the masked logits; keys that are not allowed weigh exactly nothing."""
        if allowed is None:
            return self.softmax(logits)
        # A row without any key is 0 / 0 after the softmax: filling again makes it zeros.
        return self.softmax(self.mask(logits, allowed)).masked_fill(~allowed, 0.0)

    def mask(self, logits: Tensor, allowed: Tensor) -> Tensor:
        """The logits with those of the other keys at minus infinity."""
        return logits.masked_fill(~allowed, -math.inf)

    def softmax(self, logits: Tensor) -> Tensor:
        """Weights over the keys."""
        return torch.softmax(logits, dim=-1)

    def drop_out(self, weights: Tensor, rate: float) -> Tensor:
        """Drop each weight with some probability and enlarge the rest to make up for it."""
        return functional.dropout(weights, rate, training=True) if rate else weights

    def mix_allowed(self, weights: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
        """The weighted sum, but a NaN reaches only rows that may attend it: 0 * NaN is NaN."""
        output = self.mix(weights, value)
        broken = ~value.isfinite()
        if allowed is None or not bool(broken.any()):
            return output
        attends_broken = (allowed.to(value.dtype) @ broken.to(value.dtype)) > 0
        return torch.where(
            attends_broken, output, self.mix(weights, value.masked_fill(broken, 0.0))
        )

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        """The weighted sum of the values."""
        return weights @ value


class EagerLayer:
    """Projections, heads, a core, output projection, from the weights of a problem.

    ``weights`` are ``(out, in)`` matrices ``q, k, v, o`` (``o`` may be None) and their biases.
    """

    core: EagerCore = EagerCore()

    def __init__(self, geometry: conformance.Geometry, weights: Any) -> None:
        self.num_heads = geometry.num_heads
        self.num_kv_heads = geometry.num_kv_heads
        self.weights = weights

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        """Attend ``query [B, Lq, Eq]`` to ``key [B, Lk, Ek]`` and ``value [B, Lk, Ev]``.

        Returns ``[B, Lq, Eo]``; the options are those of :class:`EagerCore`.
        """
        answer = self.core(*self.heads(query, key, value), **options)
        if isinstance(answer, tuple):
            return self.project_output(self.merge(answer[0])), answer[1]
        return self.project_output(self.merge(answer))

    def heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The projected inputs, cut into heads."""
        return (
            self.split(self.project(query, "q"), self.num_heads),
            self.split(self.project(key, "k"), self.num_kv_heads),
            self.split(self.project(value, "v"), self.num_kv_heads),
        )

    def project(self, tokens: Tensor, name: str) -> Tensor:
        """One of the projections ``q``, ``k``, ``v``, ``o``."""
        matrix, bias = getattr(self.weights, name), getattr(self.weights, f"{name}_bias")
        projected: Tensor = functional.linear(tokens, matrix, bias)
        return projected

    def split(self, tokens: Tensor, num_heads: int) -> Tensor:
        """Cut ``[B, L, H*D]`` into ``[B, H, L, D]``."""
        batch, length, width = tokens.shape
        return tokens.reshape(batch, length, num_heads, width // num_heads).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        """Put ``[B, H, L, D]`` side by side: ``[B, L, H*D]``."""
        return heads.transpose(1, 2).flatten(2)

    def project_output(self, merged: Tensor) -> Tensor:
        """The output projection, where there is one."""
        return merged if self.weights.o is None else self.project(merged, "o")


class EagerModule(nn.Module):
    """The layer as a module with parameters of its own, and with dropout in training."""

    layer: type[EagerLayer] = EagerLayer
    rate = 0.1

    def __init__(self, geometry: conformance.Geometry, weights: Any) -> None:
        super().__init__()
        self.geometry = geometry
        for name in ("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "o_bias"):
            given = getattr(weights, name)
            copy = None if given is None else nn.Parameter(given.detach().clone())
            self.register_parameter(name, copy)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        """Attend as :class:`EagerLayer` does."""
        if self.training:
            options["dropout"] = self.rate
        return self.layer(self.geometry, self)(query, key, value, **options)


eager_core = conformance.core(
    name="eager_core",
    causal="bottom-right",
    **{**PROMISES, "features": [*PROMISES["features"], "dropout"]},
)(EagerCore())

eager_core_top_left = conformance.core(name="eager_core_top_left", causal="top-left", **PROMISES)(
    EagerCore(causal="top-left")
)

eager_layer = conformance.layer(name="eager_layer", causal="bottom-right", **PROMISES)(EagerLayer)

eager_module = conformance.layer(name="eager_module", causal="bottom-right", **PROMISES)(
    EagerModule
)
