"""The error of biases by distance (ALiBi)."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .contract import Contract


def distance_size(attention: golden.Attention) -> Tensor:
    """The largest number that a correct bias by distance may be made of: ``[1, H, Lq, n]``.

    Behind a causal mask ``slope * j``, counted from the first key, and ``slope * (j - Lk + 1)``,
    counted from the last, equal it but for what a row has in common: Press et al.'s own code, BLOOM
    and MPT store these. What stands for no key (a sink) has none.
    """
    length = attention.given_key.shape[-2]
    slopes = golden.alibi_slopes(attention.query.shape[1])[:, None, None]
    keys = torch.arange(length)
    apart = (attention.positions[:, None] - keys).abs()
    farthest = torch.maximum(apart, torch.maximum(keys, length - 1 - keys))
    more = attention.logits.shape[-1] - length
    return torch.nn.functional.pad(slopes * farthest, (0, more)).unsqueeze(0)


def distance_error(attention: golden.Attention, size: Tensor, contract: Contract) -> Tensor:
    """The error of the sum of a score and its bias, worst case: ``[B, H, Lq, Lk]``."""
    sums = model.BIAS_ROUNDINGS * contract.accumulator_roundoff
    stored = model.DISTANCE_STORES * contract.unit_roundoff * (1.0 + contract.unit_roundoff)
    return sums * (attention.modified.abs() + size) + stored * size
