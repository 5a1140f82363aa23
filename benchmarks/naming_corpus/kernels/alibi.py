"""Attention with linear biases (Press et al., 2022): the farther a key, the less it counts."""

from __future__ import annotations

import torch
from torch import Tensor

import conformance


def slopes(heads: int) -> Tensor:
    """The slope of each head, as in the authors' code: ``[H]``."""
    power = 1
    while 2 * power <= heads:
        power *= 2
    some = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    finer = [2.0 ** (-4.0 * (head + 1) / power) for head in range(0, 2 * power, 2)]
    return torch.tensor((some + finer)[:heads])


@conformance.core(
    masks=["keep", "bias"],
    causal="bottom-right",
    empty_rows="zeros",
    features=["gqa", "scale"],
    semantics=conformance.Semantics(alibi=True),
)
def alibi(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to ``[B, Hkv, Lk, D]`` and ``[B, Hkv, Lk, Dv]``."""
    _, heads, lq, size = query.shape
    lk = key.shape[2]
    if value.shape[2] != lk:
        msg = "keys and values have different lengths"
        raise ValueError(msg)
    group = heads // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    rows = torch.arange(lq, device=query.device)[:, None] + (lk - lq)
    columns = torch.arange(lk, device=query.device)[None, :]
    distance = (rows - columns).abs().to(query.dtype)
    slope = slopes(heads).to(query.dtype).view(heads, 1, 1)
    factor = size**-0.5 if scale is None else scale
    logits = query @ key.transpose(2, 3) * factor
    logits = logits - slope * distance
    hidden = torch.zeros_like(logits, dtype=torch.bool)
    if bias is not None:
        logits = logits + bias
        hidden = hidden | bias.isneginf()
    if keep is not None:
        hidden = hidden | ~keep
    if causal:
        hidden = hidden | (columns > rows)
    weights = logits.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden, 0.0)
    return weights @ value
