"""Mistakes of attentions that span ranks, each in one step of a correct one.

``MISTAKES`` has the clause that must catch each, ``NAMES`` what the diagnosis calls it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import linear

import conformance

from ._communication import summed
from .ring import PROMISES, Call, Ring, Travelling, Zigzag, on_ring
from .split_keys import PARTS, SplitKeys
from .tensor_parallel import HEADS, LAYER, OwnHeads, TensorParallel

# The name of each candidate, and the clause that must catch it; the name of its mistake.
MISTAKES: Final[dict[str, str]] = {}
NAMES: Final[dict[str, str]] = {}
_DECODE: Final[dict[str, Any]] = {"empty_rows": "zeros", "features": ["scale"], "ranks": PARTS}


def _declared(
    primary: str, name: str, declare: Callable[..., Any], **promises: Any
) -> Callable[[type], conformance.Candidate]:
    """Declare a class whose instance is called; the class becomes the candidate."""

    def declared(made: type) -> conformance.Candidate:
        MISTAKES[made.__name__], NAMES[made.__name__] = primary, name
        candidate: conformance.Candidate = declare(name=made.__name__, **promises)(made())
        return candidate

    return declared


def _ring(
    primary: str, name: str, place: str = "sequence"
) -> Callable[[type], conformance.Candidate]:
    return _declared(primary, name, conformance.core, ranks=on_ring(place), **PROMISES)


def _split(primary: str, name: str) -> Callable[[type], conformance.Candidate]:
    return _declared(primary, name, conformance.core, **_DECODE)


def _layer(primary: str, name: str) -> Callable[[type], conformance.Candidate]:
    promises = {"causal": "bottom-right", "empty_rows": "zeros", "features": ["gqa"]}
    return _declared(primary, name, conformance.layer, ranks=LAYER, **promises)


class _LocalMask(Call):
    def seen(self, home: int) -> Tensor:
        rows, keys = self.queries[self.rank], self.keys[home]
        if not self.causal:
            return torch.ones(rows, keys, dtype=torch.bool)
        return torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)


@_ring("mask.causal-alignment", "part-mask-without-offset")
class LocalCausalMask(Ring):
    """The causal mask of each part counts from the part's own first token."""

    call = _LocalMask


@_ring("numerics.large-logits", "maximum-not-subtracted")
class MergedWithoutMaximum(Ring):
    """Partial answers are merged by exponentials of their sums that no maximum is taken from."""

    def merged(
        self, one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Exponentials overflow where logits are large."""
        first, second = one[1].exp()[..., None], two[1].exp()[..., None]
        total = first + second
        output = (one[0] * first + two[0] * second) / total.masked_fill(total == 0, 1.0)
        return output, total.log()[..., 0]


@_ring("numerics.golden", "part-sums-rounded")
class SumsInHalfPrecision(Ring):
    """The logarithms of the sums travel in half precision."""

    def partial(self, logits: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """As it should be, but for the logarithm."""
        output, lse = super().partial(logits, value)
        return output, lse.half().to(lse.dtype)


class _Unpaired(Call):
    def positions(self, lengths: list[int], rank: int) -> Tensor:
        count, total = len(lengths), sum(lengths)
        step = -(-total // (2 * count))
        pieces = [torch.arange(p * step, (p + 1) * step) for p in (rank, count + rank)]
        return torch.cat([*pieces, torch.arange(total)])[: lengths[rank]]


@_ring("mask.causal-alignment", "zigzag-order-wrong", "zigzag")
class ZigzagUndoneWrongly(Zigzag):
    """The second half of a zigzag part is taken for the part n places on, not the mirrored one."""

    call = _Unpaired


@_layer("numerics.golden", "output-sum-missing")
class NoSumBehindTheOutput(TensorParallel):
    """The output projection's partial sums are not added up over the ranks."""

    def projected(self, mixed: Tensor, weights: conformance.ProjectionWeights) -> Tensor:
        """Each rank's own heads alone."""
        partial = mixed if weights.o is None else linear(mixed, weights.o)
        return partial if weights.o_bias is None else partial + weights.o_bias


@_layer("numerics.golden", "output-bias-on-every-rank")
class BiasOnEveryRank(TensorParallel):
    """The output bias is added on each rank before the sum, and so as often as there are ranks."""

    def projected(self, mixed: Tensor, weights: conformance.ProjectionWeights) -> Tensor:
        """The bias before the sum."""
        return summed(mixed if weights.o is None else linear(mixed, weights.o, weights.o_bias))


@_declared(
    "groups.golden",
    "wrong-shared-heads",
    conformance.core,
    causal="bottom-right",
    empty_rows="zeros",
    features=["gqa"],
    ranks=HEADS,
)
class WrongSharedHeads(OwnHeads):
    """Each rank takes the key/value heads in turn, not those that its own heads share."""

    def shared(self, own: int, kv_heads: int) -> Tensor:
        """Heads counted from the rank's first, whatever the rank is."""
        return (torch.arange(own) + dist.get_rank()) % kv_heads


@_ring("gradients.golden", "key-gradients-not-sent-home")
class GradientsNotSentHome(Ring):
    """The gradients of keys and values stay on the rank where the ring's last step left them."""

    def home(self, block: Travelling) -> Travelling:
        """Those that are here, cut or filled to the length of this rank's own keys."""
        own, count = block.lengths[dist.get_rank()], block.lengths[block.home]
        kept = []
        for each in block.tensors:
            padded = each.new_zeros(*each.shape[:2], own, each.shape[3])
            padded[:, :, : min(own, count)] = each[:, :, : min(own, count)]
            kept.append(padded)
        return dataclasses.replace(block, tensors=kept)


class _Stale(Travelling):
    def passed_on(self) -> Travelling:
        fresh = super().passed_on()
        reused = [
            own if own.shape == other.shape else other
            for own, other in zip(self.tensors, fresh.tensors, strict=True)
        ]
        return _Stale(reused, fresh.lengths, fresh.home)


@_ring("numerics.golden", "stale-ring-buffer")
class StaleBuffer(Ring):
    """What was received last stays unread: the buffer of the step before is used again."""

    travelling = _Stale


@_split("ranks.uneven", "padding-of-a-short-part-counted")
class PaddedLastPart(SplitKeys):
    """The last rank's short part is filled up with zeros, which no mask hides."""

    def merged(self, logits: Tensor, value: Tensor) -> Tensor:
        """Keys of zeros have logits of zero, and their weights are counted."""
        own = torch.tensor(logits.shape[-1])
        dist.all_reduce(own, op=dist.ReduceOp.MAX)
        missing = int(own) - logits.shape[-1]
        logits = torch.nn.functional.pad(logits, (0, missing))
        value = torch.nn.functional.pad(value, (0, 0, 0, missing))
        return super().merged(logits, value)


class _SumOnTheFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        """The sum on rank 0; the others keep what they had."""
        del ctx
        total = part.contiguous().clone()
        dist.reduce(total, dst=0)
        return part if dist.get_rank() else total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """As for a sum that all ranks have."""
        del ctx
        return gradient


@_split("ranks.agree", "sum-on-first-rank-alone")
class SumOnTheFirstRankAlone(SplitKeys):
    """The sums are reduced to the first rank, and not broadcast to the others."""

    def total(self, part: Tensor) -> Tensor:
        """What the others return is their own part."""
        result: Tensor = _SumOnTheFirst.apply(part)  # type: ignore[no-untyped-call]  # torch's own
        return result


class _GradientOnTheFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """The tensor, which every rank has."""
        del ctx
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The sum on rank 0; the others keep what they had."""
        del ctx
        total = gradient.contiguous().clone()
        dist.reduce(total, dst=0)
        return gradient if dist.get_rank() else total


@_split("ranks.agree", "gradient-on-first-rank-alone")
class GradientOnTheFirstRankAlone(SplitKeys):
    """The gradient of the queries, which all ranks have, is added up on the first rank alone."""

    def own_queries(self, query: Tensor) -> Tensor:
        """The others have the gradient of their own keys' logits."""
        result: Tensor = _GradientOnTheFirst.apply(query)  # type: ignore[no-untyped-call]  # torch's own
        return result


@_ring("ranks.any-count", "number-of-ranks-written-down")
class TwoRanksWrittenDown(Ring):
    """The ring is walked for two steps, however many ranks there are."""

    def attend(
        self, call: Call, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Two steps."""
        block = self.travelling([key, value], call.keys, call.rank)
        parts = []
        for step in range(2):
            if step:
                block = block.passed_on()
            parts.append(
                self.partial(call.logits(query, block.tensors[0], block.home), block.tensors[1])
            )
        return self.merged(*parts)


@_ring("ranks.empty-part", "raises-on-an-empty-part")
class NoMaximumOfNothing(Ring):
    """A part without keys has no largest logit: the rank that meets it raises alone."""

    def partial(self, logits: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The maximum first."""
        logits.amax(-1)
        return super().partial(logits, value)


@_ring("ranks.order", "own-part-counted-twice")
class OwnPartTwice(Ring):
    """Rank 0 counts the part that it begins with twice."""

    def merged(
        self, one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The first part, which meets nothing yet, has twice its sum."""
        output, lse = super().merged(one, two)
        begins = dist.get_rank() == 0 and bool(one[1].isneginf().all())
        return output, lse + math.log(2.0) * begins


class _Added(Call):
    def logits(self, query: Tensor, key: Tensor, home: int) -> Tensor:
        scores = (query * self.factor) @ key.transpose(-1, -2)
        return scores - 1e4 * ~self.seen(home)


@_ring("ranks.no-leak", "hidden-parts-weighed")
class LaterPartsAreWeighed(Ring):
    """Parts that a causal query may not attend are computed as well, less ten thousand."""

    call = _Added


class _Impatient(Travelling):
    def complete(self, steps: list[Any]) -> None:
        until = time.monotonic() + 0.05
        while time.monotonic() < until and not all(step.is_completed() for step in steps):
            time.sleep(0.0)


@_ring("ranks.waits", "read-before-it-has-arrived")
class DoesNotWait(Ring):
    """What the neighbour sends is read after a twentieth of a second, arrived or not."""

    travelling = _Impatient


@_split("ranks.dies", "answers-without-the-others")
class SwallowedException(SplitKeys):
    """Where the others cannot be reached, a rank answers from its own keys."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """What a collective raises is caught."""
        try:
            return super().__call__(query, key, value, **options)
        except RuntimeError:
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)


__conformance__: Final[tuple[str, ...]] = tuple(MISTAKES)
