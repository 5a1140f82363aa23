"""A sink as one more key: what is known of attention without sinks holds for it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from conformance._golden import golden


def with_sink(attention: golden.Attention) -> golden.Attention:
    """The same evaluation with a key and a value of zeros whose logit is the sink's.

    It stands last, every query attends it, and the weights of a row sum to one again. The given
    heads stay as they are.
    """
    sinks = attention.sinks
    if sinks is None or attention.key.shape[-2] < attention.logits.shape[-1]:
        return attention
    logit = sinks[:, None, None].expand(*attention.logits.shape[:-1], 1)
    logits = torch.cat([attention.logits, logit], dim=-1)
    whole = torch.logsumexp(logits, dim=-1, keepdim=True)
    weight = (logit - whole).exp()
    bias = attention.bias
    if bias is not None:
        bias = pad(bias.expand(*bias.shape[:-1], attention.logits.shape[-1]), (0, 1))
    alibi = attention.alibi
    return replace(
        attention,
        key=more_keys(attention.key),
        value=more_keys(attention.value),
        bias=bias,
        alibi=None if alibi is None else pad(alibi, (0, 1)),
        sinks=None,
        allowed=pad(attention.allowed, (0, 1), value=True),
        empty=attention.empty & torch.isneginf(logit).squeeze(-1),
        scores=pad(attention.scores, (0, 1)),
        capped=torch.cat([attention.capped, logit], dim=-1),
        modified=torch.cat([attention.modified, logit], dim=-1),
        logits=logits,
        weights=torch.cat([attention.weights, weight.nan_to_num(nan=0.0)], dim=-1),
    )


def more_keys(tokens: Tensor) -> Tensor:
    """Tokens ``[B, H, Lk, D]`` with one of zeros behind them."""
    return pad(tokens, (0, 0, 0, 1))


def has_sink(attention: golden.Attention) -> bool:
    """Whether the last logit is a sink's, as :func:`with_sink` puts it."""
    return attention.logits.shape[-1] > attention.given_key.shape[-2]
