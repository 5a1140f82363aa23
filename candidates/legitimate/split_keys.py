"""Split-K: parts of the keys are answered on their own and merged by their log-sum-exp.

Dao et al., "Flash-Decoding", 2023; Ye et al., "Cascade inference" (FlashInfer), 2024.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._kit import admitted, check, core, factor


def _part(logits: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The answer over some keys ``[.., Lq, Dv]`` and its log-sum-exp ``[.., Lq, 1]``."""
    size = torch.logsumexp(logits, dim=-1, keepdim=True)
    return torch.exp(logits - torch.where(size.isneginf(), 0.0, size)) @ value, size


@core()
def split_in_two(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Two halves of the keys, weighed by a sigmoid of the distance of their log-sum-exps."""
    check(query, key, value)
    logits = query @ key.mT * factor(query, scale)
    logits = logits.masked_fill(~admitted(query, key, keep, causal=causal), -torch.inf)
    half = (key.shape[2] + 1) // 2
    early, early_size = _part(logits[..., :half], value[:, :, :half])
    late, late_size = _part(logits[..., half:], value[:, :, half:])
    share = torch.nan_to_num(torch.sigmoid(early_size - late_size))
    return share * early + (1 - share) * late


@core()
def split_in_many(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Parts of five keys, all weighed at once by the softmax of their log-sum-exps."""
    check(query, key, value)
    logits = query @ key.mT * factor(query, scale)
    logits = logits.masked_fill(~admitted(query, key, keep, causal=causal), -torch.inf)
    parts = [
        _part(*pair) for pair in zip(logits.split(5, dim=-1), value.split(5, dim=-2), strict=True)
    ]
    outputs = torch.stack([output for output, _ in parts])
    shares = torch.softmax(torch.stack([size for _, size in parts]), dim=0)
    return (torch.nan_to_num(shares) * outputs).sum(dim=0)


@core()
def merged_in_a_tree(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Parts of three keys, merged pair by pair with ``logaddexp``."""
    check(query, key, value)
    logits = query @ key.mT * factor(query, scale)
    logits = logits.masked_fill(~admitted(query, key, keep, causal=causal), -torch.inf)
    parts = [
        _part(*pair) for pair in zip(logits.split(3, dim=-1), value.split(3, dim=-2), strict=True)
    ]
    while len(parts) > 1:
        pairs = list(zip(parts[::2], parts[1::2], strict=False))
        parts = [_merged(*pair) for pair in pairs] + parts[2 * len(pairs) :]
    return parts[0][0]


def _merged(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    size = torch.logaddexp(left[1], right[1])
    anchor = torch.where(size.isneginf(), 0.0, size)
    shares = torch.exp(left[1] - anchor), torch.exp(right[1] - anchor)
    return shares[0] * left[0] + shares[1] * right[0], size
