"""Kernels for few queries, and groups of heads that are packed into their rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from ...eager import Answer, Call, EagerCore
from .._kit import core
from ._steps import SERVING, grouped, one_query

TORCH: Final[dict[str, Any]] = {
    "masks": ["keep", "bias"],
    "causal": "top-left",
    "features": ["scale", "gqa"],
    "without": ["gradients"],
}
GROUPED: Final[dict[str, Any]] = {"masks": ["keep", "bias"], "features": ["scale", "gqa"]}


class TopLeft(EagerCore):
    """Causality starts at the first query and the first key."""

    def __init__(self) -> None:
        super().__init__(causal="top-left")


@core(
    "numerics.golden", "mask.all-keep", geometry={"head_size": 64, "value_head_size": 64}, **TORCH
)
class FewQueriesReadPastTheKeys(TopLeft):
    """The kernel for up to eight queries reads keys in blocks of 32, beyond the last one, too."""

    link = "https://github.com/pytorch/pytorch/pull/169222"

    def attend(self, call: Call) -> Answer:
        self.check(call)
        few = call.query_length <= min(8, call.key_length)
        if few and not call.causal and call.keep is None and call.bias is None:
            beyond = (0, 0, 0, -call.key_length % 32)
            key, value = functional.pad(call.key, beyond), functional.pad(call.value, beyond)
            call = call.replace(key=key, value=value)
        return super().attend(call)


@core("mask.causal-alignment", "groups.golden", **TORCH)
class OneQueryCausalByTile(TopLeft):
    """Heads of one query become rows of a kernel that bounds causal keys by its tile of 64."""

    link = "https://github.com/pytorch/pytorch/pull/192138"

    def tables(self, call: Call) -> Iterator[Tensor]:
        if not call.causal or not one_query(call):
            yield from super().tables(call)
            return
        yield from super().tables(call.replace(causal=False))
        yield torch.arange(call.key_length) < 64  # noqa: PLR2004 (the tile)


@core("mask.per-head", "mask.golden", **{**TORCH, "causal": "bottom-right"})
class OneQueryGroupsMisread(EagerCore):
    """For one query, the heads of a group become rows in the sizes, but not in the tensors.

    The first heads meet each a key/value head of its own; the others are never written.
    """

    link = "https://github.com/pytorch/pytorch/pull/186434"

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        if not grouped(call) or not one_query(call):
            return answer
        kv_heads = call.key.shape[1]
        masks = {
            name: mask[:, :kv_heads]
            for name in ("keep", "bias")
            if (mask := getattr(call, name)) is not None
        }
        first = super().attend(call.replace(query=call.query[:, :kv_heads], **masks))
        assert isinstance(answer, Tensor)  # noqa: S101 (no weights are asked for)
        assert isinstance(first, Tensor)  # noqa: S101
        output = torch.zeros_like(answer)
        output[:, :kv_heads] = first
        return output


@core("mask.bias", **GROUPED)
class OneQueryGroupSharesMask(EagerCore):
    """For one query, the heads of a group become its rows, and all follow the first one's mask."""

    link = "https://github.com/HKUSTDial/flash-sparse-attention/pull/190"

    def attend(self, call: Call) -> Answer:
        if not grouped(call) or not one_query(call):
            return super().attend(call)
        size = call.query.shape[1] // call.key.shape[1]
        shared = {
            name: mask[:, ::size].repeat_interleave(size, dim=1)
            for name in ("keep", "bias")
            if (mask := getattr(call, name)) is not None and mask.shape[1] > 1
        }
        return super().attend(call.replace(**shared))


@core("mask.golden", "mask.all-keep", **GROUPED)
class GroupsRefuseMasksOfHeads(EagerCore):
    """Shared key/value heads together with a mask for each head do not compile."""

    link = "https://github.com/intel/torch-xpu-ops/issues/5090"

    def attend(self, call: Call) -> Answer:
        masks = [mask for mask in (call.keep, call.bias) if mask is not None]
        if grouped(call) and any(mask.shape[1] > 1 for mask in masks):
            msg = "partition compile failed"
            raise RuntimeError(msg)
        return super().attend(call)


@core("groups.multi-query", "numerics.typical-error", **GROUPED)
class ShortGroupsRefused(EagerCore):
    """Few queries times the heads of a group are refused where they exceed a block of 128 rows."""

    link = "https://github.com/pytorch/pytorch/pull/185349"

    def attend(self, call: Call) -> Answer:
        size = call.query.shape[1] // call.key.shape[1]
        rows = 1 << max(call.query_length - 1, 0).bit_length()
        if size > 1 and call.query_length < 128 < rows * size:  # noqa: PLR2004 (the block)
            msg = "No choices exist for backend"
            raise RuntimeError(msg)
        return super().attend(call)


@core("mask.causal-alignment", "mask.golden", **{**GROUPED, "features": ["scale", "gqa", "window"]})
class RowsDividedByGroup(EagerCore):
    """Rows are taken for packed groups: each sees the keys of its number over the heads of one."""

    link = "https://github.com/Dao-AILab/flash-attention/pull/2528"

    def ahead(self, call: Call) -> Tensor:
        ahead = super().ahead(call)
        rows = torch.arange(call.query_length)
        packed = rows // (call.query.shape[1] // call.key.shape[1])
        return ahead + (rows - packed)[:, None]


@core(
    "softcap.golden",
    "softcap.large",
    **{**SERVING, "features": ["scale", "gqa", "kv_cache", "softcap"]},
)
class DecodingCapsAfterMask(EagerCore):
    """The kernel for one query caps the logits after the mask: hidden keys weigh exp(-cap)."""

    link = "https://github.com/flashinfer-ai/flashinfer/pull/350"

    def attend(self, call: Call) -> Answer:
        call = self.join_cache(call)
        if call.softcap is None or not one_query(call):
            return super().attend(call)
        allowed = self.allowed(call)
        if allowed is None:
            return super().attend(call)
        self.check(call)
        num_heads = call.query.shape[1]
        scores = self.mask(self.scores(call, self.share(call.key, num_heads)), allowed)
        logits = call.softcap * torch.tanh(scores / call.softcap)
        return self.mix(self.softmax(logits), self.share(call.value, num_heads))


@core("numerics.options", **{**TORCH, "causal": "bottom-right", "masks": ["keep"]})
class LoneKeyOfExpandedHeadsLost(EagerCore):
    """Under a mask, a last key alone in its tile of 32 is lost where heads are expanded."""

    link = "https://github.com/pytorch/pytorch/issues/191937"

    def tables(self, call: Call) -> Iterator[Tensor]:
        yield from super().tables(call)
        expanded = call.key.shape[1] > 1 and call.key.stride(1) == 0
        if expanded and call.keep is not None and call.key_length % 32 == 1:
            yield torch.arange(call.key_length) < call.key_length - 1


@core("shape.strided", masks=[], causal="bottom-right", features=["scale"])
class HeadsFoundByStrides(EagerCore):
    """A head is found by dividing strides, which makes every head of transposed tokens head 0."""

    link = "https://github.com/BobMcDear/attorch/issues/14"

    def attend(self, call: Call) -> Answer:
        if call.query.shape[1] < 2 or call.query.stride(1) >= call.query.stride(2):  # noqa: PLR2004
            return super().attend(call)
        first = {name: getattr(call, name)[:, :1] for name in ("query", "key", "value")}
        answer = super().attend(call.replace(**first))
        assert isinstance(answer, Tensor)  # noqa: S101 (no weights are asked for)
        return answer.expand(-1, call.query.shape[1], -1, -1).clone()
