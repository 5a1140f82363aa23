"""Masks in each form and in shapes with fewer axes."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance import ExpectedFailure

from ._kit import NAN_HIDDEN, NAN_RETURNED, NAN_SPREADS, core, factor

ONES = ExpectedFailure(
    clause="mask.int-nonzero", reason="its mask is documented as one of zeros and ones"
)


def _mask_of(mask: Tensor, keys: int) -> Tensor:
    """A mask that is for that many keys; raises ValueError for another."""
    if mask.shape[-1] != keys:
        msg = f"the mask is for {mask.shape[-1]} keys, but there are {keys}"
        raise ValueError(msg)
    return mask


@core(
    masks=["drop"],
    mask_shapes=["BK"],
    causal=None,
    expected_failures=[NAN_SPREADS, NAN_HIDDEN],
)
def padding_mask(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    drop: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """A table ``[B, Lk]`` that is True at padding."""
    scores = query @ key.mT * factor(query, scale)
    if drop is not None:
        scores = scores.masked_fill(_mask_of(drop, key.shape[2])[:, None, None], -torch.inf)
    return torch.nan_to_num(scores.softmax(dim=-1)) @ value


@core(
    masks=["drop", "bias"],
    mask_shapes=["QK", "BQK"],
    causal="top-left",
    expected_failures=[NAN_SPREADS, NAN_HIDDEN],
)
def masks_without_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    drop: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Tables ``[Lq, Lk]`` and ``[B, Lq, Lk]``; causality starts at the first of both."""
    scores = query @ key.mT * factor(query, scale)
    if bias is not None:
        bias = _mask_of(bias, key.shape[2])
        scores = scores + (bias if bias.dim() == 2 else bias.unsqueeze(1))  # noqa: PLR2004 (axes)
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1) & causal
    if bias is not None:  # filled in, not only added: a row without keys must give no NaN back
        hidden = hidden | scores.isneginf()
    if drop is not None:
        drop = _mask_of(drop, key.shape[2])
        hidden = hidden | (drop if drop.dim() == 2 else drop.unsqueeze(1))  # noqa: PLR2004 (axes)
    return torch.nan_to_num(scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)) @ value


@core(
    masks=["keep_int"], causal=None, expected_failures=[NAN_SPREADS, NAN_HIDDEN, NAN_RETURNED, ONES]
)
def zeros_and_ones(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep_int: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """A table of zeros and ones, whose logarithm is added: minus infinity and zero."""
    scores = query @ key.mT * factor(query, scale)
    if keep_int is not None:
        scores = scores + _mask_of(keep_int, key.shape[2]).to(scores.dtype).log()
    return torch.nan_to_num(scores.softmax(dim=-1)) @ value


@core(
    masks=["bias", "keep"],
    causal=None,
    mask_shapes=["BHQK", "1HQK", "11QK", "HQK"],
    expected_failures=[NAN_SPREADS, NAN_HIDDEN, NAN_RETURNED],
)
def bias_before_the_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """The table is filled with the bias, and the products are added to it."""
    logits = query.new_zeros(*query.shape[:3], key.shape[2])
    if bias is not None:
        logits = logits + _mask_of(bias, key.shape[2])
    if keep is not None:
        logits = logits.masked_fill(~_mask_of(keep, key.shape[2]), -torch.inf)
    logits = logits + query @ key.mT * factor(query, scale)
    return torch.nan_to_num(logits.softmax(dim=-1)) @ value


@core(
    masks=["lengths"],
    mask_shapes=["B", "BQ"],
    causal="bottom-right",
    expected_failures=[NAN_SPREADS, NAN_HIDDEN],
)
def lengths_of_items_or_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    lengths: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """How many keys count, for each item or each row; causality is one more such number."""
    keys, rows = key.shape[2], query.shape[2]
    ends = torch.full((1, 1, rows), keys)
    if lengths is not None:
        ends = lengths.reshape(lengths.shape[0], 1, -1)
    if causal:
        ends = torch.minimum(ends, torch.arange(rows) + 1 + keys - rows)
    logits = query @ key.mT * factor(query, scale)
    logits = torch.where(torch.arange(keys) < ends.unsqueeze(-1), logits, -torch.inf)
    return torch.nan_to_num(logits.softmax(dim=-1)) @ value


@core(
    masks=["keep", "drop", "keep_int", "bias", "lengths"],
    causal=None,
    features=["grad_bias"],
    expected_failures=[NAN_SPREADS, NAN_HIDDEN, NAN_RETURNED],
)
def masks_of_every_form(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    drop: Tensor | None = None,
    keep_int: Tensor | None = None,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Whatever comes is made one additive table first."""
    keys = key.shape[2]
    if lengths is not None:
        keep = torch.arange(keys) < lengths.view(-1, 1, 1, 1)
    if drop is not None:
        keep = drop.logical_not()
    if keep_int is not None:
        keep = keep_int.bool()
    if keep is not None:
        bias = torch.zeros(keep.shape, dtype=query.dtype).masked_fill(
            keep.logical_not(), -torch.inf
        )
    logits = query @ key.mT / query.shape[-1] ** 0.5
    if bias is not None:
        logits = logits + _mask_of(bias, keys)
    return torch.nan_to_num(logits.softmax(dim=-1)) @ value
