"""Local attention of a decoder: sinks, a window, a softcap and cached keys, as in gpt-oss."""

from __future__ import annotations

import torch
from torch import Tensor

import conformance


@conformance.core(
    masks=["keep"],
    causal="bottom-right",
    empty_rows="zeros",
    features=["gqa", "scale", "softcap", "window", "sinks", "kv_cache"],
)
def local_sinks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    window: tuple[int, int] | None = None,
    sinks: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to the cached ``[B, Hkv, P, D]`` and the new ``[B, Hkv, Lk, D]``."""
    if key.shape[2] != value.shape[2]:
        msg = "keys and values have different lengths"
        raise ValueError(msg)
    if past_key is not None and past_value is not None:
        key = torch.cat([past_key, key], dim=2)
        value = torch.cat([past_value, value], dim=2)
    batch, heads, new, size = query.shape
    kv_heads, total = key.shape[1], key.shape[2]
    key = key.repeat_interleave(heads // kv_heads, dim=1)
    value = value.repeat_interleave(heads // kv_heads, dim=1)
    factor = size**-0.5 if scale is None else scale
    logits = query @ key.mT * factor
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    place = torch.arange(new, device=query.device) + total - new
    ahead = torch.arange(total, device=query.device) - place[:, None]
    seen = torch.ones(batch, heads, new, total, dtype=torch.bool, device=query.device)
    if keep is not None:
        seen = seen & keep
    if causal:
        seen = seen & (ahead <= 0)
    if window is not None and window[0] >= 0:
        seen = seen & (ahead >= -window[0])
    if window is not None and window[1] >= 0:
        seen = seen & (ahead <= window[1])
    logits = logits.masked_fill(~seen, -torch.inf)
    if sinks is None:
        return logits.softmax(-1).masked_fill(~seen, 0.0) @ value
    sink = sinks.to(logits.dtype).view(1, heads, 1, 1)
    peak = torch.maximum(logits.amax(-1, keepdim=True), sink)
    powers = torch.exp(logits - peak)
    return (powers @ value) / (powers.sum(-1, keepdim=True) + torch.exp(sink - peak))
