"""Ring attention: keys travel from rank to rank, and partial answers are merged.

Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers", 2023 (arXiv:2310.01889). The
zigzag order gives causal ranks equal work: Brandon et al., "Striped Attention", 2023, is its kin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import conformance

from ._communication import matching_lengths


@dataclass
class Travelling:
    """What goes around the ring: tensors ``[B, H, L, D]`` of the rank that they come from.

    ``lengths`` are those of all ranks' parts.
    """

    tensors: list[Tensor]
    lengths: list[int]
    home: int

    def passed_on(self) -> Travelling:
        """What the rank before has, in exchange for this, which goes to the next rank."""
        count, rank = dist.get_world_size(), dist.get_rank()
        if count == 1:
            return self
        home = (self.home - 1) % count
        received = [
            each.new_empty(*each.shape[:2], self.lengths[home], each.shape[3])
            for each in self.tensors
        ]
        steps = []
        for own, other in zip(self.tensors, received, strict=True):
            steps.append(dist.P2POp(dist.isend, own.contiguous(), (rank + 1) % count))
            steps.append(dist.P2POp(dist.irecv, other, (rank - 1) % count))
        self.complete(dist.batch_isend_irecv(steps))
        return Travelling(received, self.lengths, home)

    def complete(self, steps: list[Any]) -> None:
        """Wait until everything has arrived."""
        for step in steps:
            step.wait()


@dataclass
class Call:
    """One call on one rank: its queries' positions, and how to score."""

    queries: list[int]
    keys: list[int]
    factor: float
    causal: bool
    halves: int = 1
    rank: int = field(default_factory=dist.get_rank)

    def positions(self, lengths: list[int], rank: int) -> Tensor:
        """The positions of a rank's tokens in the whole sequence."""
        count, total = len(lengths), sum(lengths)
        pieces = [rank] if self.halves == 1 else [rank, 2 * count - 1 - rank]
        step = -(-total // (count * self.halves))
        return torch.cat(
            [torch.arange(min(p * step, total), min((p + 1) * step, total)) for p in pieces]
        )

    def seen(self, home: int) -> Tensor:
        """Which keys of a rank each query of this rank may attend: bool ``[Lq, Lk]``."""
        rows = self.positions(self.queries, self.rank)[:, None]
        columns = self.positions(self.keys, home)
        if not self.causal:
            return torch.ones(len(rows), len(columns), dtype=torch.bool)
        return columns - rows <= sum(self.keys) - sum(self.queries)

    def logits(self, query: Tensor, key: Tensor, home: int) -> Tensor:
        """The logits ``[B, H, Lq, Lk]`` with one rank's keys, -inf where they are not attended."""
        scores = (query * self.factor) @ key.transpose(-1, -2)
        return scores.masked_fill(~self.seen(home), -math.inf)


class Ring:
    """Ring attention, step by step; a mistake replaces a step."""

    halves = 1
    travelling: Any = Travelling
    call: Any = Call

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        """Attend from this rank's queries ``[B, H, Lq, D]`` to the keys of all ranks."""
        queries, keys = matching_lengths(query, key, value)
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        call = self.call(queries, keys, factor, causal, self.halves)
        answer: Tensor = _Attended.apply(self, call, query, key, value)  # type: ignore[no-untyped-call]  # torch's own
        return answer

    def attend(
        self, call: Call, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The answer of this rank's queries, and the logarithm of each row's sum."""
        output = query.new_zeros(*query.shape[:3], value.shape[-1])
        lse = query.new_full(query.shape[:3], -math.inf)
        block = self.travelling([key, value], call.keys, call.rank)
        for step in range(len(call.keys)):
            if step:
                block = block.passed_on()
            part = self.partial(call.logits(query, block.tensors[0], block.home), block.tensors[1])
            output, lse = self.merged((output, lse), part)
        return output, lse

    def partial(self, logits: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The answer with some keys alone, and the logarithm of each row's sum over them."""
        if not logits.shape[-1]:
            empty = logits.new_zeros(*logits.shape[:3], value.shape[-1])
            return empty, logits.new_full(logits.shape[:3], -math.inf)
        largest = logits.amax(-1)
        anchor = largest.masked_fill(largest.isneginf(), 0.0)
        powers = (logits - anchor[..., None]).exp()
        total = powers.sum(-1)
        output = (powers @ value) / total.masked_fill(total == 0, 1.0)[..., None]
        return output, anchor + total.log()

    def merged(
        self, one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Two partial answers as one: each weighs as much as its sum."""
        lse = torch.logaddexp(one[1], two[1])
        anchor = lse.masked_fill(lse.isneginf(), 0.0)
        output = sum(part * (own - anchor).exp()[..., None] for part, own in (one, two))
        return output, lse  # type: ignore[return-value]  # a sum of tensors is one

    def gradients(
        self,
        call: Call,
        saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
        upstream: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of query, key and value; those of keys travel with their keys."""
        query, key, value, output, lse = saved
        anchor = lse.masked_fill(lse.isneginf(), 0.0)[..., None]
        carried = (upstream * output).sum(-1, keepdim=True)
        query_gradient = torch.zeros_like(query)
        zeros = [torch.zeros_like(key), torch.zeros_like(value)]
        block = self.travelling([key, value, *zeros], call.keys, call.rank)
        for step in range(len(call.keys)):
            if step:
                block = block.passed_on()
            keys, values, of_keys, of_values = block.tensors
            powers = (call.logits(query, keys, block.home) - anchor).exp()
            of_logits = powers * (upstream @ values.transpose(-1, -2) - carried) * call.factor
            query_gradient = query_gradient + of_logits @ keys
            block.tensors[2] = of_keys + of_logits.transpose(-1, -2) @ query
            block.tensors[3] = of_values + powers.transpose(-1, -2) @ upstream
        block = self.home(block)
        return query_gradient, block.tensors[2], block.tensors[3]

    def home(self, block: Travelling) -> Travelling:
        """The last step of the ring brings everybody's gradients home."""
        return block.passed_on()


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ring: Ring, call: Call, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """The answer; the logarithms of the sums are kept for the way back."""
        output, lse = ring.attend(call, query, key, value)
        ctx.ring, ctx.call = ring, call
        ctx.save_for_backward(query, key, value, output, lse)
        return output

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, None, Tensor, Tensor, Tensor]:
        """Around the ring once more."""
        return None, None, *ctx.ring.gradients(ctx.call, ctx.saved_tensors, upstream)


class Zigzag(Ring):
    """Each rank has a part from the front of the sequence and one from its end."""

    halves = 2


def on_ring(place: str) -> conformance.Ranks:
    """Two ranks, everything placed in one way."""
    return conformance.Ranks(2, query=place, key=place, value=place, output=place)


PROMISES: dict[str, Any] = {"causal": "bottom-right", "empty_rows": "zeros", "features": ["scale"]}
ring_attention = conformance.core(name="ring_attention", ranks=on_ring("sequence"), **PROMISES)(
    Ring()
)
zigzag_ring = conformance.core(name="zigzag_ring", ranks=on_ring("zigzag"), **PROMISES)(Zigzag())
