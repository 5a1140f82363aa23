"""Windows and shared heads in the ways that kernels have them: bands, blocks, loops, views."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ._kit import NAN_HIDDEN, NAN_RETURNED, NAN_SPREADS, admitted, check, core, factor, soften

BLOCK = 4


def band(query_length: int, key_length: int, window: tuple[int, int] | None) -> Tensor:
    """What a window admits, as a matrix between two diagonals."""
    table = torch.ones(query_length, key_length, dtype=torch.bool)
    left, right = (-1, -1) if window is None else window
    shift = key_length - query_length
    table = table if right < 0 else table.tril(shift + right)
    return table if left < 0 else table.triu(shift - left)


@core(features=["scale", "window"], expected_failures=[NAN_SPREADS, NAN_RETURNED, NAN_HIDDEN])
def additive_band(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
) -> Tensor:
    """Mask, flag and window become one additive table of zeros and minus infinities."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    table = table & band(query.shape[2], key.shape[2], window)
    added = torch.zeros(table.shape, dtype=query.dtype).masked_fill(~table, -torch.inf)
    weights = torch.softmax(query @ key.mT * factor(query, scale) + added, dim=-1)
    return weights.nan_to_num(0.0) @ value


@core(features=["scale", "window", "gqa"], masks=[], expected_failures=[])
def blocks_of_a_band(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
) -> Tensor:
    """Blocks of queries slice the keys that any of them may see; the rest is never touched."""
    check(query, key, value)
    heads, length = query.shape[1], query.shape[2]
    key, value = (part.repeat_interleave(heads // part.shape[1], 1) for part in (key, value))
    table = admitted(query, key, None, causal=causal) & band(length, key.shape[2], window)
    rows = []
    for start in range(0, length, BLOCK):
        seen = table[start : start + BLOCK]
        columns = seen.any(dim=0).nonzero().flatten()
        first, last = (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, 0)
        logits = query[:, :, start : start + BLOCK] @ key[:, :, first:last].mT
        part = soften(logits * factor(query, scale), seen[:, first:last])
        rows.append(part @ value[:, :, first:last])
    return torch.cat(rows, dim=2) if rows else query.new_zeros(*query.shape[:3], value.shape[-1])


@core(features=["window"], causal="top-left")
def band_from_the_first_key(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
) -> Tensor:
    """Diagonal and window start at the first query and key: torch's kernel gets the table."""
    check(query, key, value)
    left, right = (-1, -1) if window is None else window
    ahead = torch.arange(key.shape[2]) - torch.arange(query.shape[2]).unsqueeze(-1)
    table = (ahead <= 0) | (not causal)
    table = table & ((ahead >= -left) | (left < 0)) & ((ahead <= right) | (right < 0))
    table = admitted(query, key, keep, causal=False) & table
    answer = functional.scaled_dot_product_attention(query, key, value, attn_mask=table)
    return answer.masked_fill(~table.any(-1, keepdim=True), 0.0)


@core(features=["scale", "gqa", "softcap"])
def heads_in_a_loop(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """One query head after the other looks its key/value head up."""
    check(query, key, value)
    group = query.shape[1] // key.shape[1]
    table = admitted(query, key, keep, causal=causal).expand(*query.shape[:3], key.shape[2])
    answers = []
    for head in range(query.shape[1]):
        logits = query[:, head] @ key[:, head // group].mT * factor(query, scale)
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        answers.append(soften(logits, table[:, head]) @ value[:, head // group])
    return torch.stack(answers, dim=1)


@core(features=["scale", "gqa"])
def groups_as_longer_queries(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The query heads of a group are laid one behind the other, as more rows of one head."""
    check(query, key, value)
    heads, length = query.shape[1:3]
    table = admitted(query, key, keep, causal=causal).expand(*query.shape[:3], key.shape[2])
    shape = (query.shape[0], key.shape[1], heads // key.shape[1] * length)
    logits = query.reshape(*shape, query.shape[-1]) @ key.mT * factor(query, scale)
    weights = soften(logits, table.reshape(*shape, key.shape[2]))
    return (weights @ value).reshape(query.shape[0], heads, length, value.shape[-1])


@core(features=["gqa"], geometry={"num_heads": 6, "num_kv_heads": 2})
def six_heads_on_two(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """A kernel that is compiled for six heads which share two."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    key, value = (part[:, :, None].expand(-1, -1, 3, -1, -1).flatten(1, 2) for part in (key, value))
    return soften(query @ key.mT / query.shape[-1] ** 0.5, table) @ value
