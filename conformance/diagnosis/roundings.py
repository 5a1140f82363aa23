"""Attention with one stage rounded: the golden, acted out in a coarser precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from ..problems.materialise import TORCH_DTYPES

Rounding = Callable[[Tensor], Tensor]
Acted = Callable[[golden.Attention], Tensor]
# The dtypes that tensors come in, and those that only caches and products are kept in.
FORMATS: Final = {
    **TORCH_DTYPES,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
# TensorFloat-32 keeps 10 of float32's 23 explicit bits: these are cut off.
SHORT_BITS: Final = 13


def to_format(name: str) -> Rounding:
    """Round to a number format and back; what is too large becomes the largest finite number."""
    working = FORMATS[name]
    limits = torch.finfo(working)

    def rounded(tensor: Tensor) -> Tensor:
        finite = torch.isfinite(tensor)
        return (
            torch.where(finite, tensor.clamp(limits.min, limits.max), tensor).to(working).double()
        )

    return rounded


def to_tf32(tensor: Tensor) -> Tensor:
    """Round to nearest, ties away from zero, as a tensor core's operands are."""
    bits = tensor.float().contiguous().view(torch.int32) + (1 << (SHORT_BITS - 1))
    return _cut(bits)


def to_cut_tf32(tensor: Tensor) -> Tensor:
    """Cut the last bits off."""
    return _cut(tensor.float().contiguous().view(torch.int32))


def _cut(bits: Tensor) -> Tensor:
    return (bits & ~((1 << SHORT_BITS) - 1)).view(torch.float32).double()


def _weights_of(logits: Tensor) -> Tensor:
    return golden.softmax(logits)


def rounded_scores(rounding: Rounding) -> Acted:
    """Rounded before bias and mask are added."""

    def output(core: golden.Attention) -> Tensor:
        added = core.logits - core.capped
        return _weights_of(rounding(core.capped) + added) @ core.value

    return output


def rounded_logits(rounding: Rounding) -> Acted:
    """Rounded with bias and mask added."""
    return lambda core: _weights_of(rounding(core.logits)) @ core.value


def rounded_weights(rounding: Rounding) -> Acted:
    """Rounded before they meet the values."""
    return lambda core: rounding(core.weights) @ core.value


def rounded_exponentials(rounding: Rounding) -> Acted:
    """As a fused kernel does it: rounded for the product only, not for the sum."""

    def output(core: golden.Attention) -> Tensor:
        largest = core.weights.amax(dim=-1, keepdim=True)
        safe = torch.where(largest > 0.0, largest, 1.0)
        return (rounding(core.weights / safe) * safe) @ core.value

    return output


def rounded_softmax(rounding: Rounding) -> Acted:
    """Rounded before the softmax and after it."""
    return lambda core: rounding(_weights_of(rounding(core.logits))) @ core.value


def rounded_operands(
    rounding: Rounding, *, query: bool = False, key: bool = False, values: bool = False
) -> Acted:
    """Query, key or both rounded before their product; with ``values`` weights and values, too."""

    def output(core: golden.Attention) -> Tensor:
        left = rounding(core.query) if query else core.query
        right = rounding(core.key) if key else core.key
        apart = left @ right.transpose(-1, -2) - core.query @ core.key.transpose(-1, -2)
        weights = _weights_of(core.logits + core.scale * apart)
        if not values:
            return weights @ core.value
        return rounding(weights) @ rounding(core.value)

    return output


def rounded_values(rounding: Rounding) -> Acted:
    """Rounded before they meet the weights."""
    return lambda core: core.weights @ rounding(core.value)


def rounded_exponents(rounding: Rounding) -> Acted:
    """The distance of each logit to the largest, rounded on its way into the exponential."""

    def output(core: golden.Attention) -> Tensor:
        largest = core.logits.amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
        return _weights_of(rounding(core.logits - largest)) @ core.value

    return output


def added_up(left: Tensor, right: Tensor, rounding: Rounding, at_once: int) -> Tensor:
    """A product of matrices whose partial sums are rounded after so many terms each."""
    total = torch.zeros(*left.shape[:-1], right.shape[-1], dtype=torch.float64)
    for first in range(0, left.shape[-1], at_once):
        part = left[..., first : first + at_once] @ right[..., first : first + at_once, :]
        total = rounding(total + part)
    return total


def rounded_sum(rounding: Rounding, at_once: int) -> Acted:
    """Every partial sum of weighted values rounded, after some terms each."""
    return lambda core: added_up(core.weights, core.value, rounding, at_once)


def rounded_unnormalised(rounding: Rounding, at_once: int) -> Acted:
    """The same for weights that are divided by their sum afterwards, as fused kernels do."""

    def output(core: golden.Attention) -> Tensor:
        largest = _largest_weight(core)
        return added_up(core.weights / largest, core.value, rounding, at_once) * largest

    return output


def rounded_denominator(rounding: Rounding, at_once: int) -> Acted:
    """Every partial sum of exponentials rounded."""

    def output(core: golden.Attention) -> Tensor:
        exponentials = core.weights / _largest_weight(core)
        ones = torch.ones(exponentials.shape[-1], 1, dtype=torch.float64)
        total = exponentials.sum(dim=-1, keepdim=True)
        return core.output * total / added_up(exponentials, ones, rounding, at_once).clamp_min(1.0)

    return output


def rounded_total(rounding: Rounding) -> Acted:
    """The sum rounded once, when it is complete."""

    def output(core: golden.Attention) -> Tensor:
        total = (core.weights / _largest_weight(core)).sum(dim=-1, keepdim=True)
        return core.output * total / rounding(total).clamp_min(1.0)

    return output


def _largest_weight(core: golden.Attention) -> Tensor:
    largest = core.weights.amax(dim=-1, keepdim=True)
    return torch.where(largest > 0.0, largest, 1.0)


def rounded_products(rounding: Rounding, at_once: int) -> Acted:
    """The dot products of query and key added up so."""

    def output(core: golden.Attention) -> Tensor:
        keys = core.key.transpose(-1, -2)
        apart = added_up(core.query, keys, rounding, at_once) - core.query @ keys
        return _weights_of(core.logits + core.scale * apart) @ core.value

    return output


def plain_softmax(working: torch.dtype) -> Acted:
    """As most would write it: with torch's own softmax."""
    return lambda core: _torch_softmax(core.logits, working).double() @ core.value


def plain_attention(working: torch.dtype) -> Acted:
    """The textbook's three lines with every tensor converted first; softcap and bias exactly."""

    def output(core: golden.Attention) -> Tensor:
        query, key, value = (heads.to(working) for heads in (core.query, core.key, core.value))
        scores = (query @ key.transpose(-1, -2)) * core.scale
        logits = scores + (core.logits - core.scores).to(working)
        return (_torch_softmax(logits, working) @ value).double()

    return output


def _torch_softmax(logits: Tensor, working: torch.dtype) -> Tensor:
    """Zero in rows without keys, where torch makes NaN."""
    return torch.softmax(logits.to(working), dim=-1).nan_to_num(nan=0.0)
