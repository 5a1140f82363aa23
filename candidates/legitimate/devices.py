"""Cores that promise what only some can: linear memory, bits that a batch does not change."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ._kit import NAN_HIDDEN, ODD_SCALE_UNDER_CAUSALITY, admitted, check, core, factor, soften

BLOCK = 128


@core(features=["scale", "batch_invariant"])
def each_item_by_itself(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Every item is copied to memory of its own and attended alone, whatever the batch."""
    check(query, key, value)
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        msg = "query, key and value have different batches"
        raise ValueError(msg)
    table = admitted(query, key, keep, causal=causal).expand(*query.shape[:3], key.shape[2])
    outputs = [query.new_empty(0, *query.shape[1:3], value.shape[-1])]
    for item in range(query.shape[0]):
        scores = query[item : item + 1].clone() @ key[item : item + 1].clone().mT
        weights = soften(scores * factor(query, scale), table[item : item + 1])
        outputs.append(weights @ value[item : item + 1].clone())
    return torch.cat(outputs)


@core(features=["scale"], memory="linear", masks=[], expected_failures=[])
def blocks_of_queries(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """A few queries at a time, with the causal rows of these alone: memory grows linearly."""
    check(query, key, value)
    shift = key.shape[2] - query.shape[2]
    keys = torch.arange(key.shape[2], device=query.device)
    outputs = [query.new_empty(*query.shape[:2], 0, value.shape[-1])]
    for first in range(0, query.shape[2], BLOCK):
        rows = query[:, :, first : first + BLOCK]
        last = torch.arange(first, first + rows.shape[2], device=query.device) + shift
        table = keys <= last[:, None] if causal else keys >= 0
        outputs.append(soften(rows @ key.mT * factor(query, scale), table) @ value)
    return torch.cat(outputs, dim=2)


@core(
    masks=[],
    features=["scale"],
    causal="top-left",
    expected_failures=[NAN_HIDDEN, ODD_SCALE_UNDER_CAUSALITY],
    memory="linear",
    geometry={"value_head_size": "head_size"},
)
def torchs_own_choice(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Torch's operator, whose flash kernel holds a tile at a time."""
    check(query, key, value)
    returned: Tensor = functional.scaled_dot_product_attention(
        query, key, value, is_causal=causal, scale=scale
    )
    return returned


@core(masks=[], features=["scale", "graph_capture"], empty_rows="nan", expected_failures=[])
def nothing_decided_by_values(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Products and one softmax, without a look at any number: a graph can hold it."""
    check(query, key, value)
    logits = query @ key.mT * factor(query, scale)
    if causal:
        ones = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        logits = logits.masked_fill(~ones.tril(key.shape[2] - query.shape[2]), -torch.inf)
    return logits.softmax(-1) @ value
