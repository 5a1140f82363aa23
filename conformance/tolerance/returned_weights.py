"""The bound of the attention weights themselves, for candidates that return them."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from conformance._golden import golden

from .contract import Contract
from .core import core_bound


def weights_bound(
    core: golden.Attention,
    contract: Contract,
    *,
    query_error: Tensor | None = None,
    key_error: Tensor | None = None,
) -> Tensor:
    """How far returned weights ``[B, H, Lq, Lk]`` may be from ``core.weights``.

    The weights are the output for values that are unit vectors, so the bound of the core for those
    values is the bound of the weights; but whoever merges partial results has none to return.
    """
    length = core.weights.shape[-1]
    unit_vectors = torch.eye(length, dtype=torch.float64).expand(
        *core.value.shape[:2], length, length
    )
    as_output = dataclasses.replace(core, value=unit_vectors, output=core.weights)
    whole = dataclasses.replace(contract, merge_roundings=0.0)
    return core_bound(as_output, whole, query_error=query_error, key_error=key_error)
