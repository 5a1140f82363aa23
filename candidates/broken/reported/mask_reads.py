"""Reported mistakes in how masks are read: axes, offsets, padding, what they are made into."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from ...eager import Answer, Call, EagerCore
from .._kit import core
from ..options import Forgets
from .decoding import Decoder
from .paths import OPTIONS

ADDED: Final[dict[str, Any]] = {"masks": ["bias"]}
TABLES: Final = ("keep", "drop", "keep_int", "bias")


class Rereads(Forgets):
    """A core that takes another mask than it is given."""

    def lose(self, call: Call) -> Call:
        masks = {form: getattr(call, form) for form in TABLES}
        return call.replace(**{f: self.read(m, call) for f, m in masks.items() if m is not None})

    def read(self, mask: Tensor, call: Call) -> Tensor:
        """What is taken for a mask of four axes."""
        raise NotImplementedError


def in_groups(call: Call) -> bool:
    """Whether query heads share key/value heads."""
    return call.key.shape[1] != call.query.shape[1]


@core("mask.per-item", "mask.golden", **ADDED)
class MaskOfFirstItem(Rereads):
    """The batch axis of a mask is not used: the first item's holds for all."""

    link = "https://github.com/ggml-org/llama.cpp/pull/14505"

    def read(self, mask: Tensor, call: Call) -> Tensor:
        del call
        return mask[:1]


@core("mask.per-head", "mask.golden", masks=["keep", "bias"])
class MaskOfFirstHead(Rereads):
    """Masks are taken to be the same for all heads: the first head's is read."""

    link = "https://github.com/openvinotoolkit/openvino/pull/21217"

    def read(self, mask: Tensor, call: Call) -> Tensor:
        del call
        return mask[:, :1]


@core("mask.golden", masks=["bias"], mask_shapes=["BHQK", "B11K"])
class KeyMaskReadAlongQueries(Rereads):
    """A mask by key, the same for all queries, is transposed: where sizes allow, it hides rows."""

    link = "https://github.com/leejet/stable-diffusion.cpp/pull/1625"

    def read(self, mask: Tensor, call: Call) -> Tensor:
        by_key = mask.shape[2] == 1 and call.query_length == call.key_length
        return mask.mT if by_key else mask


@core("mask.per-item", "mask.golden", masks=["keep", "bias"])
class MaskItemsReadAsGroups(Rereads):
    """Scores of groups have five axes, and the batch axis of a mask meets key/value heads."""

    link = "https://github.com/ml-explore/mlx/pull/1574"

    def read(self, mask: Tensor, call: Call) -> Tensor:
        items, kv_heads = mask.shape[0], call.key.shape[1]
        if not in_groups(call) or items != kv_heads or mask.shape[1] != 1:
            return mask
        return mask.transpose(0, 1).repeat_interleave(call.query.shape[1] // kv_heads, dim=1)


@core("mask.golden", **ADDED)
class ItemOffsetCountsHeads(Rereads):
    """The offset of an item counts heads, though the bias has one for all of them.

    What lies beyond the end of the bias reads as zeros here.
    """

    link = "https://github.com/microsoft/onnxruntime/pull/24017"

    def read(self, mask: Tensor, call: Call) -> Tensor:
        items, heads = mask.shape[0], call.query.shape[1]
        if mask.shape[1] != 1 or items == 1:
            return mask
        beyond = torch.zeros_like(mask[:1])
        read = torch.cat([mask, beyond])
        return read[(torch.arange(items) * heads).clamp(max=items)]


@core("mask.golden", **ADDED)
class UnbroadcastBiasClamped(Rereads):
    """A bias is indexed as if it had all items and heads; past its end its last number is read."""

    link = "https://github.com/microsoft/onnxruntime/issues/26766"

    def read(self, mask: Tensor, call: Call) -> Tensor:
        shape = (*call.query.shape[:2], call.query_length, call.key_length)
        if mask.numel() == 0:
            return mask
        places = torch.arange(math.prod(shape)).clamp(max=mask.numel() - 1)
        return mask.flatten()[places].view(shape)


@core("mask.golden", masks=["bias"], mask_shapes=["BHQK", "11QK"])
class SharedMaskReadPastItsEnd(Rereads):
    """With one query the offset of an item wraps by the batch of the keys, not of the mask.

    A mask for all items is so read past its end, where zeros are, from the second item on.
    """

    link = "https://github.com/tenstorrent/tt-metal/pull/42846"

    def read(self, mask: Tensor, call: Call) -> Tensor:
        items = call.key.shape[0]
        if call.query_length != 1 or mask.shape[0] != 1 or items == 1:
            return mask
        return torch.cat([mask, torch.zeros_like(mask).expand(items - 1, -1, -1, -1)])


@core("mask.golden", masks=["keep_int"], mask_shapes=["B11K"])
class MaskCountedIntoLength(Rereads):
    """A mask by key is counted into a length, as if padding were always on the right."""

    link = "https://github.com/microsoft/onnxruntime/issues/18945"

    def read(self, mask: Tensor, call: Call) -> Tensor:
        count = (mask != 0).sum(dim=-1, keepdim=True)
        return (torch.arange(call.key_length) < count).to(mask.dtype)


@core("mask.golden", "numerics.options", masks=["keep"], mask_shapes=["B11K"], **OPTIONS)
class LeadingKeysReadAsLength(Decoder):
    """With a cache a boolean mask is turned into a length: that of its first run of True."""

    link = "https://github.com/microsoft/onnxruntime/issues/27885"

    def attend(self, call: Call) -> Answer:
        call = self.join_cache(call)
        if self.past(call) and call.keep is not None:
            call = call.replace(keep=call.keep.to(torch.int64).cumprod(dim=-1) > 0)
        return super().attend(call)


@core("mask.golden")
class MaskFilledAfterSoftmax(EagerCore):
    """The weights, not the logits, of hidden keys become minus infinity."""

    link = "https://github.com/huggingface/pytorch-image-models/pull/2236"

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        weights = self.softmax(logits)
        return weights if allowed is None else self.mask(weights, allowed)


@core("numerics.golden", "mask.causal-combined")
class CancellingKeysTakenForPadding(EagerCore):
    """Padding is found in the keys: one whose channels add up to zero is hidden."""

    link = "https://github.com/Kyubyong/transformer/pull/69"

    def scores(self, call: Call, key: Tensor) -> Tensor:
        padding = key.sum(dim=-1) == 0
        return super().scores(call, key).masked_fill(padding[:, :, None], -(2.0**32))


@core("state.inputs-unchanged", masks=["keep_int"])
class IntegerMaskRewritten(EagerCore):
    """The zeros of an integer mask are replaced in place, so that a later layer sees none."""

    link = "https://github.com/Shujun-He/RibonanzaNet/issues/7"

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        if call.keep_int is not None:
            call.keep_int[call.keep_int == 0] = -1
        return answer


@core("mask.per-head", "mask.golden", masks=["keep"], mask_shapes=["BHQK"])
class MaskMappedOverQueries(Rereads):
    """Heads are taken from a mask along its query axis, where heads and queries are as many."""

    link = "https://github.com/patrick-kidger/equinox/pull/190"

    def read(self, mask: Tensor, call: Call) -> Tensor:
        equal = call.query.shape[1] == call.query_length
        return mask.transpose(1, 2) if equal else mask


class Shifted(EagerCore):
    """A core whose softmax is written out: what is taken off, what is divided by."""

    def softmax(self, logits: Tensor) -> Tensor:
        grown = (logits - self.shift(logits)).exp()
        return grown / self.total(grown)

    def shift(self, logits: Tensor) -> Tensor:
        """What is taken off the logits of a row."""
        return logits.amax(dim=-1, keepdim=True)

    def total(self, grown: Tensor) -> Tensor:
        """What the row is divided by."""
        return grown.sum(dim=-1, keepdim=True)


@core("mask.single-key", "numerics.large-logits")
class MaximumFloored(Shifted):
    """Rows without keys are mended by floors: the maximum is at least -1e4, the sum 1e-6.

    A row whose logits all lie far below that loses all its weights.
    """

    link = "https://github.com/tracel-ai/burn/pull/4697"

    def shift(self, logits: Tensor) -> Tensor:
        return super().shift(logits).clamp(min=-1e4)

    def total(self, grown: Tensor) -> Tensor:
        return super().total(grown).clamp(min=1e-6)


@core("numerics.large-logits", empty_rows="any")
class ConstantForMaximum(Shifted):
    """A fixed number, 10, is taken off the logits instead of their maximum."""

    link = "https://github.com/HabanaAI/vllm-fork/issues/275"

    def shift(self, logits: Tensor) -> Tensor:
        return torch.full_like(logits[..., :1], 10.0)


@core("mask.golden", "mask.all-keep", masks=["bias"], **OPTIONS)
class MaskPaddingAdmitsKeys(EagerCore):
    """The last tile of a mask is padded with zeros, which admit the padding of the keys."""

    link = "https://github.com/tenstorrent/tt-metal/issues/54833"
    tile = 32

    def attend(self, call: Call) -> Answer:
        call = self.join_cache(call)
        if call.bias is None:
            return super().attend(call)
        self.check(call)
        heads, length = call.query.shape[1], call.key_length
        allowed = self.allowed(call)
        logits = self.logits(call, self.share(call.key, heads))
        if allowed is not None:
            logits = self.mask(logits, allowed)
        padded = functional.pad(logits, (0, -length % self.tile))
        weights = padded.softmax(-1)[..., :length].nan_to_num(0.0)
        dropped = self.drop_out(weights, call.dropout)
        output = self.mix_allowed(dropped, self.share(call.value, heads), allowed)
        return (output, weights) if call.return_weights else output
