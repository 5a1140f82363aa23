# As people write them, with what they leave out.
# ruff: noqa: ANN001, ANN201, ANN202, N812
"""Wrong implementations whose mistake has no name: a diagnosis must not make one up."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from handwritten_mistakes.handwritten import Collection
from handwritten_mistakes.layer_parts import heads_of, merged, projected

OUTSIDE = Collection()
core, layer = OUTSIDE.core, OUTSIDE.layer


@core()
def position_penalty(q, k, v):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    apart = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
    return (s - 0.3 * apart.abs()).softmax(-1) @ v


@core()
def noisy(q, k, v):
    return F.scaled_dot_product_attention(q, k, v) + 0.1 * torch.randn(v.shape[-1])


@core()
def top_two_only(q, k, v):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    kth = s.topk(min(2, s.shape[-1]), dim=-1).values[..., -1:]
    return s.masked_fill(s < kth, -math.inf).softmax(-1) @ v


@core()
def shifted_answer(q, k, v):
    return F.scaled_dot_product_attention(q, k, v) + 0.25


@core()
def answer_times_three_quarters(q, k, v):
    return 0.75 * F.scaled_dot_product_attention(q, k, v)


@core()
def weights_squared(q, k, v):
    w = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return (w**2) @ v


@core()
def centred_queries(q, k, v):
    return F.scaled_dot_product_attention(q - q.mean(dim=2, keepdim=True), k, v)


@core()
def first_channel_lost(q, k, v):
    return F.scaled_dot_product_attention(q[..., 1:], k[..., 1:], v, scale=q.shape[-1] ** -0.5)


@core(causal="bottom-right")
def causal_of_every_second(q, k, v, *, causal=False):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        ahead = (
            torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None] + q.shape[2] - k.shape[2]
        )
        s = s.masked_fill((ahead > 0) | ((ahead % 2 == 1) & (ahead < -2)), -math.inf)
    return s.softmax(-1) @ v


@layer()
def normalised_heads(g, w):
    def forward(query, key, value):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, query, key, value))
        out = merged(F.scaled_dot_product_attention(q, k, v))
        return F.linear(F.layer_norm(out, out.shape[-1:]), w.o, w.o_bias)

    return forward


@layer()
def gelu_between(g, w):
    def forward(query, key, value):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, query, key, value))
        return F.gelu(F.linear(merged(F.scaled_dot_product_attention(q, k, v)), w.o, w.o_bias))

    return forward


@layer()
def rotated_queries(g, w):
    def forward(query, key, value):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, query, key, value))
        turn = torch.arange(q.shape[2])[:, None] * 0.1
        q = q * turn.cos() + q.roll(1, -1) * turn.sin()
        return F.linear(merged(F.scaled_dot_product_attention(q, k, v)), w.o, w.o_bias)

    return forward
