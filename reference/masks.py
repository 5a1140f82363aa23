"""Which keys a query may attend: every way of saying so, brought to one boolean table."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import check_argument, check_broadcasts
from .semantics import Semantics


def structural_mask(
    query_length: int,
    key_length: int,
    *,
    causal: bool,
    window: tuple[int, int] | None,
    semantics: Semantics,
) -> Tensor:
    """What causality and window admit: bool ``[Lq, Lk]``, True where query i may attend key j.

    Query i stands at key position ``i + Lk - Lq`` under bottom-right alignment and at ``i`` under
    top-left. ``window=(left, right)`` admits that many keys before and after that position; -1
    means no limit on that side (the convention of FlashAttention's ``window_size``).
    """
    bottom_right = semantics.causal_alignment == "bottom-right"
    position = torch.arange(query_length)[:, None]
    if bottom_right:
        position = position + (key_length - query_length)
    ahead = torch.arange(key_length)[None, :] - position
    admitted = torch.ones(query_length, key_length, dtype=torch.bool)
    if causal:
        admitted &= ahead <= semantics.causal_offset
    if window is not None:
        left, right = window
        admitted &= (ahead >= -left - semantics.window_offset) | (left < 0)
        admitted &= (ahead <= right + semantics.window_offset) | (right < 0)
    return admitted


def given_mask(
    shape: tuple[int, int, int, int],
    *,
    keep: Tensor | None,
    lengths: Tensor | None,
    semantics: Semantics,
) -> Tensor:
    """What mask and lengths admit together: bool, broadcastable to ``[B, H, Lq, Lk]``."""
    admitted = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    if keep is not None:
        check_broadcasts(keep, "keep", shape)
        check_argument(keep.dtype == torch.bool, "keep", f"has dtype {keep.dtype}, not torch.bool")
        admitted = keep if semantics.mask_polarity == "keep" else ~keep
    if lengths is not None:
        admitted = admitted & _within_lengths(lengths, shape)
    return admitted


def _within_lengths(lengths: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    batch, _, query_length, key_length = shape
    fits = tuple(lengths.shape) in ((batch,), (batch, query_length))
    check_argument(
        fits,
        "lengths",
        f"has shape {list(lengths.shape)}, not [{batch}] or [{batch}, {query_length}]",
    )
    inside = bool(((lengths >= 0) & (lengths <= key_length)).all())
    check_argument(inside, "lengths", f"has entries outside 0..{key_length}")
    per_row = lengths.reshape(batch, 1, -1, 1)
    return torch.arange(key_length).reshape(1, 1, 1, key_length) < per_row


def combine(structure: Tensor, given: Tensor, semantics: Semantics) -> Tensor:
    """A key is attended when causality, window and mask all admit it (or as the point says)."""
    rules = {
        "both": lambda: structure & given,
        "either": lambda: structure | given,
        "causal-only": lambda: structure.expand_as(structure & given),
        "mask-only": lambda: given.expand_as(structure & given),
    }
    return rules[semantics.causal_combination]()
