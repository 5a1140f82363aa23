"""``torch.nn.attention.flex_attention``: rules for scores and for blocks instead of masks.

Causality, windows and masks are a rule of the block mask; caps, biases and ALiBi are rules of the
scores. Uncompiled all scores are computed, which is right and slow, and torch warns of it; compiled
it is a kernel: ``conformance check candidates/flex_attention.py --compile``. It has no gradients on
a CPU (torch 2.13).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import conformance
from conformance import Candidate

Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
PROMISES: Final[dict[str, Any]] = {
    "masks": ["keep", "bias"],
    "mask_shapes": ["BHQK"],
    "empty_rows": "zeros",
    "features": ["scale", "gqa", "softcap", "window"],
    "without": ["gradients"],
}


def _block_mask(
    sizes: tuple[int, int, int, int],
    device: torch.device,
    *,
    keep: Tensor | None,
    window: tuple[int, int] | None,
    causal: bool,
) -> BlockMask | None:
    """What a query may attend; it stands at the key that is as far from the end as it is."""
    if (keep is None and window is None and not causal) or 0 in sizes:
        return None
    offset = sizes[3] - sizes[2]
    left, right = (-1, -1) if window is None else window

    def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        ahead = key - query - offset
        allowed = torch.ones_like(ahead, dtype=torch.bool)
        if causal:
            allowed = allowed & (ahead <= 0)
        if left >= 0:
            allowed = allowed & (ahead >= -left)
        if right >= 0:
            allowed = allowed & (ahead <= right)
        return allowed if keep is None else allowed & keep[batch, head, query, key]

    return create_block_mask(rule, *sizes, device=device)


def _scores(softcap: float | None, bias: Tensor | None, slopes: Tensor | None) -> Score | None:
    """What becomes of a scaled score: the cap first, then what is added."""
    if softcap is None and bias is None and slopes is None:
        return None

    def rule(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if bias is not None:
            score = score + bias[batch, head, query, key]
        return score if slopes is None else score - slopes[head] * (query - key).abs()

    return rule


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    window: tuple[int, int] | None = None,
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to ``[B, Hkv, Lk, D]`` and ``[B, Hkv, Lk, Dv]``.

    Raises ValueError for a mask or values of another length than the keys.
    """
    sizes = (*query.shape[:3], key.shape[2])
    for other, length in ((keep, -1), (bias, -1), (value, 2)):
        if other is not None and other.shape[length] != sizes[3]:
            msg = f"there are {sizes[3]} keys, but a mask or values of {other.shape[length]}"
            raise ValueError(msg)
    allowed = _block_mask(sizes, query.device, keep=keep, window=window, causal=causal)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        answer = flex_attention(
            query,
            key,
            value,
            score_mod=_scores(softcap, bias, None),
            block_mask=allowed,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    output: Tensor = answer
    return output


flex: Final[Candidate] = conformance.core(name="flex_attention", causal="bottom-right", **PROMISES)(
    _attend
)
