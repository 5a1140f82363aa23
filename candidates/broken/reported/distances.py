"""Reported mistakes in linear biases by distance: caches, half precision, slopes."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from conformance import Semantics

from ...eager import Call
from .._kit import core
from .decoding import Decoder

LINEAR: Final[dict[str, Any]] = {
    "masks": ["keep"],
    "semantics": Semantics(alibi=True),
    "features": ["scale", "gqa", "kv_cache"],
}


class Linear(Decoder):
    """A core with linear biases; right as it stands, in caches too."""

    def logits(self, call: Call, key: Tensor) -> Tensor:
        """The scores less slope times distance."""
        scores = super().logits(call, key)
        linear = self.slopes(call)[:, None, None] * self.distances(call).to(torch.float64)
        return scores - linear.to(scores.dtype)

    def distances(self, call: Call) -> Tensor:
        """How far each key is from each query ``[Lq, Lk]``."""
        return self.ahead(call).abs()

    def slopes(self, call: Call) -> Tensor:
        """One for each head, in float64."""
        heads = call.query.shape[1]
        power = 2 ** int(math.log2(heads))
        finer = self.geometric(2 * power)[0::2]
        return torch.cat([self.geometric(power), finer])[:heads]

    def geometric(self, count: int) -> Tensor:
        """The slopes of a power of two."""
        return 2.0 ** (-8.0 * torch.arange(1, count + 1, dtype=torch.float64) / count)


@core("bias.alibi", "numerics.golden", **LINEAR)
class BiasRowsFromTheStart(Linear):
    """With a cache the first rows of the table of biases are taken, not the last ones."""

    link = "https://github.com/TransformerLensOrg/TransformerLens/pull/777"

    def distances(self, call: Call) -> Tensor:
        if not self.past(call):
            return super().distances(call)
        keys, queries = torch.arange(call.key_length), torch.arange(call.query_length)
        return (keys - queries[:, None]).abs()


@core("cache.golden", "cache.decode-equals-full", **LINEAR)
class BiasOfLoneQueryIsZero(Linear):
    """In a step with a cache the bias is built for the new tokens, and for one that is zero."""

    link = "https://github.com/keras-team/keras-hub/issues/2861"

    def distances(self, call: Call) -> Tensor:
        distances = super().distances(call)
        step = self.past(call) > 0 and call.query_length == 1
        return torch.zeros_like(distances) if step else distances


@core("bias.alibi", "mask.golden", **{**LINEAR, "dtypes": ["float32", "float16"]})
class SlopesMisplacedInHalf(Linear):
    """The slopes beyond a power of two are written as far on as numbers of four bytes would be.

    In float16 they land behind the table, and the last heads have none.
    """

    link = "https://github.com/ggml-org/llama.cpp/pull/20031"

    def slopes(self, call: Call) -> Tensor:
        slopes = super().slopes(call)
        if call.query.dtype == torch.float16:
            slopes[2 ** int(math.log2(len(slopes))) :] = 0.0
        return slopes


@core("bias.alibi", "mask.golden", **LINEAR)
class DistanceFavoursFarKeys(Linear):
    """The distance is counted from the key: what should be taken off is added."""

    link = "https://github.com/meta-pytorch/attention-gym/pull/86"

    def distances(self, call: Call) -> Tensor:
        return -super().distances(call)
