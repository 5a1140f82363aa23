"""Mistakes in what a mask does."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import InexactCore, core

LEAKS = ("mask.golden", "mask.padding-is-absence")


def is_given(table: Tensor) -> bool:
    """Whether a table is a mask of the caller: causal tables have no axes for items and heads."""
    return table.dim() == len("BHQK")


@core("mask.golden", "mask.no-leak", "mask.single-key", masks=["keep"], causal=None)
class PolarityInverted(EagerCore):
    """True in the mask is taken for "ignore" where it means "attend"."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        return super().tables(call.replace(keep=None, drop=call.keep))


@core("mask.no-leak", *LEAKS, "mask.empty-row", masks=["keep", "drop", "keep_int", "lengths"])
class MaskResultDropped(InexactCore):
    """The masked logits are computed and thrown away, as by masked_fill without its underscore."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is not None:
            logits.masked_fill(~allowed, -math.inf)
        return self.softmax(logits)


@core("mask.no-leak", *LEAKS, masks=["keep"], causal=None, empty_rows="any")
class OneAddedToKept(InexactCore):
    """The boolean mask is added to the logits: kept keys gain one, the others lose nothing."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        return self.softmax(logits if allowed is None else logits + allowed)


@core("mask.no-leak", *LEAKS, masks=["keep", "drop", "lengths"], empty_rows="any")
class LogitsMultiplied(InexactCore):
    """The logits are multiplied by the mask: an ignored key keeps a logit of zero."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        return self.softmax(logits if allowed is None else logits * allowed)


@core("mask.padding-is-absence", "mask.golden")
class MaskedAfterSoftmax(InexactCore):
    """The mask is applied to the weights after the softmax, which are not normalised again."""

    def mask(self, logits: Tensor, allowed: Tensor) -> Tensor:
        del allowed
        return logits


@core("mask.no-leak", "mask.single-key", masks=["keep", "drop", "lengths"], empty_rows="any")
class MinusTenThousandAdded(InexactCore):
    """Minus 10,000 is added to ignored logits, which a larger logit outweighs."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        return self.softmax(logits if allowed is None else logits - 1e4 * ~allowed)


class FiniteFill(InexactCore):
    """A core that writes a finite number over ignored logits."""

    fill: float

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        return self.softmax(logits if allowed is None else logits.masked_fill(~allowed, self.fill))


FORMS = ["keep", "drop", "keep_int", "lengths"]


@core("mask.single-key", masks=FORMS, empty_rows="mean-of-all")
class FillMinusHundred(FiniteFill):
    """Ignored logits are replaced by -100, which live logits may lie below."""

    fill = -100.0


@core("mask.single-key", masks=FORMS, empty_rows="mean-of-all")
class FillMinusTenThousand(FiniteFill):
    """Ignored logits are replaced by -10,000, which live logits may lie below."""

    fill = -1e4


@core("mask.single-key", masks=FORMS, empty_rows="mean-of-all")
class FillMinusMillion(FiniteFill):
    """Ignored logits are replaced by -1,000,000, which live logits may lie below."""

    fill = -1e6


@core("mask.no-leak", *LEAKS, masks=FORMS, empty_rows="any")
class FillZero(FiniteFill):
    """Ignored logits are replaced by zero, which is an ordinary logit."""

    fill = 0.0


@core("mask.no-leak", *LEAKS, masks=FORMS, empty_rows="any")
class FillSmallestPositive(FiniteFill):
    """Ignored logits are replaced by the smallest positive number, not the most negative one."""

    fill = torch.finfo(torch.float32).tiny


@core("mask.no-leak", "mask.single-key")
class MaximumOverIgnoredKeys(EagerCore):
    """The maximum to subtract is taken before masking: a huge ignored logit wipes the row out."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        largest = logits.amax(dim=-1, keepdim=True)
        weights = torch.exp(logits - largest)
        if allowed is not None:
            weights = weights.masked_fill(~allowed, 0.0)
        return weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-37)


@core("mask.no-leak", "mask.no-leak-nonfinite")
class CentredOnIgnoredKeys(EagerCore):
    """The keys are centred on their mean to spare precision, but ignored keys count in the mean."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        return super().scores(call, key - key.mean(dim=2, keepdim=True))


@core("mask.no-leak-nonfinite")
class ZeroTimesNan(InexactCore):
    """Ignored values are only multiplied by a weight of zero, which lets a NaN through."""


@core("mask.no-leak-nonfinite", masks=["keep", "drop", "lengths"])
class InfinityAdded(InexactCore):
    """Minus infinity is added to ignored logits, which turns an overflowed one into NaN."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            return self.softmax(logits)
        minus_infinity = torch.zeros_like(allowed, dtype=logits.dtype).masked_fill(
            ~allowed, -math.inf
        )
        empty = ~allowed.any(dim=-1, keepdim=True)
        return self.softmax(logits + minus_infinity).masked_fill(empty, 0.0)


@core("mask.padding-is-absence", "mask.golden")
class AveragedWithPadding(EagerCore):
    """The answer is scaled by the share of keys that are not ignored."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        weights = super().weights(logits, allowed)
        return weights if allowed is None else weights * allowed.to(weights.dtype).mean()


@core("mask.broadcast", "mask.golden", "mask.padding-is-absence", empty_rows="any")
class PaddingHidesQueriesToo(EagerCore):
    """A mask without a query axis is applied to the queries as well when lengths are equal."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        for table in super().tables(call):
            if table.shape[-2:] == (1, call.query_length):
                yield table & table.transpose(-1, -2)
            else:
                yield table


@core("mask.broadcast", "mask.golden", masks=["keep", "drop"])
class HeadlessMaskForFirstHead(EagerCore):
    """A mask without a head axis is applied to the first head only."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        first = torch.arange(call.query.shape[1]).reshape(1, -1, 1, 1) == 0
        for table in super().tables(call):
            yield table | ~first if is_given(table) and table.shape[1] == 1 else table


@core("mask.per-item", "mask.golden")
class FirstItemsMask(EagerCore):
    """The mask of the first batch item is used for all of them."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        return (table[:1] if is_given(table) else table for table in super().tables(call))


@core("mask.per-head", "mask.golden")
class FirstHeadsMask(EagerCore):
    """The mask of the first head is used for all of them."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        return (table[:, :1] if is_given(table) else table for table in super().tables(call))


@core(
    "mask.golden", "mask.no-leak", causal=None, masks=["keep", "drop"], mask_shapes=["BHQK", "B1QK"]
)
class FirstQuerysMask(EagerCore):
    """The mask of the first query is used for all of them, as if it were a padding mask."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        return (table[:, :, :1] for table in super().tables(call))


@core("mask.per-item", "mask.golden", masks=["keep", "drop"], mask_shapes=["B1QK", "B11K"])
class BatchOfMaskOnHeads(EagerCore):
    """The mask loses its head axis, and its batch axis is broadcast over the heads instead."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        heads = torch.arange(call.query.shape[1]) % call.query.shape[0]
        for table in super().tables(call):
            yield table.squeeze(1)[heads] if is_given(table) else table


@core("mask.forms-agree", "mask.golden", masks=["keep", "keep_int"])
class IntegersInverted(EagerCore):
    """Ones in an integer mask are taken for "ignore", though True in a boolean one is "attend"."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        inverted = None if call.keep_int is None else call.keep_int != 0
        return super().tables(call.replace(keep_int=None, drop=inverted))


@core("mask.forms-agree", "mask.golden", masks=["keep", "lengths"])
class LengthsInclusive(EagerCore):
    """The key at the length itself is still attended: ``<=`` where ``<`` is meant."""

    def within_lengths(self, call: Call, lengths: Tensor) -> Tensor:
        return super().within_lengths(call, lengths + 1)


@core("mask.forms-agree", "mask.golden", masks=["keep", "lengths"])
class LengthsFromTheEnd(EagerCore):
    """Lengths are counted from the last key, as if the padding stood on the left."""

    def within_lengths(self, call: Call, lengths: Tensor) -> Tensor:
        return super().within_lengths(call, lengths).flip(-1)


@core("mask.forms-agree", "mask.golden", "mask.empty-row", masks=["keep", "lengths"])
class LengthsIgnored(EagerCore):
    """Lengths are accepted and not used."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        return super().tables(call.replace(lengths=None))


@core("mask.empty-row", masks=["keep", "lengths"], causal=None)
class AllKeepWhenAnyRowIsEmpty(EagerCore):
    """A mask that leaves some row without keys is taken for a mistake of the caller and ignored."""

    def attend(self, call: Call) -> Answer:
        allowed = self.allowed(call)
        if allowed is not None and not bool(allowed.any(dim=-1).all()):
            call = call.replace(keep=None, lengths=None)
        return super().attend(call)


@core("mask.single-key", empty_rows="any")
class LengthsFillMinusTenThousand(InexactCore):
    """Keys past the length get a logit of -10,000, where masked ones are hidden for good."""

    def attend(self, call: Call) -> Answer:
        if call.lengths is None:
            return super().attend(call)
        (past,) = self.tables(
            Call(query=call.query, key=call.key, value=call.value, lengths=call.lengths)
        )
        bias = torch.zeros(past.shape, dtype=call.query.dtype).masked_fill(~past, -1e4)
        return super().attend(call.replace(lengths=None, bias=bias))
