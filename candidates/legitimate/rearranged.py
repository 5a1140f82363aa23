"""Cores that lay queries, keys, items or heads out in another order, and undo it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ._kit import admitted, check, core, factor, soften

TILE = 8


def _attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor, scale: float) -> Tensor:
    return soften(query @ key.mT * scale, table) @ value


def _full(table: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A table for every item and head ``[B, H, Lq, Lk]``."""
    return table.expand(*query.shape[:2], query.shape[2], key.shape[2])


@core()
def keys_sorted_by_their_sum(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The keys of each head in the order of their sums, with their columns of the table."""
    check(query, key, value)
    order = key.detach().sum(-1).argsort(dim=-1)  # [B, H, Lk]
    table = _full(admitted(query, key, keep, causal=causal), query, key)
    return _attend(
        query,
        key.gather(2, order[..., None].expand_as(key)),
        value.gather(2, order[..., None].expand_as(value)),
        table.gather(3, order[:, :, None].expand_as(table)),
        factor(query, scale),
    )


@core()
def last_query_first(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Queries and keys turned round, so that the triangle is the other one."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    table = table.expand(*table.shape[:-2], query.shape[2], key.shape[2]).flip(-1, -2)
    answer = _attend(query.flip(2), key.flip(2), value.flip(2), table, factor(query, scale))
    return answer.flip(2)


@core()
def keys_padded_to_a_tile(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Zero keys fill the last tile of eight; the table hides them."""
    check(query, key, value)
    more = -key.shape[2] % TILE
    table = admitted(query, key, keep, causal=causal)
    table = table.expand(*table.shape[:-1], key.shape[2])
    key, value = (functional.pad(x, (0, 0, 0, more)) for x in (key, value))
    return _attend(query, key, value, functional.pad(table, (0, more)), factor(query, scale))


@core()
def queries_padded_to_a_tile(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Rows of zeros fill the last tile of eight; their answers are cut off."""
    check(query, key, value)
    length, more = query.shape[2], -query.shape[2] % TILE
    table = admitted(query, key, keep, causal=causal)
    table = functional.pad(table.expand(*table.shape[:-2], length, -1), (0, 0, 0, more))
    answer = _attend(
        functional.pad(query, (0, 0, 0, more)), key, value, table, factor(query, scale)
    )
    return answer[:, :, :length]


@core(dtypes=["float32", "bfloat16", "float16"], accumulate="float32")
def channels_padded_to_a_tile(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Zero channels up to a multiple of eight, as kernels with vector loads want them."""
    check(query, key, value)
    table, size, dtype = admitted(query, key, keep, causal=causal), value.shape[-1], query.dtype
    scale = factor(query, scale)
    query, key, value = (
        functional.pad(x.float(), (0, -x.shape[-1] % TILE)) for x in (query, key, value)
    )
    return _attend(query, key, value, table, scale)[..., :size].to(dtype)


@core()
def items_in_one_sequence(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """All items behind each other as one; the table admits the blocks on the diagonal alone."""
    check(query, key, value)
    items = query.shape[0]
    if not items:
        return query.new_zeros(*query.shape[:3], value.shape[-1])
    table = _full(admitted(query, key, keep, causal=causal), query, key)
    blocks = torch.stack(
        [
            torch.block_diag(*(table[b, h].int() for b in range(items)))
            for h in range(query.shape[1])
        ]
    ).bool()  # [H, B*Lq, B*Lk]
    query_row, key_row, value_row = (x.transpose(0, 1).flatten(1, 2) for x in (query, key, value))
    answer = _attend(query_row, key_row, value_row, blocks, factor(query, scale))
    apart: Tensor = answer.unflatten(1, (items, -1)).transpose(0, 1)
    return apart


@core()
def heads_in_blocks_of_channels(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Each head's queries have zeros in the channels of the others: one product for all heads."""
    check(query, key, value)
    heads, length = query.shape[1], query.shape[2]
    apart = torch.eye(heads, dtype=query.dtype)[:, None, :, None]  # [H, 1, H, 1]
    spread = (query[:, :, :, None, :] * apart).flatten(3).flatten(1, 2)  # [B, H*Lq, H*D]
    scores = spread @ key.transpose(1, 2).flatten(2).mT * factor(query, scale)
    scores = scores.unflatten(1, (heads, length))
    return soften(scores, admitted(query, key, keep, causal=causal)) @ value


@core(masks=["lengths"], mask_shapes=["B"], causal=None)
def items_sorted_by_length(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    lengths: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """The longest item first, as packed sequences of recurrent networks want it."""
    check(query, key, value)
    if not len(query) == len(key) == len(value):
        msg = f"there are {len(query)} items of queries, {len(key)} of keys, {len(value)} of values"
        raise ValueError(msg)
    if lengths is None:
        lengths = torch.full((query.shape[0],), key.shape[2])
    order = lengths.argsort(descending=True, stable=True)
    sorted_lengths = lengths[order]
    longest = int(sorted_lengths.max()) if len(order) else 0
    table = torch.arange(longest) < sorted_lengths[:, None, None, None]
    key, value = key[order][:, :, :longest], value[order][:, :, :longest]
    answer = _attend(query[order], key, value, table, factor(query, scale))
    return answer[order.argsort()]


@core(expected_failures=[])
def edges_of_a_graph(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """A list of admitted pairs, as graph networks have it: scattered maxima and sums."""
    check(query, key, value)
    if query.shape[:2] != key.shape[:2] or key.shape[:2] != value.shape[:2]:
        msg = (
            f"queries, keys and values are of {query.shape[:2]}, {key.shape[:2]}, {value.shape[:2]}"
        )
        raise ValueError(msg)
    table = _full(admitted(query, key, keep, causal=causal), query, key)
    item, head, row, column = table.nonzero(as_tuple=True)
    place = (item * query.shape[1] + head) * query.shape[2] + row
    rows = query.shape[0] * query.shape[1] * query.shape[2]
    logits = (query[item, head, row] * key[item, head, column]).sum(-1) * factor(query, scale)
    largest = logits.new_full((rows,), -torch.inf).scatter_reduce(0, place, logits.detach(), "amax")
    weights = (logits - largest[place]).exp()
    total = weights.new_zeros(rows).index_add(0, place, weights)
    share = (weights / total[place])[:, None] * value[item, head, column]
    answer = value.new_zeros(rows, value.shape[-1]).index_add(0, place, share)
    return answer.reshape(*query.shape[:3], value.shape[-1])


@core(features=["scale", "kv_cache"])
def cache_in_a_ring(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Tensor:
    """Old and new tokens lie in a ring that starts in its middle; the table is turned alike."""
    if past_key is not None and past_value is not None:
        key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    table = table.expand(*table.shape[:-1], key.shape[2])
    start = key.shape[2] // 2 + 1
    key, value = (x.roll(start, dims=2) for x in (key, value))
    return _attend(query, key, value, table.roll(start, dims=-1), factor(query, scale))


@core()
def prompt_in_chunks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Three queries at a time; with the flag a chunk slices the keys up to its last query."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    table = table.expand(*table.shape[:-2], query.shape[2], key.shape[2])
    behind, chunk, parts = key.shape[2] - query.shape[2], 3, []
    for start in range(0, query.shape[2], chunk):
        stop = min(start + chunk, query.shape[2])
        seen = max(behind + stop, 0) if causal else key.shape[2]
        part = _attend(
            query[:, :, start:stop],
            key[:, :, :seen],
            value[:, :, :seen],
            table[..., start:stop, :seen],
            factor(query, scale),
        )
        parts.append(part)
    return torch.cat(parts, 2) if parts else query.new_zeros(*query.shape[:3], value.shape[-1])
