"""Context parallelism by gathering all keys: each rank attends from its own queries.

Grattafiori et al., "The Llama 3 Herd of Models", 2024 (arXiv:2407.21783), section 3.3.2.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

import conformance

from ._communication import gathered, matching_lengths

PARTS = conformance.Ranks(
    2, query="sequence", key="sequence", value="sequence", output="sequence", mask="sequence"
)


@conformance.core(
    masks=["keep"],
    causal="bottom-right",
    empty_rows="zeros",
    features=["scale"],
    ranks=PARTS,
    expected_failures={
        "mask.no-leak-nonfinite": "a weight of zero does not stop a NaN in a value: 0 * NaN is NaN",
    },
)
def all_gather_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attend from this rank's queries ``[B, H, Lq, D]`` to the keys of all ranks."""
    queries, keys = matching_lengths(query, key, value)
    key, value = gathered(key, keys), gathered(value, keys)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    seen = torch.ones(query.shape[2], sum(keys), dtype=torch.bool)
    if causal:
        first = sum(queries[: dist.get_rank()])
        rows = torch.arange(first, first + query.shape[2])[:, None]
        seen = torch.arange(sum(keys)) - rows <= sum(keys) - sum(queries)
    if keep is not None:
        seen = seen & keep
    logits = (query * factor) @ key.transpose(-1, -2)
    # No -inf: a row without keys would be NaN on its way back.
    logits = logits.masked_fill(~seen, torch.finfo(logits.dtype).min)
    weights = logits.softmax(-1).masked_fill(~seen, 0.0)
    return weights @ value
