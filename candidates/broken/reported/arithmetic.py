"""Reported mistakes of arithmetic: what is multiplied by what, and in which dtype."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ...eager import Answer, Call, EagerCore
from .._kit import core
from ..half_precision import FusedCore
from ..precision import converted

MASKED: Final[dict[str, Any]] = {"masks": ["keep"], "features": ["scale", "gqa"]}
CAPPED: Final[dict[str, Any]] = {"masks": ["keep"], "features": ["scale", "gqa", "softcap"]}


@core("mask.golden", "numerics.golden", **CAPPED)
class CapTimesScores(EagerCore):
    """The hyperbolic tangent under a cap is multiplied by the scores instead of by the cap."""

    link = "https://github.com/Dao-AILab/flash-attention/pull/2402"

    def logits(self, call: Call, key: Tensor) -> Tensor:
        scores = self.scores(call, key)
        return scores if call.softcap is None else scores * torch.tanh(scores / call.softcap)


@core("numerics.large-logits", "mask.single-key", dtypes=["bfloat16"], scores="fused", **MASKED)
class HalfInsteadOfBfloat16(FusedCore):
    """Inputs in bfloat16 are cast to float16 for the kernel, which has another range."""

    link = "https://github.com/Tencent-Hunyuan/HunyuanDiT/pull/247"

    def attend(self, call: Call) -> Answer:
        inputs = {name: getattr(call, name).half() for name in ("query", "key", "value")}
        return converted(super().attend(call.replace(**inputs)), call.query.dtype)
