"""Conditions and edits that several named mistakes or statements share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...problems.inputs import Inputs
from .named_mistake import NotExpressible

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
