"""Masks that are misread, replaced or combined wrongly, and sizes that a kernel does not expect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

import conformance

from ...eager import Answer, Call, EagerCore, EagerLayer
from .._kit import InexactCore, core, layer
from .single_queries import TORCH, TopLeft

PLAIN: Final[dict[str, Any]] = {"features": ["scale", "gqa"]}


@core(
    "mask.padding-is-absence",
    "mask.golden",
    **{**PLAIN, "masks": ["lengths"], "without": ["gradients"]},
)
class LengthsEndWithTheTile(EagerCore):
    """Where a tile is as large as a page, 16 keys, those behind the length are not masked."""

    link = "https://github.com/zml/zml/pull/563"

    def within_lengths(self, call: Call, lengths: Tensor) -> Tensor:
        return super().within_lengths(call, (lengths + 15) // 16 * 16)


@core("numerics.any-length", **{**PLAIN, "masks": ["bias"]})
class CausalLostOnWholeTiles(EagerCore):
    """The causal mask is not recognised where tiles of 32 divide both lengths, and dropped."""

    link = "https://github.com/bledden/triton-msl/pull/7"

    def attend(self, call: Call) -> Answer:
        whole = not call.query_length % 32 and not call.key_length % 32
        return super().attend(call.replace(causal=call.causal and not whole))


@core(
    "mask.causal-alignment",
    masks=[],
    features=["scale"],
    without=["gradients"],
    geometry={"head_size": [16, 32, 64, 128], "value_head_size": "head_size"},
)
class ChannelsBeyondSixtyFourLost(EagerCore):
    """The head size is written down as 64: the channels behind are neither read nor written."""

    link = "https://github.com/triton-lang/triton/issues/621"

    def attend(self, call: Call) -> Answer:
        self.check(call)
        scale = self.scale(call)
        heads = {name: getattr(call, name)[..., :64] for name in ("query", "key")}
        value = torch.cat([call.value[..., :64], torch.zeros_like(call.value[..., 64:])], dim=-1)
        return super().attend(call.replace(**heads, value=value, scale=scale))


@core("mask.golden", "mask.padding-is-absence", masks=["keep", "bias"], features=["scale"])
class MaskDroppedInInference(EagerCore):
    """The kernel for inference gets an empty tensor in place of the mask."""

    link = "https://github.com/deepspeedai/DeepSpeed/issues/1912"

    def attend(self, call: Call) -> Answer:
        self.check(call)
        if call.query.requires_grad:
            return super().attend(call)
        return super().attend(call.replace(keep=None, bias=None))


@core("numerics.scale", "numerics.golden", masks=["keep", "bias"], features=["scale", "gqa"])
class DefaultScaleWhereFused(EagerCore):
    """Plain attention without a mask is replaced by a fused one, with the default scale."""

    link = "https://github.com/pytorch/pytorch/pull/174361"

    def scale(self, call: Call) -> float:
        plain = not call.causal and call.keep is None and call.bias is None
        return super().scale(call.replace(scale=None) if plain else call)


@core("mask.golden", masks=["drop", "lengths"], features=["scale"], empty_rows="any")
class PaddedQueriesMaskedToo(EagerCore):
    """A mask for each query, merged with lengths, loses the queries behind the length as well."""

    link = "https://github.com/pytorch/pytorch/issues/63271"
    escapes = "a mask and lengths are not given together"

    def tables(self, call: Call) -> Iterator[Tensor]:
        yield from super().tables(call)
        if call.lengths is None or call.drop is None or call.query_length != call.key_length:
            return
        yield self.within_lengths(call, call.lengths).mT


@core("mask.empty-row-weights", features=["scale", "weights", "dropout"])
class AskedWeightsOfEmptyRowsNaN(EagerCore):
    """The path that returns weights has no safe softmax: a row without keys is NaN there alone."""

    link = "https://github.com/pytorch/pytorch/issues/152028"

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        allowed = self.allowed(call)
        if not isinstance(answer, tuple) or allowed is None:
            return answer
        empty = ~allowed.any(dim=-1, keepdim=True)
        output, weights = (one.masked_fill(empty, torch.nan) for one in answer)
        return output, weights


@core("mask.padding-is-absence", "mask.golden", **{**PLAIN, "masks": ["lengths"], "causal": None})
class MaskStartsAtTheQueries(EagerCore):
    """Queries are taken to stand at the end of the keys, in cross-attention, too.

    Tiles of 16 keys before them are not masked.
    """

    link = "https://github.com/NVIDIA/TensorRT-LLM/issues/10102"

    def within_lengths(self, call: Call, lengths: Tensor) -> Tensor:
        start = max(call.key_length - call.query_length, 0) // 16 * 16
        return super().within_lengths(call, lengths) | (torch.arange(call.key_length) < start)


@core("mask.per-item", "mask.golden", **{**TORCH, "mask_shapes": ["BHQK", "B1QK", "11QK", "QK"]})
class MaskOfTheFirstItem(TopLeft):
    """For few queries, a mask that all heads share is read at the offset of the first item."""

    link = "https://github.com/pytorch/pytorch/pull/184180"

    def attend(self, call: Call) -> Answer:
        if call.query_length > 8:  # noqa: PLR2004 (few)
            return super().attend(call)
        first = {
            name: mask[:1]
            for name in ("keep", "bias")
            if (mask := getattr(call, name)) is not None and mask.dim() == 4 and mask.shape[1] == 1  # noqa: PLR2004 (axes)
        }
        return super().attend(call.replace(**first))


@layer(
    "mask.golden",
    "mask.single-key",
    masks=["drop"],
    mask_shapes=["B11K"],
    empty_rows="any",
    features=[],
)
class PaddingTakenForLengths(EagerLayer):
    """Padded tokens become sequences by counting those that are kept.

    A mask that hides others than the last tokens hides the last ones instead.
    """

    link = "https://github.com/pytorch/pytorch/pull/79927"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        drop = options.get("drop")
        if drop is not None and drop.shape[-1] == key.shape[1]:
            options.pop("drop")
            options["lengths"] = (~drop[:, 0, 0]).sum(dim=-1)
        return super().__call__(query, key, value, **options)


@layer("shape.strided", "shape.expanded", masks=["drop"], empty_rows="any", features=["weights"])
class OddHeadSizesNaN(EagerLayer):
    """The kernel for inference reads heads eight channels at a time: other sizes give NaN."""

    link = "https://github.com/pytorch/pytorch/pull/176559"

    def split(self, tokens: Tensor, num_heads: int) -> Tensor:
        heads = super().split(tokens, num_heads)
        odd = heads.shape[-1] % 8 and not tokens.requires_grad
        return torch.full_like(heads, torch.nan) if odd else heads


class _ScaleOf(EagerCore):
    """A core with a default scale of its own."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size

    def scale(self, call: Call) -> float:
        """One over the root of a size."""
        return float(self.size**-0.5) if call.scale is None else call.scale


@layer("mask.golden", features=["gqa"])
class ScaleFromWidthByHeads(EagerLayer):
    """The scale comes from the width of the model over its heads, not from the size of a head."""

    link = "https://github.com/NVIDIA/Megatron-LM/issues/1501"

    def __init__(self, geometry: conformance.Geometry, weights: Any) -> None:
        super().__init__(geometry, weights)
        self.core = _ScaleOf(geometry.query_size / geometry.num_heads)


@core("mask.causal", "mask.causal-alignment", masks=["keep"], features=["scale", "gqa"])
class CausalForFirstItemAlone(EagerCore):
    """The causal mask has a batch axis, but numbers for one item: the others see every key."""

    link = "https://github.com/huggingface/candle/issues/3582"

    def ahead(self, call: Call) -> Tensor:
        ahead = super().ahead(call)
        items = torch.arange(call.query.shape[0]).reshape(-1, 1, 1, 1)
        return torch.where(items == 0, ahead, torch.full_like(ahead, -1))


@core("mask.empty-row", masks=["keep"], features=["scale", "gqa"])
class ZeroedCopyThrownAway(InexactCore):
    """Rows without keys are to be zeroed, but what the function for it returns is not kept."""

    link = "https://github.com/lucidrains/flamingo-pytorch/issues/10"

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            return self.softmax(logits)
        return self.softmax(logits.masked_fill(~allowed, torch.finfo(logits.dtype).min))
