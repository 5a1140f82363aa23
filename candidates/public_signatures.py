"""Functions with the signatures of public ones: their names are declared, no wrapper is written."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import conformance


def _visible(rows: int, columns: int, window: tuple[int, int], *, causal: bool) -> Tensor:
    """The keys of each query, whose last stands at the last key: bool ``[Lq, Lk]``."""
    ahead = torch.arange(columns) - torch.arange(rows)[:, None] - (columns - rows)
    left, right = window
    visible = torch.ones(rows, columns, dtype=torch.bool)
    if left >= 0:
        visible &= ahead >= -left
    if right >= 0:
        visible &= ahead <= right
    return visible & (ahead <= 0) if causal else visible


@conformance.core(signature="flash_attn", dtypes=["float32", "bfloat16"])
def flash_attn_func(  # noqa: PLR0917 (as the public function takes them)
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 (as the public function has it)
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> Tensor:
    """FlashAttention's function of ``[B, L, H, D]`` in plain torch; it drops nothing."""
    if dropout_p or k.shape[:3] != v.shape[:3]:
        msg = f"no dropout ({dropout_p}), and a value for each key ({k.shape}, {v.shape})"
        raise ValueError(msg)
    group = q.shape[2] // k.shape[2]
    key, value = (part.repeat_interleave(group, dim=2).transpose(1, 2).float() for part in (k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    logits = q.transpose(1, 2).float() @ key.mT * scale
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    visible = _visible(q.shape[1], k.shape[1], window_size, causal=causal)
    weights = logits.masked_fill(~visible, -math.inf).softmax(dim=-1)
    weights = torch.where(visible, weights, 0.0)
    hidden = ~visible.any(dim=0)
    value = value.masked_fill(hidden[:, None], 0.0)
    return (weights @ value).transpose(1, 2).to(q.dtype)


@conformance.core(
    masks=["keep"],
    mask_shapes=["BHQK", "11QK"],
    causal="top-left",
    features=["scale", "window"],
    keywords={
        "keep": "attn_mask",
        "scale": "sm_scale",
        "causal": "is_causal",
        "window": ("window_left", "window_right"),
    },
)
def attend_by_own_names(  # noqa: PLR0917 (kernels take them by place)
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: bool,  # noqa: FBT001 (a required flag, as kernels have it)
    sm_scale: float,
    attn_mask: Tensor | None = None,
    window_left: int = -1,
    window_right: int = -1,
) -> Tensor:
    """Attention under names of its own, of which two have no default."""
    if k.shape[2] != v.shape[2] or q.shape[-1] != k.shape[-1]:
        msg = f"the shapes {q.shape}, {k.shape}, {v.shape} do not fit"
        raise ValueError(msg)
    rows, columns = q.shape[2], k.shape[2]
    ahead = torch.arange(columns) - torch.arange(rows)[:, None]
    visible = torch.ones(rows, columns, dtype=torch.bool)
    if is_causal:
        visible = visible & (ahead <= 0)
    if window_left >= 0:
        visible = visible & (ahead >= -window_left)
    if window_right >= 0:
        visible = visible & (ahead <= window_right)
    if attn_mask is not None:
        if attn_mask.shape[-1] != columns:
            msg = f"the mask has {attn_mask.shape[-1]} columns for {columns} keys"
            raise ValueError(msg)
        visible = visible & attn_mask
    logits = (q @ k.mT * sm_scale).masked_fill(~visible, -math.inf)
    return logits.softmax(dim=-1).masked_fill(~visible, 0.0) @ v
