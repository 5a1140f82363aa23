"""Scaled dot-product attention, as the paper writes it, at any point of ``Semantics``.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(D)) V

Vaswani et al., "Attention Is All You Need", 2017, equation 1. Everything is float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .alibi import alibi_bias
from .alignment import query_positions
from .checks import (
    check_argument,
    check_broadcasts,
    check_size,
    check_tensor,
    check_window,
)
from .logits import ScoreOptions, masked_logits
from .masks import admitted, counted, given_mask
from .normalisation import normalise_heads
from .rotary import rotate_heads
from .semantics import STANDARD, Semantics, scale_value


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One evaluation with its intermediate values, all float64, key/value heads repeated.

    ``query`` and ``key`` are what the dot products are made of; ``given_query`` and ``given_key``
    the same before they are normalised and turned; query i stands at key ``positions[i]``. Where
    ignored keys have no influence, ``key``, ``given_key`` and ``value`` are zero at what no query
    reads. ``alibi`` is the bias by distance, ``sinks [H]`` the given logits of keys without a
    value, each None where there is none. ``scores`` are the scaled dot products, ``capped`` the
    same after the softcap, ``modified`` after ``score_mod``, ``logits`` what enters the softmax,
    ``weights`` what leaves it, each ``[B, H, Lq, Lk]``. ``allowed`` is the table of attended keys
    and ``empty`` marks the rows ``[B, H, Lq]`` that have none. ``semantics`` is the point at which
    all this was evaluated.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    given_query: Tensor
    given_key: Tensor
    positions: Tensor
    bias: Tensor | None
    alibi: Tensor | None
    sinks: Tensor | None
    scale: float
    softcap: float | None
    allowed: Tensor
    empty: Tensor
    scores: Tensor
    capped: Tensor
    modified: Tensor
    logits: Tensor
    weights: Tensor
    output: Tensor
    semantics: Semantics


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    window: tuple[int, int] | None = None,
    sinks: Tensor | None = None,
    semantics: Semantics = STANDARD,
) -> Tensor:
    """Attention over ``query [B, H, Lq, D]``, ``key [B, Hkv, Lk, D]``, ``value [B, Hkv, Lk, Dv]``.

    ``keep`` (bool, True attends) and ``bias`` (added to the scaled logits, finite or -inf) have
    four axes that broadcast to ``[B, H, Lq, Lk]``; ``lengths`` is int64 ``[B]`` or ``[B, Lq]``.
    ``scale`` overrides the point's rule. ``sinks [H]`` are logits, one for each head, that join the
    softmax over the keys like a key that every query attends and whose value is zero: they take
    weight away, and a query without any other key returns zeros whatever its rule. Another softmax
    axis knows none. Returns float64 ``[B, H, Lq, Dv]``.

    Raises ValueError or TypeError that names the argument whose shape or value is wrong.
    """
    return attend(
        query,
        key,
        value,
        keep=keep,
        bias=bias,
        lengths=lengths,
        causal=causal,
        scale=scale,
        softcap=softcap,
        window=window,
        sinks=sinks,
        semantics=semantics,
    ).output


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    window: tuple[int, int] | None = None,
    sinks: Tensor | None = None,
    semantics: Semantics = STANDARD,
) -> Attention:
    """Like :func:`scaled_dot_product_attention`, with every intermediate value."""
    shape = _check_shapes(query, key, value)
    _check_numbers(scale, softcap, window)
    _check_sinks(sinks, shape[1])
    _, num_heads, query_length, key_length = shape
    if bias is not None:
        check_broadcasts(bias, "bias", shape)
        floating = bias.is_floating_point()
        check_argument(floating, "bias", f"has dtype {bias.dtype}, not a floating-point one")
        bias = bias.double()
    masked = any(mask is not None for mask in (keep, lengths, bias))
    causal, counts = counted(semantics, causal=causal, masked=masked, query_length=query_length)
    if not counts:
        keep = lengths = bias = None
    given = given_mask(shape, keep=keep, lengths=lengths, semantics=semantics)
    structure, allowed = admitted(
        shape, given, causal=causal, window=window, semantics=semantics, device=query.device
    )
    attended = allowed if bias is None else allowed & ~torch.isneginf(bias)
    sinks = None if sinks is None or semantics.softmax_axis != "key" else sinks.double()
    positions = query_positions(query_length, key_length, semantics).to(query.device)
    given_query, given_key, value = query.double(), key.double(), value.double()
    query, key = position_heads(given_query, given_key, semantics)
    exact = _excludes_exactly(semantics, softcap)
    unread = _unread(attended) if exact else None
    unchanged = key is given_key
    key = _for_every_head(key, num_heads, unread, semantics)
    given_key = key if unchanged else _for_every_head(given_key, num_heads, unread, semantics)
    value = repeat_heads(value, num_heads, semantics)

    if scale is None:
        scale = scale_value(
            semantics,
            head_size=query.shape[-1],
            value_head_size=value.shape[-1],
            num_heads=num_heads,
        )
    alibi = alibi_bias(num_heads, positions, key_length) if semantics.alibi else None
    steps = masked_logits(
        query,
        key,
        allowed,
        ScoreOptions(scale=scale, bias=bias, alibi=alibi, softcap=softcap),
        semantics,
    )
    if semantics.score_mod is not None:
        attended = attended & ~torch.isneginf(steps.modified)
        unread = _unread(attended) if exact else None
    weights = softmax(steps.logits, semantics.softmax_axis, sinks=sinks)
    if semantics.mask_operation == "multiply-weights":
        weights = weights * allowed
    empty = ~attended.any(dim=-1)
    if unread is None:
        output = weights @ value
    else:
        if sinks is None:
            weights = _fill_empty_rows(weights, empty, structure, semantics)
        output, value = _weigh_exactly(weights, value, attended, empty, unread)
    return Attention(
        query=query,
        key=key,
        value=value,
        given_query=given_query,
        given_key=given_key,
        positions=positions,
        bias=bias,
        alibi=alibi,
        sinks=sinks,
        scale=scale,
        softcap=steps.softcap,
        allowed=attended,
        empty=empty,
        scores=steps.scores,
        capped=steps.capped,
        modified=steps.modified,
        logits=steps.logits,
        weights=weights,
        output=output,
        semantics=semantics,
    )


def position_heads(query: Tensor, key: Tensor, semantics: Semantics) -> tuple[Tensor, Tensor]:
    """Query ``[B, H, Lq, D]`` and key ``[B, H, Lk, D]`` normalised, then turned; float64.

    Which heads they are makes no difference: each is normalised and turned by itself.
    """
    query, key = normalise_heads(query, semantics), normalise_heads(key, semantics)
    if semantics.rotary == "none":
        return query, key
    positions = query_positions(query.shape[-2], key.shape[-2], semantics)
    keys = torch.arange(key.shape[-2])
    return rotate_heads(query, positions, semantics), rotate_heads(key, keys, semantics)


_SOFTMAX_AXES = "batch, head, query, key, none"
_LEAST = torch.finfo(torch.float64).min


def softmax(logits: Tensor, axis: str = "key", *, sinks: Tensor | None = None) -> Tensor:
    """Exponentials over their sum along an axis; a slice of nothing but -inf becomes zeros.

    ``axis`` is one of the choices of ``Semantics.softmax_axis``; raises ValueError for another.
    ``sinks [H]`` are logits that count in the sums over the keys of each head, and nowhere else.
    """
    check_tensor(logits, "logits", "B H Lq Lk")
    if axis == "none":
        return torch.where(torch.isneginf(logits), 0.0, logits)
    axes = {"batch": 0, "head": 1, "query": 2, "key": 3}
    dim = axes.get(axis, -1)
    check_argument(dim >= 0, "axis", f"is {axis!r}, not one of {_SOFTMAX_AXES}")
    if logits.shape[dim] == 0:
        return logits
    largest = logits.amax(dim=dim, keepdim=True)
    sink = None if sinks is None or axis != "key" else sinks.double()[:, None, None]
    if sink is not None:
        largest = torch.maximum(largest, sink)
    largest = largest.clamp_min(_LEAST)  # of nothing but -inf no difference is taken
    exponentials = torch.exp(logits - largest)
    total = exponentials.sum(dim=dim, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - largest)
    # The exponential of the largest is one: a smaller sum is that of nothing but -inf, zero.
    return exponentials / total.clamp_min(1.0)


def repeat_heads(heads: Tensor, num_heads: int, semantics: Semantics = STANDARD) -> Tensor:
    """Give each query head its key/value head: ``[B, Hkv, L, D]`` to ``[B, H, L, D]``."""
    check_tensor(heads, "heads", "B Hkv L D")
    num_kv_heads = heads.shape[1]
    fits = num_kv_heads > 0 and num_heads % num_kv_heads == 0
    check_argument(fits, "heads", f"has {num_kv_heads} heads, which does not divide {num_heads}")
    if num_kv_heads == num_heads:
        return heads
    group = num_heads // num_kv_heads
    if semantics.group_order == "tile":
        return heads.repeat(1, group, 1, 1)
    return heads.repeat_interleave(group, dim=1)


def _for_every_head(
    key: Tensor, num_heads: int, unread: Tensor | None, semantics: Semantics
) -> Tensor:
    """The keys of each query head, those that are ``unread`` zero where they have no influence."""
    key = repeat_heads(key, num_heads, semantics)
    return key if unread is None else key.masked_fill(unread, 0.0)


def zero_unread(tokens: Tensor, read: Tensor) -> Tensor:
    """Zero the keys or values that no query reads: junk must not matter, but 0 * NaN is NaN."""
    return tokens.masked_fill(_unread(read), 0.0)


def _unread(read: Tensor) -> Tensor:
    """The keys that no query reads, of those that each one does: bool ``[B, H, Lk, 1]``."""
    return ~read.any(dim=2).unsqueeze(-1)


def _weigh_exactly(
    weights: Tensor, value: Tensor, attended: Tensor, empty: Tensor, unread: Tensor
) -> tuple[Tensor, Tensor]:
    """The weighted values, and the values without those that no query reads.

    An empty row may read (by its rule) values that no other row may meet.
    """
    read = value.masked_fill(unread, 0.0)
    output = weights @ read
    if not bool(empty.any()):
        return output, read
    of_empty = weights @ zero_unread(value, weights > 0)
    output = torch.where(empty.unsqueeze(-1), of_empty, output)
    return output, zero_unread(value, attended | (weights > 0))


def _excludes_exactly(semantics: Semantics, softcap: float | None) -> bool:
    """Whether an ignored key has exactly no influence, as specified."""
    return (
        semantics.mask_operation in ("replace", "add")
        and semantics.mask_fill == -math.inf
        and semantics.softmax_axis == "key"
        and (softcap is None or not semantics.caps("mask"))
    )


def _fill_empty_rows(
    weights: Tensor, empty: Tensor, structure: Tensor, semantics: Semantics
) -> Tensor:
    """Apply the empty-row rule: zero weights, NaN, or equal weights over some of the keys."""
    key_length = weights.shape[-1]
    rule = semantics.empty_rows
    if rule == "zeros" or not bool(empty.any()):
        return weights
    if rule == "nan":
        return weights.masked_fill(empty.unsqueeze(-1), math.nan)
    if rule == "mean-of-all":
        return torch.where(empty.unsqueeze(-1), 1.0 / max(key_length, 1), weights)
    admitted = structure.double()
    uniform = admitted / admitted.sum(dim=-1, keepdim=True).clamp_min(1.0)
    return torch.where(empty.unsqueeze(-1), uniform, weights)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, int, int, int]:
    check_tensor(query, "query", "B H Lq D")
    check_tensor(key, "key", "B Hkv Lk D")
    check_tensor(value, "value", "B Hkv Lk Dv")
    batch, num_heads, query_length, head_size = query.shape
    num_kv_heads, key_length = key.shape[1], key.shape[2]
    check_size(key, "key", 0, batch, "the batch size of query")
    check_size(key, "key", 3, head_size, "the head size of query")
    check_size(value, "value", 0, batch, "the batch size of query")
    check_size(value, "value", 1, num_kv_heads, "the number of heads of key")
    check_size(value, "value", 2, key_length, "the length of key")
    check_argument(
        num_kv_heads > 0 and num_heads % num_kv_heads == 0,
        "key",
        f"has {num_kv_heads} heads, which does not divide the {num_heads} heads of query",
    )
    return batch, num_heads, query_length, key_length


def _check_sinks(sinks: Tensor | None, num_heads: int) -> None:
    if sinks is None:
        return
    check_tensor(sinks, "sinks", "H")
    check_size(sinks, "sinks", 0, num_heads, "the number of heads of query")
    floating = sinks.is_floating_point()
    check_argument(floating, "sinks", f"has dtype {sinks.dtype}, not a floating-point one")
    known = not bool((sinks.isnan() | sinks.isposinf()).any())
    check_argument(known, "sinks", "has entries that are neither finite nor minus infinity")


def _check_numbers(
    scale: float | None, softcap: float | None, window: tuple[int, int] | None
) -> None:
    if scale is not None:
        check_argument(math.isfinite(scale), "scale", f"is {scale}, not finite")
    if softcap is not None:
        positive = 0 < softcap < math.inf
        check_argument(positive, "softcap", f"is {softcap}, not positive and finite")
    check_window(window)
