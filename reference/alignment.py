"""The places of queries among the keys: the origin of causality, windows and positions."""

from __future__ import annotations

import torch
from torch import Tensor

from .semantics import Semantics


def query_positions(query_length: int, key_length: int, semantics: Semantics) -> Tensor:
    """The key position of each query, int64 ``[Lq]``; key j stands at j.

    Query i stands at ``i + Lk - Lq`` under bottom-right alignment (the last query at the last key)
    and at ``i`` under top-left.
    """
    first = key_length - query_length if semantics.causal_alignment == "bottom-right" else 0
    return torch.arange(first, first + query_length)
