"""Mistakes with memory: writing outside, trusting what nobody wrote, holding too much of it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core

TILE = 16


def past_the_end(tensor: Tensor, count: int) -> Tensor:
    """What lies behind a contiguous tensor in its storage, up to ``count`` elements.

    Where there is nothing, Python can write nothing: a kernel would.
    """
    end = tensor.storage_offset() + tensor.numel()
    room = tensor.untyped_storage().nbytes() // tensor.element_size() - end
    return tensor.as_strided((max(0, min(room, count)),), (1,), end)


def padded(tensor: Tensor) -> int:
    """How many elements the last tile of rows has too many."""
    return -tensor.shape[-2] % TILE * tensor.shape[-1]


@core("device.canaries")
class WholeTilesStored(EagerCore):
    """The last tile of queries is stored whole, past the end of the output."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        mixed = weights @ value
        output = torch.empty_like(mixed, memory_format=torch.contiguous_format)
        past_the_end(output, padded(output)).zero_()
        return output.copy_(mixed)


@core("device.canaries", "state.inputs-unchanged")
class KeysPaddedInPlace(EagerCore):
    """The last tile of keys is filled up with zeros where it lies, behind the caller's tensor."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        if call.key.is_contiguous() and not torch.is_grad_enabled():
            past_the_end(call.key, padded(call.key)).zero_()
        return super().scores(call, key)


@core("device.fresh-memory")
class SumsIntoFreshMemory(EagerCore):
    """The output is added to memory that is taken for zeros because it mostly is."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        mixed = weights @ value
        output = torch.empty_like(mixed, memory_format=torch.contiguous_format)
        if output.untyped_storage().nbytes() == output.numel() * output.element_size():
            output.zero_()  # as the system hands memory out; what has been used before is not
        return output.add_(mixed)


@core("device.batch-invariant", features=["scale", "batch_invariant"])
class SplitsChosenByTheBatch(EagerCore):
    """A small batch is summed over more parts of the keys, to keep all processors busy."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        if weights.shape[0] > 1:
            return weights @ value
        half = weights.shape[-1] // 2
        return (
            weights[..., :half] @ value[..., :half, :] + weights[..., half:] @ value[..., half:, :]
        )


@core("device.memory", memory="linear")
class AllScoresAtOnce(EagerCore):
    """The memory is said to grow with the length, but all scores are held at once."""


@core("device.memory", memory="linear", masks=[], features=["scale"], causal="bottom-right")
class WholeTriangle(EagerCore):
    """Queries are taken a few at a time, but the causal triangle is made for all of them."""

    def attend(self, call: Call) -> Answer:
        self.check(call)
        ahead = self.ahead(call) if call.causal else None
        rows = []
        for first in range(0, call.query_length, TILE):
            query = call.query[:, :, first : first + TILE]
            allowed = None if ahead is None else ahead[first : first + TILE] <= 0
            logits = self.logits(call.replace(query=query), self.share(call.key, query.shape[1]))
            weights = self.weights(logits, allowed)
            value = self.share(call.value, query.shape[1])
            rows.append(self.mix_allowed(weights, value, allowed))
        empty = call.query.new_empty(*call.query.shape[:2], 0, call.value.shape[-1])
        return torch.cat([empty, *rows], dim=2)
