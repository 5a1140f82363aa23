"""Online softmaxes: tiles of keys whose sums are rescaled too seldom or too often.

A kernel that goes over the keys tile by tile keeps the largest logit so far, and multiplies what it
has added up by ``exp(old - new)`` whenever that grows (Milakov and Gimelshein, 2018).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import BLOCKS, weighing
from .reading import Reading, statement

_TIMES: Final = {0: "not", 1: "once", 2: "twice"}


@dataclass(frozen=True)
class Loop:
    """How a kernel goes over tiles of keys.

    ``summed`` and ``totalled`` say how often the weighted sum and the sum of the weights are
    rescaled when the maximum grows; ``relative``, whether exponentials are taken of logits less the
    largest so far.
    """

    size: int
    summed: int
    totalled: int
    relative: bool

    def weights(self, call: DeclaredCall, attention: golden.Attention) -> Tensor:
        """The weights that come of it."""
        return _divided(attention, *self.sums(call, attention))

    def answer(self, call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        """What it answers: exponentials of the working dtype may vanish before they are divided."""
        if self.relative:
            return weighing(attention, self.weights(call, attention))
        working = call.inputs.query.dtype
        powers, total = self.sums(call, attention)
        output = (powers.to(working) @ attention.value.to(working)).double() / total
        output = torch.where(attention.empty[..., None], attention.output, output)
        return dataclasses.replace(attention, output=output)

    def sums(self, call: DeclaredCall, attention: golden.Attention) -> tuple[Tensor, Tensor]:
        """What values are weighed with, and what the sum is divided by."""
        return self.sums_of(call, attention, *growth(attention.logits, self.size))

    def sums_of(
        self, call: DeclaredCall, attention: golden.Attention, grown: Tensor, largest: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same where it is known how the maximum grows, as :func:`growth` says."""
        logits = attention.logits
        if self.relative:
            powers, shift = (logits - largest).exp(), -1
        else:  # they overflow where the working dtype does
            powers, shift = logits.to(call.inputs.query.dtype).exp().double(), 0
        total = (powers * ((self.totalled + shift) * grown).exp()).sum(dim=-1, keepdim=True)
        if attention.sinks is not None:
            total = total + (attention.sinks.double()[:, None, None] - largest).exp()
        total = torch.where(total == 0.0, 1.0, total)
        return powers * ((self.summed + shift) * grown).exp(), total

    @property
    def is_right(self) -> bool:
        """Whether this is an online softmax as it should be."""
        return self.relative and self.summed == self.totalled == 1

    @property
    def words(self) -> list[str]:
        """What is wrong with it, in clauses."""
        clauses = [
            f"the {what} so far is {'rescaled twice' if times else 'not rescaled'}"
            for what, times in (
                ("weighted sum", self.summed),
                ("sum of the weights", self.totalled),
            )
            if times != 1
        ]
        if not self.relative:
            clauses.append("exponentials are not relative to the largest logit so far")
        return clauses


def growth(logits: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """How far the maximum up to the end of each key's tile is from that of its row, and that."""
    count = logits.shape[-1]
    ends = ((torch.arange(count) // size + 1) * size - 1).clamp_max(count - 1)
    largest = logits.amax(dim=-1, keepdim=True)
    largest = torch.where(torch.isneginf(largest), 0.0, largest)
    running = logits.cummax(dim=-1).values[..., ends]
    running = torch.where(torch.isneginf(running), largest, running)
    return running - largest, largest


def _divided(attention: golden.Attention, powers: Tensor, total: Tensor) -> Tensor:
    return torch.where(attention.empty[..., None], attention.weights, powers / total)


def tile_statements(reading: Reading) -> Iterator[NamedMistake]:
    """The weighted sum, or the sum of the weights, rescaled a wrong number of times."""
    call, attention = reading.call, reading.attention
    for size in BLOCKS[1:]:
        if reading.sizes.key_length <= size:
            continue
        grown = growth(attention.logits, size)
        for loop in (Loop(size, *how) for how in product(_TIMES, _TIMES, (True, False))):
            if loop.is_right:
                continue
            weights = _divided(attention, *loop.sums_of(call, attention, *grown))
            if bool(torch.isfinite(weights).all()) and reading.agree(reading.weights, weights):
                yield _statement(loop)


def _statement(loop: Loop) -> NamedMistake:
    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        answer = loop.answer(call, attention)
        if loop.relative and not bool(torch.isfinite(answer.weights).all()):
            raise NotExpressible
        return answer

    return statement(
        f"tiles of {loop.size}: {'; '.join(loop.words)}",
        f"with tiles of {loop.size} keys {' and '.join(loop.words)} when the maximum grows",
        "take exponentials less the largest logit so far, and multiply both sums once by "
        "exp(old maximum - new maximum)",
        core=core,
    )
