"""Attention in stages, from given heads to the output, as specified.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(D)) V

Vaswani et al., "Attention Is All You Need", 2017, equation 1. ``choices`` has the edits for other
points of ``Semantics``.

Given are the heads ``given_query [B, H, Lq, D]``, ``given_key [B, Hkv, Lk, D]`` and ``given_value
[B, Hkv, Lk, Dv]`` in float64, and the options of a call: ``keep``, ``lengths``, ``given_bias``,
``causal``, ``window``, ``given_scale``, ``softcap``, ``given_sinks``, ``rotary_tables``,
``turned_keys``, ``query_positions``, ``key_positions`` and the learned arguments, documented in
:func:`reference.scaled_dot_product_attention`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor

from .normalisation import split_by_head, temper, weigh
from .program import Program, Rewired, Stage
from .rotary import angles_at


class Sizes(NamedTuple):
    """The sizes of a call after the projections: widths of tokens are not included."""

    batch: int
    num_heads: int
    num_kv_heads: int
    query_length: int
    key_length: int
    head_size: int
    value_head_size: int


def sizes(given_query: Tensor, given_key: Tensor, given_value: Tensor) -> Sizes:
    """The sizes of given heads."""
    batch, num_heads, query_length, head_size = given_query.shape[-4:]
    num_kv_heads, key_length = given_key.shape[-3:-1]
    return Sizes(
        batch, num_heads, num_kv_heads, query_length, key_length, head_size, given_value.shape[-1]
    )


def places_from_last_key(given_query: Tensor, given_key: Tensor) -> Tensor:
    """The key position of each query ``[Lq]``, the last query standing at the last key."""
    last = given_key.shape[-2]
    return torch.arange(last - given_query.shape[-2], last, device=given_query.device)


def ahead(given_key: Tensor, positions: Tensor) -> Tensor:
    """The number of places by which each key lies ahead of each query: int64 ``[Lq, Lk]``."""
    return torch.arange(given_key.shape[-2], device=positions.device) - positions[:, None]


def by_causality(ahead: Tensor, counted: tuple[bool, bool], *, offset: int = 0) -> Tensor:
    """The keys that causality admits: bool ``[Lq, Lk]``."""
    return ahead <= offset if counted[0] else torch.ones_like(ahead, dtype=torch.bool)


def by_window(ahead: Tensor, window: tuple[int, int] | None, *, offset: int = 0) -> Tensor:
    """The keys that the window admits: bool ``[Lq, Lk]``; -1 is no limit on a side."""
    admitted = torch.ones_like(ahead, dtype=torch.bool)
    left, right = (-1, -1) if window is None else window
    if left >= 0:
        admitted = admitted & (ahead >= -left - offset)
    if right >= 0:
        admitted = admitted & (ahead <= right + offset)
    return admitted


def by_mask(
    kept: Tensor | None, lengths: Tensor | None, counted: tuple[bool, bool], given_key: Tensor
) -> Tensor:
    """The keys that mask and lengths admit together: bool, broadcastable to ``[B, H, Lq, Lk]``."""
    device = given_key.device
    admitted = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
    if kept is not None and counted[1]:
        admitted = kept.to(device)
    if lengths is not None and counted[1]:
        per_item = lengths.unsqueeze(1) if lengths.dim() == 1 else lengths
        keys = torch.arange(given_key.shape[-2], device=device)
        admitted = admitted & (keys < per_item.to(device)[:, None, :, None])
    return admitted


def admitted(structure: Tensor, by_mask: Tensor, scores_shape: tuple[int, ...]) -> Tensor:
    """The keys that every given rule admits, additive masks aside: bool ``[B, H, Lq, Lk]``."""
    return (structure & by_mask).expand(scores_shape)


def append_column(
    table: Tensor | None, scores_shape: tuple[int, ...], bias_k: Tensor | None, *, entry: float
) -> Tensor | None:
    """A table of keys with one more column of equal entries, if every query has a memory key."""
    if table is None or bias_k is None:
        return table
    whole = table.expand(*table.shape[:-1], scores_shape[-1])
    return torch.cat([whole, table.new_full((*table.shape[:-1], 1), entry)], dim=-1)


def append_memory(heads: Tensor, memory: Tensor | None) -> Tensor:
    """Heads ``[B, Hkv, Lk, D]`` with a memory ``[Hkv, D]`` behind the last token, if given."""
    if memory is None:
        return heads
    token = memory.unsqueeze(-2).expand(*heads.shape[:-2], 1, -1)
    return torch.cat([heads, token], dim=-2)


def attended(admitted: Tensor, bias: Tensor | None) -> Tensor:
    """The admitted keys that no additive mask hides: bool ``[B, H, Lq, Lk]``."""
    return admitted if bias is None else admitted & ~torch.isneginf(bias)


def unread(read: Tensor) -> Tensor:
    """The keys that no query reads, of a table ``[B, H, Lq, Lk]``: bool ``[B, H, Lk, 1]``."""
    return ~read.any(dim=-2).unsqueeze(-1)


def places_of_queries(positions: Tensor, query_positions: Tensor | None) -> Tensor:
    """The positions of the queries: ``[Lq]``, or ``[B, 1, Lq]`` if a call gives them."""
    return positions if query_positions is None else query_positions.unsqueeze(-2)


def places_of_keys(given_key: Tensor, key_positions: Tensor | None) -> Tensor:
    """The positions of the keys: ``[Lk]`` with the first at 0, or ``[B, 1, Lk]`` as given."""
    if key_positions is not None:
        return key_positions.unsqueeze(-2)
    return torch.arange(given_key.shape[-2], device=given_key.device)


def shared(heads: Tensor, num_heads: int) -> Tensor:
    """Each key/value head once for every query head of its group, side by side."""
    group = num_heads // heads.shape[-3]
    return heads if group == 1 else heads.repeat_interleave(group, dim=-3)


def zero_unread(heads: Tensor, unread: Tensor | None) -> Tensor:
    """Zeros where nobody reads: junk must not matter, but 0 * NaN is NaN."""
    return heads if unread is None else heads.masked_fill(unread, 0.0)


def cap(scores: Tensor, softcap: float | None) -> Tensor:
    """``c tanh(scores / c)``; the scores themselves without a cap."""
    return rescale(squash(scores, softcap), softcap)


def squash(scores: Tensor, softcap: float | None) -> Tensor:
    """``tanh(scores / c)``; the scores themselves without a cap."""
    return scores if softcap is None else torch.tanh(scores / softcap)


def rescale(squashed: Tensor, softcap: float | None) -> Tensor:
    """``c tanh(scores / c)`` of the hyperbolic tangent."""
    return squashed if softcap is None else softcap * squashed


def biased(modified: Tensor, distance_bias: Tensor | None, bias: Tensor | None) -> Tensor:
    """The modified scores plus both biases."""
    if distance_bias is not None:
        modified = modified + distance_bias
    return modified if bias is None else modified + bias


def largest(logits: Tensor, sinks: Tensor | None) -> Tensor:
    """The largest logit of each row ``[B, H, Lq, 1]``, but no less than the smallest finite number.

    Differences from minus infinity would be undefined.
    """
    if logits.shape[-1] == 0:
        most = logits.new_full((*logits.shape[:-1], 1), -math.inf)
    else:
        most = logits.amax(dim=-1, keepdim=True)
    most = most if sinks is None else torch.maximum(most, sinks[..., None, None])
    return most.clamp_min(torch.finfo(most.dtype).min)


def total(exponentials: Tensor, largest: Tensor, sinks: Tensor | None) -> Tensor:
    """The sum of each row's exponentials and of its sink's: ``[B, H, Lq, 1]``.

    The largest logit has an exponential of one: a sum of zero means minus infinity throughout.
    """
    sums = exponentials.sum(dim=-1, keepdim=True)
    if sinks is not None:
        sums = sums + torch.exp(sinks[..., None, None] - largest)
    return torch.where(sums == 0.0, 1.0, sums)


def weighed(
    weights: Tensor, value: Tensor, shared_value: Tensor, allowed: Tensor, empty: Tensor
) -> Tensor:
    """The weighted values; an empty row may read values that other rows must not meet."""
    if not bool(empty.any()):
        return weights @ value
    output = weights @ zero_unread(shared_value, unread(allowed))
    of_empty = weights @ zero_unread(shared_value, unread(weights.abs() > 0))
    return torch.where(empty.unsqueeze(-1), of_empty, output)


_SOFTMAX: Final = (
    Stage("sinks", "H", lambda given_sinks: given_sinks),
    Stage("largest", "BHQ1", largest),
    Stage("exponents", "BHQK", lambda logits, largest: logits - largest),
    Stage("exponentials", "BHQK", lambda exponents: exponents.exp()),
    Stage("total", "BHQ1", total),
    Stage("shares", "BHQK", lambda exponentials, total: exponentials / total),
)
_TABLES: Final = (
    # Whether causality, and whether the mask, count in a call that gives them.
    Stage("counted", "", lambda causal: (causal, True)),
    # Places in memory, for causality and windows; and positions.
    Stage("positions", "Q", places_from_last_key),
    Stage("query_places", "Q", places_of_queries),
    Stage("key_places", "K", places_of_keys),
    Stage("ahead", "QK", ahead),
    Stage("by_causality", "QK", by_causality),
    Stage("by_window", "QK", by_window),
    Stage("structure", "QK", lambda by_causality, by_window: by_causality & by_window),
    Stage(
        "scores_shape", "", lambda given_query, ahead: (*given_query.shape[:-2], *ahead.shape[-2:])
    ),
    Stage("kept", "BHQK", lambda keep: keep),
    Stage("by_mask", "BHQK", by_mask),
    Stage("own_admitted", "BHQK", admitted),
    Stage(
        "admitted",
        "BHQK",
        Rewired(partial(append_column, entry=True), ("own_admitted", "scores_shape", "bias_k")),
    ),
    Stage("counted_bias", "BHQK", lambda given_bias, counted: given_bias if counted[1] else None),
    Stage(
        "bias",
        "BHQK",
        Rewired(partial(append_column, entry=0.0), ("counted_bias", "scores_shape", "bias_k")),
    ),
    Stage("attended", "BHQK", attended),
)
_FORWARD: Final = (
    *_TABLES,
    Stage("sizes", "", sizes),
    Stage("normalised_query", "BHQD", lambda given_query: given_query),
    Stage("normalised_key", "BGKD", lambda given_key: given_key),
    # Learned factors behind the norm, and one of all scores of a head.
    Stage("query_weight", "HD", Rewired(split_by_head, ("query_norm_weight", "given_query"))),
    Stage("key_weight", "GD", Rewired(split_by_head, ("key_norm_weight", "given_key"))),
    Stage("weighed_query", "BHQD", Rewired(weigh, ("normalised_query", "query_weight"))),
    Stage("weighed_key", "BGKD", Rewired(weigh, ("normalised_key", "key_weight"))),
    Stage("tempered_query", "BHQD", Rewired(temper, ("weighed_query", "temperature"))),
    # One for each turned pair of channels; None without rotary positions.
    Stage("frequencies", "R", lambda: None),
    Stage(
        "query_angles", "QR", Rewired(angles_at, ("query_places", "frequencies", "rotary_tables"))
    ),
    Stage("key_angles", "KR", Rewired(angles_at, ("key_places", "frequencies", "rotary_tables"))),
    # Multiplied by the length of the table entries, if a call gives tables.
    Stage("stretched_query", "BHQD", lambda tempered_query: tempered_query),
    Stage("stretched_key", "BGKD", lambda weighed_key: weighed_key),
    Stage("query", "BHQD", lambda stretched_query: stretched_query),
    Stage("turned_key", "BGKD", lambda stretched_key: stretched_key),
    # With the keys of a cache that are given turned.
    Stage("joined_key", "BGKD", lambda turned_key: turned_key),
    Stage("every_key", "BGKD", Rewired(append_memory, ("joined_key", "bias_k"))),
    Stage("shared_key", "BHKD", lambda every_key, sizes: shared(every_key, sizes.num_heads)),
    Stage("value_heads", "BGKV", lambda given_value: given_value),
    Stage("every_value", "BGKV", Rewired(append_memory, ("value_heads", "bias_v"))),
    Stage("shared_value", "BHKV", lambda every_value, sizes: shared(every_value, sizes.num_heads)),
    Stage("unread_keys", "BHK1", lambda attended: unread(attended)),
    Stage("key", "BHKD", lambda shared_key, unread_keys: zero_unread(shared_key, unread_keys)),
    Stage("default_scale", "", lambda sizes: max(sizes.head_size, 1) ** -0.5),
    Stage(
        "scale",
        "",
        lambda given_scale, default_scale: default_scale if given_scale is None else given_scale,
    ),
    Stage("products", "BHQK", lambda query, key: query @ key.mT),
    Stage("scores", "BHQK", lambda products, scale: scale * products),
    Stage("squashed", "BHQK", squash),
    Stage("capped", "BHQK", rescale),
    Stage("modified", "BHQK", lambda capped: capped),
    Stage("slopes", "BH", lambda: None),
    Stage("buckets", "QK", lambda: None),
    Stage("distance_bias", "BHQK", lambda: None),
    Stage("biased", "BHQK", biased),
    Stage("masked", "BHQK", lambda biased, admitted: biased.masked_fill(~admitted, -math.inf)),
    Stage("logits", "BHQK", lambda masked: masked),
    *_SOFTMAX,
    Stage("allowed", "BHQK", lambda attended: attended),
    Stage("empty", "BHQ", lambda allowed: ~allowed.any(dim=-1)),
    Stage("weights", "BHQK", lambda shares: shares),
    Stage("unread_values", "BHK1", lambda allowed, weights: unread(allowed | (weights.abs() > 0))),
    Stage(
        "value",
        "BHKV",
        lambda shared_value, unread_values: zero_unread(shared_value, unread_values),
    ),
    Stage("output", "BHQV", weighed),
)
SOFTMAX: Final = Program.unedited(*_SOFTMAX)
TABLES: Final = Program.unedited(*_TABLES)
FORWARD: Final = Program.unedited(*_FORWARD)
