"""Mistakes in reading one form or one shape of a mask."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core

Shape = list[str]
ITEM_AND_KEY: Shape = ["BK"]


class FewerAxes(EagerCore):
    """A core whose boolean mask has less than four axes."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        """The mask with its axes put in place, then the other tables."""
        if call.keep is not None:
            yield self.with_axes(call.keep, call)
        yield from super().tables(call.replace(keep=None))

    def with_axes(self, keep: Tensor, call: Call) -> Tensor:
        """The mask as it broadcasts to ``[B, H, Lq, Lk]``."""
        raise NotImplementedError


@core("mask.golden", masks=["keep"], mask_shapes=["BK"], causal=None)
class ItemsTakenForQueries(FewerAxes):
    """A mask of items and keys broadcasts over the queries where their numbers happen to agree."""

    def with_axes(self, keep: Tensor, call: Call) -> Tensor:
        return keep if keep.shape[0] == call.query_length else keep[:, None, None]


@core("mask.golden", masks=["keep"], mask_shapes=["BQK"], causal=None)
class ItemsTakenForHeads(FewerAxes):
    """A mask without a head axis broadcasts its items over the heads where their numbers agree."""

    def with_axes(self, keep: Tensor, call: Call) -> Tensor:
        return keep if keep.shape[0] == call.query.shape[1] else keep[:, None]


@core("mask.golden", masks=["keep"], mask_shapes=["HQK"], causal=None)
class HeadsTakenForItems(FewerAxes):
    """A mask of heads is given to the items of the batch where their numbers agree."""

    def with_axes(self, keep: Tensor, call: Call) -> Tensor:
        return keep[:, None] if keep.shape[0] == call.query.shape[0] else keep


@core("mask.golden", masks=["keep", "drop"])
class SquareMaskTransposed(EagerCore):
    """Queries and keys of a mask change places, which only a square mask lets pass."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        for table in super().tables(call):
            square = table.shape[-1] == table.shape[-2] and table.dim() == len("BHQK")
            yield table.mT if square else table


@core("mask.golden", masks=["keep", "drop"])
class FullRowEndsMasking(EagerCore):
    """A mask with a row that keeps every key is taken for a mask that keeps everything."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        for table in super().tables(call):
            given = table.dim() == len("BHQK")
            yield table | table.all(dim=-1).any() if given else table


@core("numerics.any-length", "mask.golden", masks=["lengths"])
class LengthsInBytes(EagerCore):
    """Lengths are kept in a signed byte: those past 127 become negative."""

    def within_lengths(self, call: Call, lengths: Tensor) -> Tensor:
        return super().within_lengths(call, lengths.to(torch.int8).to(torch.int64))


@core("mask.golden", masks=["lengths"])
class LengthsRoundedUp(EagerCore):
    """Lengths are rounded up to whole tiles of eight, whose last keys are padding."""

    def within_lengths(self, call: Call, lengths: Tensor) -> Tensor:
        return super().within_lengths(call, (lengths + 7) // 8 * 8)


@core("mask.golden", "mask.per-item", masks=["lengths"])
class LongestLengthForAll(EagerCore):
    """All items of a batch are given the longest of their lengths."""

    def within_lengths(self, call: Call, lengths: Tensor) -> Tensor:
        longest = lengths.max() if lengths.numel() else 0
        return super().within_lengths(call, lengths * 0 + longest)


@core("mask.golden", "mask.per-item", masks=["lengths"])
class LengthsSorted(EagerCore):
    """The lengths are sorted for packing and the items are not: each gets another one's."""

    def within_lengths(self, call: Call, lengths: Tensor) -> Tensor:
        return super().within_lengths(call, lengths.sort(dim=0, descending=True).values)


@core("mask.empty-row", masks=["lengths"])
class LengthZeroMeansAll(EagerCore):
    """A length of zero is taken for a length that was not given."""

    def within_lengths(self, call: Call, lengths: Tensor) -> Tensor:
        return super().within_lengths(call, lengths.masked_fill(lengths == 0, call.key_length))


@core("mask.empty-row", masks=["lengths"])
class LengthZeroRefused(EagerCore):
    """A length of zero raises: an item of padding alone was not thought of."""

    def within_lengths(self, call: Call, lengths: Tensor) -> Tensor:
        if bool((lengths == 0).any()):
            msg = "each item needs at least one token"
            raise ValueError(msg)
        return super().within_lengths(call, lengths)


@core("mask.golden", masks=["keep_int"], empty_rows="any")
class IntegersAdded(EagerCore):
    """An integer mask is added to the logits like a bias: kept keys gain one."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        return super().tables(call.replace(keep_int=None))

    def scores(self, call: Call, key: Tensor) -> Tensor:
        scores = super().scores(call, key)
        return scores if call.keep_int is None else scores + call.keep_int


@core("mask.bias", masks=["bias"])
class BiasOfFirstHead(EagerCore):
    """A bias that differs from head to head is read for the first head and used for all."""

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        return scores + torch.where(bias.isneginf(), 0.0, bias)[:, :1]


@core("mask.bias", masks=["bias"])
class SmallBiasHides(EagerCore):
    """A bias below -5 is taken for a mask and hides its key, whatever the logits are."""

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        return super().add_bias(scores, bias.masked_fill(bias < -5.0, -math.inf))  # noqa: PLR2004 (the five of the docstring)


@core("shape.output", masks=["lengths"])
class AnswerCutToLongest(EagerCore):
    """Padding that all items share is cut off, and the answer has as many rows too few."""

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        square = call.query_length == call.key_length
        if call.lengths is None or isinstance(answer, tuple) or not square:
            return answer
        return answer[:, :, : int(call.lengths.max()) if call.lengths.numel() else None]


@core("numerics.any-length", masks=["keep"])
class LongMaskCutOff(EagerCore):
    """Only the first 128 keys of a mask are read; those behind count as kept."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        far = torch.arange(call.key_length) >= 128  # noqa: PLR2004 (the 128 of the docstring)
        for table in super().tables(call):
            yield table | far if table.dim() == len("BHQK") else table


@core("mask.bias", masks=["bias"], dtypes=["float64"])
class BiasInFloat32(EagerCore):
    """A float64 bias passes through float32, where its digits are lost and large ones overflow."""

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        return super().add_bias(scores, bias.float().to(scores.dtype))


@core("mask.int-nonzero", masks=["keep_int"])
class OnlyOneKeeps(EagerCore):
    """An integer mask keeps what is one; other numbers than zero hide their keys, too."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        keep = None if call.keep_int is None else call.keep_int == 1
        return super().tables(call.replace(keep_int=None, keep=keep))


@core("mask.int-nonzero", masks=["keep_int"])
class MaskCutToBytes(EagerCore):
    """An integer mask is cut to 8 bits before it is compared with zero."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        keep = None if call.keep_int is None else call.keep_int.to(torch.int8) != 0
        return super().tables(call.replace(keep_int=None, keep=keep))
