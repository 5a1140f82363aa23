"""Correct attentions that kernels of servers resemble, in steps; a mistake replaces a step."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ...eager import Answer, Call, EagerCore

# Kernels that only answer: nothing is promised about gradients.
SERVING: Final[dict[str, Any]] = {
    "masks": ["keep", "lengths"],
    "features": ["scale", "gqa", "kv_cache"],
    "without": ["gradients"],
}
WINDOWED: Final[dict[str, Any]] = {
    **SERVING,
    "features": [*SERVING["features"], "window"],
}


@dataclass(frozen=True, kw_only=True)
class Joined(Call):
    """A call whose cache has joined the new keys: the first ``past`` of them were cached."""

    past: int = 0
    sinks: Tensor | None = None


class Caching(EagerCore):
    """Remembers how many keys were cached, and takes sinks."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        sinks: Tensor | None = None,
        **options: Any,
    ) -> Answer:
        """Attend as :class:`EagerCore` does."""
        return self.attend(Joined(query=query, key=key, value=value, sinks=sinks, **options))

    def join_cache(self, call: Call) -> Joined:
        """The same call with the cached keys and values before the new ones."""
        past = 0 if call.past_key is None else call.past_key.shape[2]
        joined = super().join_cache(call)
        fields = {field.name: getattr(joined, field.name) for field in dataclasses.fields(joined)}
        return Joined(**{**fields, "past": past})


class Split(Caching):
    """Partial answers of several spans of keys, merged by their log-sum-exps.

    A sink is one more log-sum-exp, whose partial answer is zero.
    """

    tile = 32

    def attend(self, call: Call) -> Tensor:
        """All the steps, in order."""
        joined = self.join_cache(call)
        self.check(joined)
        num_heads = joined.query.shape[1]
        key, value = self.share(joined.key, num_heads), self.share(joined.value, num_heads)
        allowed = self.allowed(joined)
        logits = self.logits(joined, key)
        if allowed is not None:
            logits = self.mask(logits, allowed)
        return self.merge(joined, self.partials(joined, logits, value))

    def spans(self, call: Joined) -> list[slice]:
        """Which keys go together; at least one span, though it be empty."""
        ends = range(0, max(call.key_length, 1), self.tile)
        return [slice(start, start + self.tile) for start in ends]

    def partials(self, call: Joined, logits: Tensor, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The answer ``[B, H, Lq, Dv]`` and log-sum-exp ``[B, H, Lq, 1]`` of each span."""
        return [self.partial(logits[..., one], value[:, :, one]) for one in self.spans(call)]

    def partial(self, logits: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """One span by itself."""
        total = logits.logsumexp(dim=-1, keepdim=True)
        return (logits - total.masked_fill(total == -math.inf, 0.0)).exp() @ value, total

    def merge(self, call: Joined, partials: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The partial answers, each by its share."""
        shares = self.shares(call, torch.cat([total for _, total in partials], dim=-1))
        outputs = torch.stack([output for output, _ in partials], dim=-1)
        return (outputs * shares[..., None, :]).sum(dim=-1)

    def shares(self, call: Joined, totals: Tensor) -> Tensor:
        """What each span counts; rows without any key count nothing."""
        largest = totals.amax(dim=-1, keepdim=True)
        sinks = None if call.sinks is None else self.sink(call, call.sinks[:, None, None])
        if sinks is not None:
            largest = torch.maximum(largest, sinks)
        largest = largest.masked_fill(largest == -math.inf, 0.0)
        parts = (totals - largest).exp()
        whole = parts.sum(dim=-1, keepdim=True)
        if sinks is not None:
            whole = whole + self.times(totals) * (sinks - largest).exp()
        return parts / whole.masked_fill(whole == 0, 1.0)

    def sink(self, call: Joined, sinks: Tensor) -> Tensor:
        """The logit of the sink."""
        del call
        return sinks

    def times(self, totals: Tensor) -> Tensor | float:
        """How often the sink counts."""
        del totals
        return 1.0


def one_query(call: Call) -> bool:
    """Whether this is a step of decoding."""
    return call.query_length == 1


def past(call: Call) -> int:
    """How many of the keys were cached."""
    return call.past if isinstance(call, Joined) else 0


def grouped(call: Call) -> bool:
    """Whether query heads share key/value heads."""
    return call.key.shape[1] != call.query.shape[1]
