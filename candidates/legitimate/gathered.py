"""Hidden keys are taken out instead of being masked: not even a NaN of theirs is seen."""

from __future__ import annotations

import torch
from torch import Tensor

from ._kit import admitted, check, core, factor


@core(expected_failures=[])
def kept_keys_of_each_row(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """``index_select`` of the kept keys, row by row; a row without any stays zeros."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal).expand(*query.shape[:3], key.shape[2])
    output = query.new_zeros(*query.shape[:3], value.shape[-1])
    for item, head, row in table.any(dim=-1).nonzero().tolist():
        kept = table[item, head, row].nonzero().squeeze(-1)
        logits = key[item, head].index_select(0, kept) @ query[item, head, row]
        weights = torch.softmax(logits * factor(query, scale), dim=0)
        output[item, head, row] = weights @ value[item, head].index_select(0, kept)
    return output


@core(masks=["lengths"], mask_shapes=["B"], causal=None, expected_failures=[])
def sequences_cut_to_length(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    lengths: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Each item cut to its own length, as kernels for sequences of varied length do it."""
    check(query, key, value)
    ends = [key.shape[2]] * key.shape[0] if lengths is None else lengths.tolist()
    output = query.new_zeros(*query.shape[:3], value.shape[-1])
    for item, end in enumerate(ends):
        if end:
            logits = query[item] @ key[item, :, :end].mT * factor(query, scale)
            output[item] = logits.softmax(dim=-1) @ value[item, :, :end]
    return output
