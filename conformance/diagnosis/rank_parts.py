"""The golden on several ranks: blocks of keys, their merge, and changes by mistakes.

A rank attends from its queries to a block of keys per rank; the sums of exponentials merge the
blocks. A mistake changes the blocks, the merge, later steps, or the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .._golden import golden
from ..clauses.subject import Subject
from ..declare.ranks import Placed, Ranks, weight_place
from ..oracle.oracle import evaluate
from ..problems.inputs import Inputs
from .mistakes.backward_pass import both_passes, gradients_with
from .mistakes.named_mistake import DeclaredCall, Gradients
from .observed_gradients import ObservedGradients

RAISES, IS_WRONG = "raises", "is wrong"


@dataclass(frozen=True)
class Block:
    """The keys of one rank that another rank attends.

    Logits are ``[B, H, Lq, l]``, -inf for hidden keys; values are ``[B, H, l, Dv]``.
    """

    home: int
    logits: Tensor
    value: Tensor


class Parts:
    """One call on several ranks: the owner of each row and key, and the golden's logits.

    ``missing``: a rank takes no part; ``late``: the rank that sends late.
    """

    def __init__(
        self, subject: Subject, inputs: Inputs, ranks: Ranks, *, missing: bool, late: int | None
    ) -> None:
        self.subject, self.inputs, self.ranks = subject, inputs, ranks
        self.missing, self.late = missing, late
        self.call = DeclaredCall(inputs=inputs, semantics=subject.declaration.semantics)
        self.axes = "tokens" if inputs.is_layer else "heads"
        own = inputs.mode == "self"
        context = "context" if inputs.mode == "memory" else "key"
        self.query_place = ranks.places("x" if own else "query", self.axes)
        self.key_place = ranks.places("x" if own else context, self.axes)
        self.output_place = ranks.places("output", self.axes)

    @property
    def count(self) -> int:
        """The number of ranks."""
        return self.ranks.count

    def divides(self, place: Placed) -> bool:
        """Whether a placement divides the sequence among ranks."""
        return place.axis == (1 if self.axes == "tokens" else 2)

    def positions(self, place: Placed, length: int) -> list[Tensor]:
        """Return the positions of each rank's part of a sequence; all if it is not divided."""
        if not self.divides(place):
            return [torch.arange(length)] * self.count
        return [
            torch.cat([torch.arange(*span) for span in place.spans(length, rank, self.count)])
            for rank in range(self.count)
        ]

    @cached_property
    def queries(self) -> list[Tensor]:
        """The positions of each rank's queries."""
        return self.positions(self.query_place, self.inputs.geometry.query_length)

    @cached_property
    def keys(self) -> list[Tensor]:
        """The positions of each rank's keys; one block if every rank has all keys."""
        every = self.positions(self.key_place, self.inputs.geometry.key_length)
        return every if self.divides(self.key_place) else every[:1]

    @cached_property
    def attention(self) -> Any:
        """The golden's attention proper."""
        return self._core(self.inputs)

    @cached_property
    def full_attention(self) -> Any:
        """The golden's attention proper without the causal rule."""
        return self._core(self.inputs.replace(causal=False))

    def _core(self, inputs: Inputs) -> Any:
        evaluation: Any = evaluate(inputs, self.call.semantics)
        return evaluation.core if inputs.is_layer else evaluation

    def blocks(self, logits: Tensor, value: Tensor) -> list[Block]:
        """Cut logits with all keys, and their values, into blocks."""
        return [Block(h, logits[..., at], value[..., at, :]) for h, at in enumerate(self.keys)]

    @property
    def divides_evenly(self) -> bool:
        """Whether all parts have equal length."""
        return all(len({len(each) for each in parts}) == 1 for parts in (self.queries, self.keys))

    def own_heads(self, rank: int) -> Tensor:
        """Return a mask of the rank's heads, bool ``[H, 1, 1]``."""
        heads = self.inputs.geometry.num_heads
        return (torch.arange(heads) // -(-heads // self.count) == rank)[:, None, None]

    def own_rows(self, rank: int) -> Tensor:
        """Return a mask of the rank's queries, bool ``[Lq, 1]``."""
        rows = torch.zeros(self.inputs.geometry.query_length, 1, dtype=torch.bool)
        rows[self.queries[rank]] = True
        return rows

    def own_keys(self, rank: int) -> Tensor:
        """Return a mask of the rank's keys, bool ``[Lk]``."""
        columns = torch.zeros(self.inputs.geometry.key_length, dtype=torch.bool)
        columns[self.keys[rank % len(self.keys)]] = True
        return columns

    def place_of(self, name: str) -> Placed:
        """Return the placement of an input or of a layer's weight."""
        if name in {"q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "o_bias"}:
            return weight_place(name, self.ranks.weights)
        return self.ranks.places("mask" if name == "bias" else name, self.axes)

    def put_together(self, place: Placed, right: Tensor, wholes: Sequence[Tensor]) -> Tensor:
        """Assemble a divided tensor from each rank's version of the whole."""
        whole = right.clone()
        for rank, each in enumerate(wholes):
            place.put(whole, place.part(each, rank, self.count), rank, self.count)
        return whole


def merged(blocks: Sequence[Block]) -> Tensor:
    """Return the answer from blocks of keys; zeros if there is no key."""
    logits = torch.cat([each.logits for each in blocks], dim=-1)
    weights = logits.softmax(-1).nan_to_num(nan=0.0)
    return weights @ torch.cat([each.value for each in blocks], dim=-2)


@dataclass(frozen=True, kw_only=True)
class RankMistake:
    """A change of the golden in parts; each step gets a call and one of its ranks.

    blocks
        Other blocks than the rank should attend.
    merge
        Another merge of the blocks.
    answer
        Another answer from the output of the heads.
    effect
        In place of an answer: "raises", or "is wrong" if unknown how; "" if right.
    backward
        Edited stages of the rank's backward pass; ``of`` names the gradients that they change.
    even
        The mistake is acted out only if all parts have equal length.
    """

    name: str
    sentence: str
    fix: str
    blocks: Callable[[Parts, int, list[Block]], list[Block]] | None = None
    merge: Callable[[Parts, int, list[Block]], Tensor] | None = None
    answer: Callable[[Parts, int, Tensor], Tensor] | None = None
    effect: Callable[[Parts], str] | None = None
    backward: Callable[[Parts, int], tuple[golden.Edit, ...]] | None = None
    of: tuple[str, ...] = ()
    even: bool = False

    def whole(self, parts: Parts, rank: int) -> Tensor:
        """Return the whole answer as a rank would give it."""
        core = parts.attention
        value = parts.full_attention.value if parts.inputs.causal else core.value
        blocks = parts.blocks(core.logits, value)
        if self.blocks is not None:
            blocks = self.blocks(parts, rank, blocks)
        output = merged(blocks) if self.merge is None else self.merge(parts, rank, blocks)
        answer = parts.call.answer_of(output)
        return answer if self.answer is None else self.answer(parts, rank, output)

    def acted(self, parts: Parts, rank: int) -> Tensor:
        """Return the golden answer with the rank's answer in its place."""
        right = parts.subject.golden(parts.inputs).output
        if parts.output_place.whole:
            return self.whole(parts, rank)
        part = parts.output_place.part(self.whole(parts, rank), rank, parts.count)
        whole = right.clone()
        parts.output_place.put(whole, part, rank, parts.count)
        return whole

    def gradients(self, parts: Parts, rank: int, observed: ObservedGradients) -> Gradients:
        """Return the gradients of a call; of replicated inputs, the rank's own."""
        right = {name: each.value for name, each in observed.expected.gradients.items()}
        if self.backward is None:
            return right
        passes = both_passes(parts.inputs, parts.call.semantics, observed.upstream)
        by_rank = [
            gradients_with(passes, parts.inputs, self.backward(parts, each))
            for each in range(parts.count)
        ]
        result = dict(right)
        for name in set(self.of) & by_rank[0].keys() & right.keys():
            place, own = parts.place_of(name), [each[name] for each in by_rank]
            result[name] = own[rank] if place.whole else parts.put_together(place, right[name], own)
        return result
