"""Attention sinks: as a column, in an online softmax, behind the attention, as a key."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ._kit import admitted, core, factor

OFFERED = ["scale", "sinks"]


@core(features=[*OFFERED, "gqa"])
def sink_as_a_column(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """gpt-oss in transformers: one more column of logits, dropped behind the softmax."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    table = admitted(query, key, keep, causal=causal)
    logits = (query @ key.mT * factor(query, scale)).masked_fill(~table, -torch.inf)
    if sinks is None:
        weights = logits.softmax(dim=-1).masked_fill(~table, 0.0)
    else:
        column = sinks[:, None, None].expand(*logits.shape[:-1], 1)
        every = torch.cat([logits, column], dim=-1)
        every = every - every.amax(dim=-1, keepdim=True)
        weights = every.softmax(dim=-1)[..., :-1]
    return weights @ value


@core(features=[*OFFERED, "softcap"])
def sink_first(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """An online softmax whose maximum starts at the sink, and whose sum at one."""
    table = admitted(query, key, keep, causal=causal).expand(*query.shape[:3], key.shape[2])
    shape = (*query.shape[:3], 1)
    largest = torch.full(shape, -torch.inf)
    total = torch.zeros(shape)
    if sinks is not None:
        largest = sinks.float()[:, None, None].expand(shape)
        total = torch.ones(shape)
    output = torch.zeros(*query.shape[:3], value.shape[-1])
    for start in range(0, key.shape[2], 16):
        block = slice(start, start + 16)
        logits = query.float() @ key[:, :, block].float().mT * factor(query, scale)
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        logits = logits.masked_fill(~table[..., block], -torch.inf)
        higher = torch.maximum(largest, logits.amax(dim=-1, keepdim=True))
        safe = torch.where(torch.isneginf(higher), 0.0, higher)
        weights, shrunk = (logits - safe).exp(), (largest - safe).exp()
        total = total * shrunk + weights.sum(dim=-1, keepdim=True)
        output = output * shrunk + weights @ value[:, :, block].float()
        largest = higher
    return (output / torch.where(total == 0, 1.0, total)).to(query.dtype)


@core(features=OFFERED)
def sink_behind_the_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Ordinary attention, times the share that the sink leaves: a sigmoid of its distance."""
    table = admitted(query, key, keep, causal=causal)
    logits = (query @ key.mT * factor(query, scale)).float().masked_fill(~table, -torch.inf)
    whole = logits.logsumexp(dim=-1, keepdim=True)
    weights = (logits - torch.where(torch.isneginf(whole), 0.0, whole)).exp()
    output = weights @ value.float()
    if sinks is not None:
        output = output * torch.sigmoid(whole - sinks.float()[:, None, None])
    return output.to(query.dtype)


@core(features=OFFERED, scores="fused")
def sink_as_a_key(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """A key and a value of zeros before all others, whose bias is the sink; torch's own kernel."""
    table = admitted(query, key, keep, causal=causal)
    bias = torch.zeros(table.shape).masked_fill(~table, -torch.inf)
    bias = bias.expand(*query.shape[:3], key.shape[2])
    if sinks is not None:
        bias = torch.cat([sinks.float()[:, None, None].expand(*bias.shape[:-1], 1), bias], dim=-1)
        key, value = (functional.pad(tokens, (0, 0, 1, 0)) for tokens in (key, value))
    answer = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=bias.to(query.dtype), scale=scale
    )
    return answer.masked_fill(torch.isneginf(bias).all(-1, keepdim=True), 0.0)
