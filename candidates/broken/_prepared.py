"""A correct attention with positions, norms, sinks and modified scores, a method for each step."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Prepared:
    """Norm, rotation, scores, function, biases, softmax, weighted sum; a mistake replaces one.

    ``pairing``, ``base``, ``fraction``, ``norm`` and ``linear`` say what is done at all.
    """

    pairing = ""
    base = 10000.0
    fraction = 1.0
    norm = ""
    epsilon = 1e-6
    linear = False

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend ``query [B, H, Lq, D]`` to ``key [B, Hkv, Lk, D]`` and ``value``."""
        if key.shape[2] != value.shape[2] or query.shape[-1] != key.shape[-1]:
            msg = f"keys {list(key.shape)} fit neither queries nor values"
            raise ValueError(msg)
        here, there = self.places(query, key)
        query, key = self.prepare(query, key, here, there)
        value = self.value(value, there)
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        table = self.table(query, key, keep, causal=causal)
        factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
        logits = self.logits(query, key, factor, here, there)
        return self.weigh(logits, table, sinks, value)

    def places(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Where queries and keys stand: the last ones at one place."""
        length = key.shape[2]
        return torch.arange(length - query.shape[2], length), torch.arange(length)

    def table(self, query: Tensor, key: Tensor, keep: Tensor | None, *, causal: bool) -> Tensor:
        """Which key each query may attend."""
        admitted = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
        if causal:
            admitted = admitted.tril(key.shape[2] - query.shape[2])
        return admitted if keep is None else admitted & keep

    def prepare(
        self, query: Tensor, key: Tensor, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Normalised, then turned."""
        query, key = self.normalise(query), self.normalise(key)
        return self.turn(query, here), self.turn(key, there)

    def value(self, value: Tensor, there: Tensor) -> Tensor:
        """The values as they are."""
        del there
        return value

    def normalise(self, heads: Tensor) -> Tensor:
        """By the root of the mean square ("rms") or of the variance ("layer")."""
        if self.norm == "layer":
            heads = heads - heads.mean(-1, keepdim=True)
        if self.norm:
            return heads * (heads.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
        return heads

    def turn(self, heads: Tensor, place: Tensor) -> Tensor:
        """Each pair of channels by its angle."""
        if not self.pairing:
            return heads
        size = int(heads.shape[-1] * self.fraction) // 2 * 2
        angles = self.angles(place, size)
        cosine, sine = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        turning, rest = heads[..., :size], heads[..., size:]
        if self.pairing == "halves":
            one, two = turning.chunk(2, dim=-1)
            turned = torch.cat((one * cosine - two * sine, one * sine + two * cosine), dim=-1)
        else:
            one, two = turning[..., 0::2], turning[..., 1::2]
            both = (one * cosine - two * sine, one * sine + two * cosine)
            turned = torch.stack(both, dim=-1).flatten(-2)
        return torch.cat((turned, rest), dim=-1)

    def angles(self, place: Tensor, size: int) -> Tensor:
        """Radians ``[L, R/2]``."""
        frequencies = self.base ** -(torch.arange(0, size, 2).double() / max(size, 1))
        return place.double()[:, None] * frequencies

    def logits(
        self, query: Tensor, key: Tensor, factor: float, here: Tensor, there: Tensor
    ) -> Tensor:
        """Scaled, modified, biased scores."""
        scores = self.modify(query @ key.mT * factor)
        if self.linear:
            scores = scores + self.bias(query.shape[1], here, there).to(scores.dtype)
        return scores

    def modify(self, scores: Tensor) -> Tensor:
        """What the user's function makes of the scores."""
        return scores

    def bias(self, heads: int, here: Tensor, there: Tensor) -> Tensor:
        """Minus slope times distance."""
        distance = (here[:, None] - there).abs().double()
        return -self.slopes(heads)[:, None, None] * distance

    def slopes(self, heads: int) -> Tensor:
        """Those of a power of two, then every other one of its double."""
        power = 2 ** int(math.log2(heads))
        finer = self.geometric(2 * power)[0::2]
        return torch.cat([self.geometric(power), finer])[:heads]

    def geometric(self, count: int) -> Tensor:
        """The slopes of a power of two."""
        return 2.0 ** (-8.0 * torch.arange(1, count + 1).double() / count)

    def weigh(self, logits: Tensor, table: Tensor, sinks: Tensor | None, value: Tensor) -> Tensor:
        """The softmax over the keys and the sink, and the weighted sum."""
        logits = logits.masked_fill(~table, -torch.inf)
        largest = logits.amax(-1, keepdim=True)
        if sinks is not None:
            largest = torch.maximum(largest, sinks[:, None, None])
        largest = torch.where(torch.isneginf(largest), 0.0, largest)
        weights = (logits - largest).exp()
        total = weights.sum(-1, keepdim=True)
        if sinks is not None:
            total = total + (sinks[:, None, None] - largest).exp()
        answer: Tensor = weights @ value / torch.where(total == 0, 1.0, total)
        return answer
