"""Attention with biases by distance from a table that its caller gives, as T5's."""

from __future__ import annotations

import copy
import math
from typing import Any, Final

import torch
from torch import Tensor

import conformance
from conformance import Semantics

from .eager import Answer, Call, EagerCore

PROMISES: Final[dict[str, Any]] = {
    "masks": ["keep", "bias", "lengths"],
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "dtypes": ["float32", "float64"],
}
FEATURES: Final = ["scale", "gqa", "softcap", "window", "kv_cache", "gradients", "relative_table"]
T5: Final = Semantics(relative="t5", scale="none")
CLIPPED: Final = Semantics(relative="clipped")


class RelativeCore(EagerCore):
    """The entry of a table for the bucket of each distance joins the capped scores."""

    table: Tensor

    def __call__(  # type: ignore[override]  # every call gives a table
        self, query: Tensor, key: Tensor, value: Tensor, *, relative_table: Tensor, **options: Any
    ) -> Answer:
        """Attend as :class:`EagerCore`, with ``relative_table [N, H]``."""
        answering = copy.copy(self)
        answering.table = relative_table
        return EagerCore.__call__(answering, query, key, value, **options)

    def logits(self, call: Call, key: Tensor) -> Tensor:
        """The logits with the bias of each pair."""
        return super().logits(call, key) + self.of_pairs(self.buckets(self.ahead(call)))

    def of_pairs(self, buckets: Tensor) -> Tensor:
        """The entries ``[H, Lq, Lk]`` for buckets ``[Lq, Lk]``."""
        return self.table[buckets].permute(2, 0, 1)

    def buckets(self, ahead: Tensor) -> Tensor:
        """One bucket for each distance up to the largest."""
        most = len(self.table) // 2
        return ahead.clamp(-most, most) + most


class T5Core(RelativeCore):
    """Buckets of T5's encoder: half of them for each side; the scores are not scaled."""

    def scale(self, call: Call) -> float:
        """One, unless a call says otherwise."""
        return 1.0 if call.scale is None else call.scale

    def buckets(self, ahead: Tensor) -> Tensor:
        """Those of the side, nearer ones a distance each."""
        of_side = len(self.table) // 2
        return (ahead > 0) * of_side + self.of_side(ahead.abs(), of_side)

    def of_side(self, distance: Tensor, count: int) -> Tensor:
        """Buckets of distances, up to a count."""
        exact = count // 2
        growth = torch.log(distance.float() / exact) / math.log(128 / exact) * (count - exact)
        far = exact + growth.clamp_min(0.0).long()
        return torch.where(distance < exact, distance, far.clamp_max(count - 1))


class T5Decoder(T5Core):
    """Buckets of T5's decoder: all of them for the keys behind a query."""

    def buckets(self, ahead: Tensor) -> Tensor:
        """Those of keys behind; keys ahead stand at distance zero."""
        return self.of_side((-ahead).clamp_min(0), len(self.table))


relative_table = conformance.core(
    name="relative_table", **PROMISES, features=[*FEATURES, "grad_bias"], semantics=CLIPPED
)(RelativeCore())
t5_table = conformance.core(
    name="t5_table",
    **{**PROMISES, "causal": "top-left", "dtypes": ["float32", "bfloat16"]},
    features=FEATURES,
    semantics=T5,
)(T5Core(causal="top-left"))
t5_decoder_table = conformance.core(
    name="t5_decoder_table",
    **PROMISES,
    features=FEATURES,
    semantics=T5.replace(relative="t5-causal"),
)(T5Decoder())
