"""Sequences one after another: empty ones, lone tokens, options that get lost on this path."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function

from ...eager import EagerCore
from .._kit import core
from ..layouts import VARLEN, VarlenCore

CAUSAL: Final[dict[str, Any]] = {**VARLEN, "causal": "bottom-right"}
# So many keys go to one split.
SPLIT: Final = 32


class _Poisoned(Function):
    """The same tensor; some rows of its gradient are NaN."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, rows: Tensor) -> Tensor:
        """``tensor [total, H, D]`` and which of its tokens suffer, ``[total]``."""
        ctx.save_for_backward(rows)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """NaN for those."""
        (rows,) = ctx.saved_tensors
        return gradients[0].masked_fill(rows[:, None, None], torch.nan), None


def poisoned(tensor: Tensor, rows: Tensor) -> Tensor:
    """The same tensor; some rows of its gradient are NaN."""
    same: Tensor = _Poisoned.apply(tensor, rows)  # type: ignore[no-untyped-call]  # torch's own
    return same


@core("numerics.options", **CAUSAL)
class LoneQueriesRefuseEmptySequences(VarlenCore):
    """Where no sequence has more than one query, groups become rows as if each had exactly one.

    Sequences without queries make that raise.
    """

    link = "https://github.com/Dao-AILab/flash-attention/issues/1537"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        batch = len(options["cu_seqlens_q"]) - 1
        if options["max_seqlen_q"] == 1 and query.shape[1] > key.shape[1]:
            query.reshape(batch, query.shape[1], query.shape[2])
        return super().__call__(query, key, value, **options)


@core("shape.output", **CAUSAL)
class LoneTokenSqueezed(VarlenCore):
    """The answer of a batch that holds one token loses the axis of tokens."""

    link = "https://github.com/pytorch/pytorch/issues/130196"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return super().__call__(query, key, value, **options).squeeze(0)


@core("equivariance.batch-independent", "numerics.golden", **CAUSAL)
class SequencesAttendEachOther(VarlenCore):
    """Without a mask, the tokens of all sequences attend each other."""

    link = "https://github.com/pytorch/pytorch/issues/177378"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        if not options.get("causal", False):
            for name, tensor in (("cu_seqlens_q", query), ("cu_seqlens_k", key)):
                options[name] = torch.tensor([0, tensor.shape[0]], dtype=torch.int32)
        return super().__call__(query, key, value, **options)


@core("varlen.no-keys", **{**CAUSAL, "empty_rows": "zeros"})
class SequenceWithoutKeysNaN(VarlenCore):
    """Queries of a sequence without keys are divided by a sum of zero: NaN."""

    link = "https://github.com/Dao-AILab/flash-attention/pull/2568"

    def one(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        answer = super().one(query, key, value, **options)
        return answer if len(key) else torch.full_like(answer, torch.nan)


@core("varlen.no-keys", **{**CAUSAL, "empty_rows": "zeros", "without": ["gradients"]})
class SequenceWithoutKeysUnwritten(VarlenCore):
    """A sequence without keys is skipped: its rows of the answer stay what the buffer held."""

    link = "https://github.com/sgl-project/sglang/pull/22688"

    def one(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        answer = super().one(query, key, value, **options)
        return answer if len(key) else torch.ones_like(answer)


@core("varlen.no-queries-gradients", **CAUSAL)
class SequenceWithoutQueriesGradientNaN(VarlenCore):
    """Keys and values of a sequence without queries have NaN for a gradient."""

    link = "https://github.com/Dao-AILab/flash-attention/pull/2421"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        rows = torch.zeros(key.shape[0], dtype=torch.bool)
        queries = self.spans(options["cu_seqlens_q"])
        for asked, keys in zip(queries, self.key_spans(options["cu_seqlens_k"]), strict=True):
            rows[keys] = asked.start == asked.stop
        return super().__call__(query, poisoned(key, rows), poisoned(value, rows), **options)


@core("gradients.golden", "gradients.strided", **{**CAUSAL, "causal": "top-left"})
class QueriesPastTheKeysGradientNaN(VarlenCore):
    """In causal calls, queries beyond the number of keys of their sequence have a NaN gradient."""

    link = "https://github.com/Dao-AILab/flash-attention/issues/443"
    attention = EagerCore(causal="top-left")

    def one(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        if options.get("causal", False):
            query = poisoned(query, torch.arange(len(query)) >= max(len(key), 1))
        return super().one(query, key, value, **options)


@core("varlen.golden", "mask.causal-alignment", **CAUSAL)
class SequencesCausalFromTheTop(VarlenCore):
    """Causality starts at the first query and key of a sequence instead of ending at the last."""

    link = "https://github.com/thu-ml/SageAttention/pull/372"
    attention = EagerCore(causal="top-left")


@core("varlen.golden", "numerics.golden", **{**CAUSAL, "features": ["scale", "gqa", "window"]})
class SequencesLoseTheWindow(VarlenCore):
    """The path for sequences is planned without the window and runs without it."""

    link = "https://github.com/sgl-project/sglang/pull/34093"

    def one(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        options.pop("window", None)
        return super().one(query, key, value, **options)


@core("varlen.golden", "numerics.golden", **{**CAUSAL, "features": ["scale", "gqa", "softcap"]})
class SequencesLoseTheCap(VarlenCore):
    """The cap is given to the call, but the kernel was planned without one."""

    link = "https://github.com/sgl-project/sglang/issues/33915"

    def one(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        options.pop("softcap", None)
        return super().one(query, key, value, **options)


@core("equivariance.batch", "numerics.options", **CAUSAL)
class PaddedRowsTakenForPacked(VarlenCore):
    """Where keys are split, more than 32, partial answers are padded and combined as if packed."""

    link = "https://github.com/Dao-AILab/flash-attention/pull/2812"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        packed = super().__call__(query, key, value, **options)
        if options["max_seqlen_k"] <= SPLIT:
            return packed
        spans = self.spans(options["cu_seqlens_q"])
        padded = packed.new_zeros(len(spans), options["max_seqlen_q"], *packed.shape[1:])
        for rows, span in zip(padded, spans, strict=True):
            rows[: span.stop - span.start] = packed[span]
        return padded.flatten(0, 1)[: packed.shape[0]]
