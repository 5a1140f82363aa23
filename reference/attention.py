"""Scaled dot-product attention, as the paper writes it, at any point of ``Semantics``.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(D)) V

Vaswani et al., "Attention Is All You Need", 2017, equation 1. Everything is float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import (
    check_argument,
    check_broadcasts,
    check_size,
    check_tensor,
    check_window,
)
from .masks import combine, given_mask, structural_mask
from .semantics import STANDARD, Semantics, scale_value


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One evaluation with its intermediate values, all float64, key/value heads repeated.

    Where ignored keys have no influence, ``key`` and ``value`` are zero at what no query reads.
    ``scores`` are the scaled dot products, ``capped`` the same after the softcap, ``logits`` what
    enters the softmax, ``weights`` what leaves it, each ``[B, H, Lq, Lk]``. ``allowed`` is the
    table of attended keys and ``empty`` marks the rows ``[B, H, Lq]`` that have none.
    ``semantics`` is the point at which all this was evaluated.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    scale: float
    softcap: float | None
    allowed: Tensor
    empty: Tensor
    scores: Tensor
    capped: Tensor
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
    semantics: Semantics = STANDARD,
) -> Tensor:
    """Attention over ``query [B, H, Lq, D]``, ``key [B, Hkv, Lk, D]``, ``value [B, Hkv, Lk, Dv]``.

    ``keep`` (bool, True attends) and ``bias`` (added to the scaled logits, finite or -inf) have
    four axes that broadcast to ``[B, H, Lq, Lk]``; ``lengths`` is int64 ``[B]`` or ``[B, Lq]``.
    ``scale`` overrides the point's rule. Returns float64 ``[B, H, Lq, Dv]``.

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
    semantics: Semantics = STANDARD,
) -> Attention:
    """Like :func:`scaled_dot_product_attention`, with every intermediate value."""
    shape = _check_shapes(query, key, value)
    _check_numbers(scale, softcap, window)
    _, num_heads, query_length, key_length = shape
    if bias is not None:
        check_broadcasts(bias, "bias", shape)
        floating = bias.is_floating_point()
        check_argument(floating, "bias", f"has dtype {bias.dtype}, not a floating-point one")
        bias = bias.double()
    structure = structural_mask(
        query_length, key_length, causal=causal, window=window, semantics=semantics
    ).to(query.device)
    given = given_mask(shape, keep=keep, lengths=lengths, semantics=semantics)
    allowed = combine(structure, given.to(query.device), semantics).expand(shape)
    attended = allowed if bias is None else allowed & ~torch.isneginf(bias)
    query, key, value = query.double(), key.double(), value.double()
    key = repeat_heads(key, num_heads, semantics)
    value = repeat_heads(value, num_heads, semantics)
    exact = _excludes_exactly(semantics, softcap)
    if exact:
        key = zero_unread(key, attended)

    if scale is None:
        scale = scale_value(
            semantics,
            head_size=query.shape[-1],
            value_head_size=value.shape[-1],
            num_heads=num_heads,
        )
    scores = _scores(query, key, bias, scale, semantics)
    capped, logits = _logits(scores, bias, allowed, softcap, semantics)
    weights = softmax(logits, semantics.softmax_axis)
    if semantics.mask_operation == "multiply-weights":
        weights = weights * allowed
    empty = ~attended.any(dim=-1)
    if exact:
        weights = _fill_empty_rows(weights, empty, structure, semantics)
        output = _weigh_exactly(weights, value, attended, empty)
        value = zero_unread(value, attended | (weights > 0))
    else:
        output = weights @ value
    return Attention(
        query=query,
        key=key,
        value=value,
        bias=bias,
        scale=scale,
        softcap=softcap,
        allowed=attended,
        empty=empty,
        scores=scores,
        capped=capped,
        logits=logits,
        weights=weights,
        output=output,
        semantics=semantics,
    )


def softmax(logits: Tensor, axis: str = "key") -> Tensor:
    """Exponentials over their sum along an axis; a slice of nothing but -inf becomes zeros.

    ``axis`` is one of the choices of ``Semantics.softmax_axis``; raises ValueError for another.
    """
    check_tensor(logits, "logits", "B H Lq Lk")
    axes = {"batch": 0, "head": 1, "query": 2, "key": 3}
    known = axis in axes or axis == "none"
    check_argument(known, "axis", f"is {axis!r}, not one of {', '.join(axes)}, none")
    if axis == "none":
        return torch.where(torch.isneginf(logits), 0.0, logits)
    dim = axes[axis]
    if logits.shape[dim] == 0:
        return logits
    largest = logits.amax(dim=dim, keepdim=True)
    largest = torch.where(torch.isneginf(largest), 0.0, largest)
    exponentials = torch.exp(logits - largest)
    total = exponentials.sum(dim=dim, keepdim=True)
    return exponentials / torch.where(total == 0, 1.0, total)


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


def zero_unread(tokens: Tensor, read: Tensor) -> Tensor:
    """Zero the keys or values that no query reads: junk must not matter, but 0 * NaN is NaN."""
    return tokens.masked_fill(~read.any(dim=2).unsqueeze(-1), 0.0)


def _weigh_exactly(weights: Tensor, value: Tensor, attended: Tensor, empty: Tensor) -> Tensor:
    """Weigh the values; an empty row may read (by its rule) values that no other row may meet."""
    output = weights @ zero_unread(value, attended)
    if not bool(empty.any()):
        return output
    return torch.where(empty.unsqueeze(-1), weights @ zero_unread(value, weights > 0), output)


def _excludes_exactly(semantics: Semantics, softcap: float | None) -> bool:
    """Whether an ignored key has exactly no influence, as specified."""
    return (
        semantics.mask_operation in ("replace", "add")
        and semantics.mask_fill == -math.inf
        and semantics.softmax_axis == "key"
        and (softcap is None or semantics.softcap_order == "before-mask")
    )


def _scores(
    query: Tensor, key: Tensor, bias: Tensor | None, scale: float, semantics: Semantics
) -> Tensor:
    products = query @ key.transpose(-1, -2)
    if bias is not None and semantics.bias_order == "before-scale":
        products = products + torch.where(torch.isneginf(bias), 0.0, bias)
    return scale * products


def _logits(
    scores: Tensor,
    bias: Tensor | None,
    allowed: Tensor,
    softcap: float | None,
    semantics: Semantics,
) -> tuple[Tensor, Tensor]:
    if softcap is None:
        return scores, _mask(_add_bias(scores, bias, semantics), allowed, semantics)
    if semantics.softcap_order == "after-mask":
        masked = _mask(_add_bias(scores, bias, semantics), allowed, semantics)
        return scores, _cap(masked, softcap)
    capped = _cap(scores, softcap)
    return capped, _mask(_add_bias(capped, bias, semantics), allowed, semantics)


def _cap(scores: Tensor, softcap: float) -> Tensor:
    return softcap * torch.tanh(scores / softcap)


def _add_bias(scores: Tensor, bias: Tensor | None, semantics: Semantics) -> Tensor:
    if bias is None:
        return scores
    if semantics.bias_order == "before-scale":  # its finite part is in the scores already
        return scores.masked_fill(torch.isneginf(bias), -math.inf)
    return scores + bias


def _mask(logits: Tensor, allowed: Tensor, semantics: Semantics) -> Tensor:
    fill = semantics.mask_fill
    operations = {
        "replace": lambda: logits.masked_fill(~allowed, fill),
        "add": lambda: torch.where(allowed, logits, logits + fill),
        "add-to-kept": lambda: logits + allowed,
        "multiply-logits": lambda: torch.where(allowed | torch.isneginf(logits), logits, 0.0),
        "multiply-weights": lambda: logits,
        "ignore": lambda: logits,
    }
    return operations[semantics.mask_operation]()


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


def _check_numbers(
    scale: float | None, softcap: float | None, window: tuple[int, int] | None
) -> None:
    check_argument(scale is None or math.isfinite(scale), "scale", f"is {scale}, not finite")
    positive = softcap is None or 0 < softcap < math.inf
    check_argument(positive, "softcap", f"is {softcap}, not positive and finite")
    check_window(window)
