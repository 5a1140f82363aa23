"""Online softmaxes: tiles of keys whose sums are rescaled too seldom or too often.

A kernel that goes over the keys tile by tile keeps the largest logit so far, and multiplies what it
has added up by ``exp(old - new)`` whenever that grows (Milakov and Gimelshein, 2018).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import BLOCKS, weighing
from .reading import Reading
from .statement import statement

_TIMES: Final = {0: "not", 1: "once", 2: "twice"}


def tile_statements(reading: Reading) -> Iterator[NamedMistake]:
    """The weighted sum, or the sum of the weights, rescaled a wrong number of times."""
    for size, summed, totalled in product(BLOCKS[1:], _TIMES, _TIMES):
        if (summed, totalled) == (1, 1) or reading.sizes.key_length <= size:
            continue
        weights = _weights(reading.attention, size, summed, totalled)
        if bool(torch.isfinite(weights).all()) and reading.agree(reading.weights, weights):
            yield _statement(size, summed, totalled)


def _weights(attention: golden.Attention, size: int, summed: int, totalled: int) -> Tensor:
    """The weights of keys whose tile is rescaled so often in the weighted sum and in the total."""
    logits = attention.logits
    count = logits.shape[-1]
    ends = ((torch.arange(count) // size + 1) * size - 1).clamp_max(count - 1)
    largest = logits.amax(dim=-1, keepdim=True)
    largest = torch.where(torch.isneginf(largest), 0.0, largest)
    running = logits.cummax(dim=-1).values[..., ends]
    grown = torch.where(torch.isneginf(running), 0.0, running - largest)
    powers = (logits - largest).exp()
    total = (powers * ((totalled - 1) * grown).exp()).sum(dim=-1, keepdim=True)
    if attention.sinks is not None:
        total = total + (attention.sinks.double()[:, None, None] - largest).exp()
    weights = powers * ((summed - 1) * grown).exp() / total
    return torch.where(attention.empty[..., None], attention.weights, weights)


def _statement(size: int, summed: int, totalled: int) -> NamedMistake:
    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        weights = _weights(attention, size, summed, totalled)
        if not bool(torch.isfinite(weights).all()):
            raise NotExpressible
        return weighing(attention, weights)

    parts = [
        f"the {what} so far is {'rescaled twice' if times else 'not rescaled'}"
        for what, times in (("weighted sum", summed), ("sum of the weights", totalled))
        if times != 1
    ]
    return statement(
        f"tiles of {size}: {'; '.join(parts)}",
        f"with tiles of {size} keys {' and '.join(parts)} when the maximum grows",
        "multiply both sums once by exp(old maximum - new maximum)",
        core=core,
    )
