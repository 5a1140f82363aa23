"""The golden on several ranks: blocks of keys, their merge, and what a mistake changes of them.

Each rank attends from its queries to a block of keys of each rank; the blocks are merged by the
sums of their exponentials. A mistake changes the blocks, the merge, what follows, or the gradients.
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
    """What a rank attends of the keys of one rank.

    Logits are ``[B, H, Lq, l]``, -inf where they are not attended, values ``[B, H, l, Dv]``.
    """

    home: int
    logits: Tensor
    value: Tensor


class Parts:
    """One call on several ranks: which rows and keys are whose, and the golden's logits.

    ``missing`` says that a rank takes no part, ``late`` which rank sends late.
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
        """How many ranks there are."""
        return self.ranks.count

    def divides(self, place: Placed) -> bool:
        """Whether ranks have parts of the sequence of what is placed so."""
        return place.axis == (1 if self.axes == "tokens" else 2)

    def positions(self, place: Placed, length: int) -> list[Tensor]:
        """The positions of each rank's part of a sequence; of what is not divided all."""
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
        """The positions of each rank's keys; one block where every rank has all of them."""
        every = self.positions(self.key_place, self.inputs.geometry.key_length)
        return every if self.divides(self.key_place) else every[:1]

    @cached_property
    def attention(self) -> Any:
        """The golden's attention proper."""
        return self._core(self.inputs)

    @cached_property
    def without_causality(self) -> Any:
        """The same without the causal rule."""
        return self._core(self.inputs.replace(causal=False))

    def _core(self, inputs: Inputs) -> Any:
        evaluation: Any = evaluate(inputs, self.call.semantics)
        return evaluation.core if inputs.is_layer else evaluation

    def blocks(self, logits: Tensor, value: Tensor) -> list[Block]:
        """Logits with all keys, and their values, in blocks."""
        return [Block(h, logits[..., at], value[..., at, :]) for h, at in enumerate(self.keys)]

    @property
    def divides_evenly(self) -> bool:
        """Whether all parts have one length."""
        return all(len({len(each) for each in parts}) == 1 for parts in (self.queries, self.keys))

    def own_heads(self, rank: int) -> Tensor:
        """Which heads are a rank's, bool ``[H, 1, 1]``."""
        heads = self.inputs.geometry.num_heads
        return (torch.arange(heads) // -(-heads // self.count) == rank)[:, None, None]

    def own_rows(self, rank: int) -> Tensor:
        """Which queries are a rank's, bool ``[Lq, 1]``."""
        rows = torch.zeros(self.inputs.geometry.query_length, 1, dtype=torch.bool)
        rows[self.queries[rank]] = True
        return rows

    def own_keys(self, rank: int) -> Tensor:
        """Which keys are a rank's, bool ``[Lk]``."""
        columns = torch.zeros(self.inputs.geometry.key_length, dtype=torch.bool)
        columns[self.keys[rank % len(self.keys)]] = True
        return columns

    def place_of(self, name: str) -> Placed:
        """Where an input, or a weight of a layer, lies."""
        if name in {"q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "o_bias"}:
            return weight_place(name, self.ranks.weights)
        return self.ranks.places("mask" if name == "bias" else name, self.axes)

    def put_together(self, place: Placed, right: Tensor, wholes: Sequence[Tensor]) -> Tensor:
        """What all ranks have of a divided tensor, each as it would have the whole."""
        whole = right.clone()
        for rank, each in enumerate(wholes):
            place.put(whole, place.part(each, rank, self.count), rank, self.count)
        return whole


def merged(blocks: Sequence[Block]) -> Tensor:
    """The answer from some blocks of keys; zeros where there is no key."""
    logits = torch.cat([each.logits for each in blocks], dim=-1)
    weights = logits.softmax(-1).nan_to_num(nan=0.0)
    return weights @ torch.cat([each.value for each in blocks], dim=-2)


@dataclass(frozen=True, kw_only=True)
class RankMistake:
    """A change of the golden in parts; each step is of a call and of one of its ranks.

    blocks
        Other blocks than those that the rank should attend.
    merge
        Another merge of them.
    answer
        Another answer from the output of the heads.
    effect
        In place of an answer: "raises", or "is wrong" where nobody knows how; "" where it is right.
    backward
        Stages that the rank's backward pass makes otherwise; ``of`` names the gradients that they
        change.
    even
        It is acted out where all parts have one length.
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
        """The whole answer as a rank would give it."""
        core = parts.attention
        value = parts.without_causality.value if parts.inputs.causal else core.value
        blocks = parts.blocks(core.logits, value)
        if self.blocks is not None:
            blocks = self.blocks(parts, rank, blocks)
        output = merged(blocks) if self.merge is None else self.merge(parts, rank, blocks)
        answer = parts.call.answer_of(output)
        return answer if self.answer is None else self.answer(parts, rank, output)

    def acted(self, parts: Parts, rank: int) -> Tensor:
        """The golden answer with what this rank gives in its place."""
        right = parts.subject.golden(parts.inputs).output
        if parts.output_place.whole:
            return self.whole(parts, rank)
        part = parts.output_place.part(self.whole(parts, rank), rank, parts.count)
        whole = right.clone()
        parts.output_place.put(whole, part, rank, parts.count)
        return whole

    def gradients(self, parts: Parts, rank: int, observed: ObservedGradients) -> Gradients:
        """The gradients of a call, of what is replicated those that a rank has."""
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
