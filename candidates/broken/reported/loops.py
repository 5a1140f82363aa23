"""Reported mistakes of loops over keys and queries: their ends, steps, chunks and splits."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ...eager import Answer, Call, EagerCore
from .._kit import core
from ..options import Forgets
from .mask_reads import Rereads
from .paths import masked


@core("numerics.any-length", "mask.golden")
class HalfOfEachStepSkipped(EagerCore):
    """The loop steps by 32 keys but reads 16 of them, where there is more than one query."""

    link = "https://github.com/microsoft/onnxruntime/pull/28520"

    def tables(self, call: Call) -> Iterator[Tensor]:
        yield from super().tables(call)
        if call.query_length > 1:
            yield torch.arange(call.key_length) % 32 < 16  # noqa: PLR2004 (half a step)


@core("mask.golden", "mask.no-leak", masks=["keep", "bias"])
class MaskOfFirstRowOfChunk(Rereads):
    """Queries go in chunks of 128, and all of a chunk take the row of its first query."""

    link = "https://github.com/google-research/tabfm/pull/40"

    def read(self, mask: Tensor, call: Call) -> Tensor:
        first = torch.arange(call.query_length) // 128 * 128
        return mask if mask.shape[2] == 1 else mask[:, :, first]


@core("mask.golden")
class LastSliceForgotten(EagerCore):
    """Items and heads go in slices of two; the number of slices is rounded down."""

    link = "https://github.com/huggingface/diffusers/issues/8837"

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        mixed = super().mix(weights, value)
        done = torch.arange(math.prod(mixed.shape[:2])) < math.prod(mixed.shape[:2]) // 2 * 2
        return mixed * done.view(*mixed.shape[:2], 1, 1)


@core("mask.causal-alignment", "numerics.any-length", causal="top-left")
class CausalLoopEndsEarly(EagerCore):
    """A causal tile of queries reads keys up to its first query's tile alone.

    With tiles of more queries than keys (here 32 and 16) its later queries lose keys.
    """

    link = "https://github.com/jax-ml/jax/pull/17314"

    def __init__(self) -> None:
        super().__init__(causal="top-left")

    def tables(self, call: Call) -> Iterator[Tensor]:
        yield from super().tables(call)
        if call.causal:
            starts = torch.arange(call.query_length) // 32 * 32
            ends = (starts // 16 + 1) * 16
            yield torch.arange(call.key_length) < ends[:, None]


@core("mask.golden", "numerics.golden")
class KeysEndWithQueries(EagerCore):
    """The loop over tiles of 16 keys ends where the queries do, in calls that are not causal."""

    link = "https://github.com/jax-ml/jax/pull/24495"

    def tables(self, call: Call) -> Iterator[Tensor]:
        yield from super().tables(call)
        if not call.causal:
            yield torch.arange(call.key_length) < math.ceil(call.query_length / 16) * 16


@core("mask.golden")
class SplitsPastThirtyTwoDropped(EagerCore):
    """For a single query the keys go to 33 splits in turn; whole sets of 32 splits are added."""

    link = "https://github.com/ml-explore/mlx/pull/3875"

    def tables(self, call: Call) -> Iterator[Tensor]:
        yield from super().tables(call)
        if call.query_length == 1:
            yield torch.arange(call.key_length) % 33 < 32  # noqa: PLR2004 (the splits that count)


@core("mask.golden", features=["scale", "gqa"])
class NormalisedEveryStep(EagerCore):
    """The sum so far is divided by the denominator after every 16 keys, not once at the end."""

    link = "https://github.com/1bit-MONSTER/1bit-MONSTER/pull/495"

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        total = torch.zeros_like(weights[..., :1])
        mixed = super().mix(weights[..., :0], value[..., :0, :])
        for part, values in zip(weights.split(16, -1), value.split(16, -2), strict=True):
            total = total + part.sum(-1, keepdim=True)
            mixed = (mixed + part @ values) / torch.where(total == 0, 1.0, total)
        return mixed


@core("mask.golden", features=["scale", "gqa"])
class ValuesDriftWhereNarrower(Forgets):
    """A single query reads keys in steps of their size, values in steps of theirs.

    Behind the first step a value narrower than its key is not that of the key.
    """

    link = "https://github.com/ikawrakow/ik_llama.cpp/pull/2031"

    def lose(self, call: Call) -> Call:
        wide, narrow = call.key.shape[-1], call.value.shape[-1]
        fits = call.value.shape[2] == call.key_length
        if call.query_length != 1 or narrow >= wide or not fits:
            return call
        keys = torch.arange(call.key_length)
        return call.replace(value=call.value[:, :, keys // wide * narrow + keys % wide])


class MapsHeads(EagerCore):
    """A core that may read another key/value head, or another item's, than a query's own."""

    def attend(self, call: Call) -> Answer:
        """Each query head with what is read for it."""
        return super().attend(self.mapped(self.join_cache(call)))

    def mapped(self, call: Call) -> Call:
        """The call with what is read instead; heads that do not divide are for others to refuse."""
        heads = torch.arange(call.query.shape[1])
        if len(heads) % call.key.shape[1]:
            return call
        read = self.read(call, heads)
        return call.replace(key=call.key[:, read], value=call.value[:, read])

    def read(self, call: Call, heads: Tensor) -> Tensor:
        """The key/value head of each query head."""
        return heads // max(len(heads) // call.key.shape[1], 1)


@core("numerics.options")
class HeadTileCrossesGroup(MapsHeads):
    """A single query's heads go in tiles (here of 2), whose first head decides on the group.

    So where a group is larger than a tile and no multiple of it.
    """

    link = "https://github.com/FlashML-org/FreeToken/pull/177"

    def read(self, call: Call, heads: Tensor) -> Tensor:
        group = len(heads) // call.key.shape[1]
        crosses = call.query_length == 1 and group > 2 and group % 2  # noqa: PLR2004 (a tile)
        return super().read(call, heads // 2 * 2 if crosses else heads)


@core("numerics.golden", "shape.output")
class GroupFoundByWrongDivisor(MapsHeads):
    """A group's first head is divided by the number of groups instead of their size."""

    link = "https://github.com/PSAL-POSTECH/ONNXim/pull/34"

    def read(self, call: Call, heads: Tensor) -> Tensor:
        size = max(len(heads) // call.key.shape[1], 1)
        return (heads // size * size) // call.key.shape[1]


@core("numerics.options")
class FirstItemsKeysForAll(MapsHeads):
    """The kernel for one query with groups and many keys (here 32) forgets the item's offset.

    Calls with a mask take another kernel.
    """

    link = "https://github.com/ml-explore/mlx/pull/4431"

    def mapped(self, call: Call) -> Call:
        groups = call.key.shape[1] != call.query.shape[1]
        if masked(call) or call.query_length != 1 or not groups or call.key_length < 32:  # noqa: PLR2004 (many)
            return call
        return call.replace(
            key=call.key[:1].expand_as(call.key), value=call.value[:1].expand_as(call.value)
        )


@core("mask.golden")
class SoftmaxOverHeadsAndKeys(EagerCore):
    """The logits are flattened from the head axis on: all heads share one softmax."""

    link = "https://github.com/facebookresearch/detr/issues/247"

    def softmax(self, logits: Tensor) -> Tensor:
        rows = logits.transpose(1, 2)
        return rows.flatten(2).softmax(-1).view(rows.shape).transpose(1, 2)
