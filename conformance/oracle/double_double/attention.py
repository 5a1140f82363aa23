"""Attention and the whole layer once more, in double-double."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..._golden import golden
from ...tolerance.prepared import is_prepared_at
from .numbers import (
    DoubleDouble,
    add,
    add_number,
    divide,
    exact,
    exp,
    matmul,
    multiply,
    negate,
    select,
    tanh,
    total,
)


def supports(semantics: golden.Semantics) -> bool:
    """Whether attention at this point can be evaluated here.

    It needs a softmax over the keys and for ignored keys whose logit is replaced or lowered by
    ``mask_fill``; a cap that comes after the mask needs a fill of minus infinity. Positions,
    normalised heads, functions of the scores and null keys are not supported.
    """
    return (
        not is_prepared_at(semantics)
        and not semantics.alibi
        and semantics.score_mod is None
        and not semantics.null_key
        and semantics.softmax_axis == "key"
        and semantics.mask_operation in ("replace", "add")
        and (not semantics.caps("mask") or semantics.mask_fill == -math.inf)
    )


def core_output(attention: golden.Attention) -> tuple[Tensor, Tensor]:
    """The exact output as ``high + low``, float64 ``[B, H, Lq, Dv]`` both.

    Query, key, value, bias, scale and softcap of ``attention`` are taken as exact. ``high`` is the
    exact output rounded to float64 (but for near ties of the rounding). Where the golden output is
    not finite, and where double-double overflows, ``high`` is the golden output and ``low`` zero.

    Raises ValueError at a point that :func:`supports` does not know.
    """
    heads = (exact(attention.query), exact(attention.key), exact(attention.value))
    with torch.no_grad():
        return finite_or_golden(weighted_values(attention, *heads), attention.output)


def finite_or_golden(computed: DoubleDouble, golden_output: Tensor) -> DoubleDouble:
    """What was computed, or the golden output with a zero where either is not finite."""
    finite = torch.isfinite(computed.high) & torch.isfinite(computed.low)
    return select(finite & torch.isfinite(golden_output), computed, exact(golden_output))


def weighted_values(
    attention: golden.Attention, query: DoubleDouble, key: DoubleDouble, value: DoubleDouble
) -> DoubleDouble:
    """The output for heads ``[B, H, L, D]`` that replace the heads of ``attention``.

    Raises ValueError at points that double-double arithmetic does not support.
    """
    if not supports(attention.semantics):
        msg = f"attention at {attention.semantics} is not evaluated in double-double"
        raise ValueError(msg)
    weights = _softmax(*_logits(attention, query, key), attention.sinks)
    if not _excludes_exactly(attention):
        return matmul(weights, value)
    output = matmul(weights, _zero_unread(value, attention.allowed))
    if not bool(attention.empty.any()):
        return output
    return select(attention.empty.unsqueeze(-1), _mean(attention, value), output)


def _excludes_exactly(attention: golden.Attention) -> bool:
    """Whether an ignored key has no influence at all, and the rule for empty rows holds."""
    point = attention.semantics
    capped_late = attention.softcap is not None and point.caps("mask")
    return point.mask_fill == -math.inf and not capped_late


def _zero_unread(value: DoubleDouble, read: Tensor) -> DoubleDouble:
    """Zero the values that no query reads: 0 * NaN is NaN."""
    unread = ~read.any(dim=2).unsqueeze(-1)
    return DoubleDouble(value.high.masked_fill(unread, 0.0), value.low.masked_fill(unread, 0.0))


def _logits(
    attention: golden.Attention, query: DoubleDouble, key: DoubleDouble
) -> tuple[DoubleDouble, Tensor]:
    """The logits ``[B, H, Lq, Lk]``, and where they are more than minus infinity."""
    scores, point = _scores(attention, query, key), attention.semantics
    if attention.softcap is None:
        return _masked(attention, _add_bias(attention, scores))
    limit = exact(attention.softcap)
    if not point.caps("bias"):
        scores = _cap(scores, limit)
    capped = _add_bias(attention, scores)
    if point.caps("bias"):
        capped = _cap(capped, limit)
    if not point.caps("mask"):
        return _masked(attention, capped)
    lowest = exact(torch.full_like(capped.high, -attention.softcap))
    everywhere = torch.ones_like(attention.allowed)
    return select(attention.allowed, capped, lowest), everywhere


def _scores(attention: golden.Attention, query: DoubleDouble, key: DoubleDouble) -> DoubleDouble:
    products = matmul(query, DoubleDouble(key.high.transpose(-1, -2), key.low.transpose(-1, -2)))
    if attention.bias is not None and attention.semantics.bias_order == "before-scale":
        products = add_number(products, _finite_bias(attention.bias))
    return multiply(products, exact(attention.scale))


def _add_bias(attention: golden.Attention, scores: DoubleDouble) -> DoubleDouble:
    """The scores with the finite part of the bias, unless the bias was added before the scale."""
    if attention.bias is None or attention.semantics.bias_order == "before-scale":
        return scores
    return add_number(scores, _finite_bias(attention.bias))


def _finite_bias(bias: Tensor) -> Tensor:
    return torch.where(torch.isneginf(bias), 0.0, bias)


def _cap(scores: DoubleDouble, limit: DoubleDouble) -> DoubleDouble:
    return multiply(limit, tanh(divide(scores, limit)))


def _masked(attention: golden.Attention, logits: DoubleDouble) -> tuple[DoubleDouble, Tensor]:
    """Replace or lower the logits of ignored keys."""
    fill = attention.semantics.mask_fill
    if fill == -math.inf:
        return logits, attention.allowed
    filled = torch.full_like(logits.high, fill)
    adds = attention.semantics.mask_operation == "add"
    ignored = add_number(logits, filled) if adds else exact(filled)
    live = attention.logits > -math.inf  # a bias of minus infinity may count whatever the mask says
    return select(attention.allowed, logits, ignored), live


def _softmax(logits: DoubleDouble, live: Tensor, sinks: Tensor | None) -> DoubleDouble:
    """The weights over the live keys of each row; a row without one has zeros.

    A sink is one more logit, whose weight is dropped.
    """
    if 0 in live.shape:
        return exact(torch.zeros_like(logits.high))
    if sinks is not None:
        more = sinks[:, None, None].expand(*live.shape[:-1], 1)
        counts = more > -math.inf
        high = torch.cat([logits.high, more.masked_fill(~counts, 0.0)], dim=-1)
        low = torch.cat([logits.low, torch.zeros_like(more)], dim=-1)
        every = _softmax(DoubleDouble(high, low), torch.cat([live, counts], dim=-1), None)
        return DoubleDouble(every.high[..., :-1], every.low[..., :-1])
    high = logits.high.masked_fill(~live, -math.inf)
    finite = DoubleDouble(logits.high.masked_fill(~live, 0.0), logits.low.masked_fill(~live, 0.0))
    exponents = add(finite, negate(_largest(high, finite.low)))
    exponents = select(live, exponents, exact(high))
    exponentials = exp(exponents)
    whole = total(exponentials)
    return divide(exponentials, select(whole.high == 0, exact(1.0), whole))


def _largest(high: Tensor, low: Tensor) -> DoubleDouble:
    """The largest number of each row, whose low part counts: it may be far from zero itself.

    ``high`` is minus infinity where a number does not take part; 0 for a row without any.
    """
    largest = high.amax(dim=-1, keepdim=True)
    rest = low.where(high == largest, -math.inf).amax(dim=-1, keepdim=True)
    empty = torch.isneginf(largest)
    return DoubleDouble(largest.masked_fill(empty, 0.0), rest.masked_fill(empty, 0.0))


def _mean(attention: golden.Attention, value: DoubleDouble) -> DoubleDouble:
    """The mean of the values chosen by the rule for empty rows; zeros without values."""
    chosen = attention.weights > 0
    count = chosen.sum(dim=-1, keepdim=True).clamp_min_(1).double()
    sums = matmul(exact(chosen.double()), _zero_unread(value, chosen))
    return divide(sums, exact(count))


def layer_output(layer: golden.MultiHeadAttention) -> tuple[Tensor, Tensor]:
    """The exact output as ``high + low``, float64 ``[B, Lq, Eo]`` both.

    Tokens and weights are taken as exact. Where the golden output is
    not finite, and where double-double overflows, ``high`` is the golden output and ``low`` zero.

    Raises ValueError at a point that :func:`supports` does not know.
    """
    core, weights = layer.core, layer.weights
    query, key, value = (exact(tokens) for tokens in layer.tokens)
    with torch.no_grad():
        output = weighted_values(
            core,
            _split(_project(query, weights.q, weights.q_bias), core.query, core.semantics),
            _split(_project(key, weights.k, weights.k_bias), core.key, core.semantics),
            _split(_project(value, weights.v, weights.v_bias), core.value, core.semantics),
        )
        merged = DoubleDouble(*(golden.merge_heads(part, core.semantics) for part in output))
        if weights.o is not None:
            # Heads concatenated along the tokens meet one block of the output matrix.
            matrix = weights.o[:, : merged.high.shape[-1]]
            merged = _project(merged, matrix, weights.o_bias)
        return finite_or_golden(merged, layer.output)


def _project(tokens: DoubleDouble, matrix: Tensor, bias: Tensor | None) -> DoubleDouble:
    """``x W^T + b`` for ``x [B, L, in]`` and ``W [out, in]``."""
    batch, length, width = tokens.high.shape
    flat = DoubleDouble(tokens.high.reshape(-1, width), tokens.low.reshape(-1, width))
    product = matmul(flat, exact(matrix.T))
    high, low = (part.reshape(batch, length, matrix.shape[0]) for part in product)
    projected = DoubleDouble(high, low)
    return projected if bias is None else add_number(projected, bias)


def _split(tokens: DoubleDouble, heads: Tensor, semantics: golden.Semantics) -> DoubleDouble:
    """Cut ``[B, L, Hkv*D]`` into heads and repeat them, in the shape of ``heads [B, H, L, D]``."""
    num_heads, head_size = heads.shape[1], heads.shape[3]
    count = tokens.high.shape[-1] // head_size
    parts = (golden.split_heads(part, count, semantics) for part in tokens)
    return DoubleDouble(*(golden.repeat_heads(part, num_heads, semantics) for part in parts))
