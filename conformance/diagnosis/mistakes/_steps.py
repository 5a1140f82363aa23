"""Conditions and edits that several named mistakes or statements share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...problems.inputs import Inputs
from .named_mistake import DeclaredCall, NotExpressible

BLOCKS: Final = (1, 2, 4, 8, 16, 32, 64, 128)


def row_largest(logits: Tensor) -> Tensor:
    largest = logits.amax(dim=-1, keepdim=True)
    return torch.where(torch.isneginf(largest), 0.0, largest)


def present(logits: Tensor) -> Tensor:
    return logits.masked_fill(torch.isneginf(logits), 0.0)


def has_mask(inputs: Inputs) -> bool:
    return inputs.masked


def has_causal(inputs: Inputs) -> bool:
    return inputs.causal


def has_bias(inputs: Inputs) -> bool:
    return inputs.mask_form == "bias"


def has_window(inputs: Inputs) -> bool:
    return inputs.window is not None


def has_cache(inputs: Inputs) -> bool:
    return inputs.past > 0


def has_softcap(inputs: Inputs) -> bool:
    return inputs.softcap is not None


def has_scale(inputs: Inputs) -> bool:
    return inputs.scale is not None


def has_sinks(inputs: Inputs) -> bool:
    return inputs.sinks is not None


def hides_keys(inputs: Inputs) -> bool:
    return inputs.masked or inputs.causal or inputs.window is not None


def places_ahead(sizes: golden.Sizes | Geometry, *, bottom_right: bool) -> Tensor:
    """Return distances from queries to keys, with the last of both aligned, or the first."""
    shift = sizes.key_length - sizes.query_length if bottom_right else 0
    return torch.arange(sizes.key_length) - torch.arange(sizes.query_length)[:, None] - shift


def append_sinks(logits: Tensor, sinks: Tensor | None) -> Tensor:
    """Append the logits of sinks as a further key."""
    if sinks is None:
        return logits
    return torch.cat([logits, sinks[:, None, None].expand(*logits.shape[:-1], 1)], dim=-1)


def reweighed(weights_of: Callable[[Tensor], Tensor]) -> golden.Edit:
    """Return an edit of the weights, from the masked logits ``[B, H, Lq, Lk]``.

    A sink counts as a further key, whose weight is cut off. Rows without keys keep their rule.
    """

    def change(weights: Tensor, logits: Tensor, sinks: Tensor | None) -> Tensor:
        made = weights_of(append_sinks(logits, sinks)).double()[..., : logits.shape[-1]]
        return torch.where(torch.isneginf(logits).all(dim=-1, keepdim=True), weights, made)

    return golden.Edit("weights", change=change)


def _rows_without_logits(empty: Tensor, logits: Tensor, sinks: Tensor | None) -> Tensor:
    return torch.isneginf(logits).all(dim=-1) if sinks is None else empty


# Rows without keys get the result of the softmax.
UNRULED: Final = golden.Edit("weights", lambda shares: shares)
# The rows without keys are those that have no logit, whatever may be attended.
EMPTY_WITHOUT_LOGITS: Final = golden.Edit("empty", change=_rows_without_logits)


def require(possible: bool) -> None:  # noqa: FBT001 (a condition reads best so)
    """Raise NotExpressible if a mistake cannot be made."""
    if not possible:
        raise NotExpressible


# The functions below change an evaluated attention, for statements of the dissection.


def weighing(attention: golden.Attention, weights: Tensor) -> golden.Attention:
    """Return the attention with other weights; unread values are zeroed, so NaN cannot spread."""
    read = (weights != 0.0).any(dim=2).unsqueeze(-1)
    value = attention.value.masked_fill(~read, 0.0)
    return dataclasses.replace(attention, weights=weights, output=weights @ value)


def emptied(attention: golden.Attention, rows: Tensor) -> golden.Attention:
    """Mark further rows ``[B, H, Lq]`` as open, like rows without keys."""
    return dataclasses.replace(attention, empty=attention.empty | rows)


def logits_with_sinks(attention: golden.Attention) -> Tensor:
    """Return the masked logits with the logits of sinks as a further key."""
    return append_sinks(attention.logits, attention.sinks)


def plain_scores(attention: golden.Attention) -> Tensor:
    """Return the scaled dot products with every key, ignored keys included."""
    return (attention.query @ attention.key.transpose(-1, -2)) * attention.scale


def capped_scores(attention: golden.Attention) -> Tensor:
    """Return the plain scores after the softcap."""
    return _capped(attention, plain_scores(attention))


def scored(attention: golden.Attention, products: Tensor) -> Tensor:
    """Return scaled products after softcap, declared function and bias by distance."""
    return biased(attention, _capped(attention, products))


def _capped(attention: golden.Attention, scores: Tensor) -> Tensor:
    cap = attention.softcap
    return scores if cap is None else cap * torch.tanh(scores / cap)


def unmasked_logits(attention: golden.Attention) -> Tensor:
    """Return capped scores with finite biases, before any key is ignored."""
    bias = attention.bias
    capped = biased(attention, capped_scores(attention))
    return capped if bias is None else capped + bias.masked_fill(torch.isneginf(bias), 0.0)


def biased(attention: golden.Attention, capped: Tensor) -> Tensor:
    """Return capped scores after the declared function and the bias by distance."""
    modified = golden.modify(capped, attention.semantics)
    return modified if attention.alibi is None else modified + attention.alibi


def admitted_by_mask(call: DeclaredCall) -> Tensor:
    """Return the keys that the call's mask admits, if it counts: bool, four axes.

    Minus infinity in an additive mask hides a key.
    """
    inputs = call.inputs
    admitted = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    if not inputs.counted(call.semantics)[1]:
        return admitted
    if inputs.keep is not None:
        admitted = inputs.keep if call.semantics.mask_polarity == "keep" else ~inputs.keep
    return admitted if inputs.bias is None else admitted & ~torch.isneginf(inputs.bias)


def keys_of_groups(key: Tensor, call: DeclaredCall) -> Tensor:
    """Return the keys of each key/value head, from the keys of all query heads."""
    heads = call.inputs.geometry.num_kv_heads
    if call.semantics.group_order == "tile":
        return key[:, :heads]
    return key[:, :: max(key.shape[1] // max(heads, 1), 1)]
