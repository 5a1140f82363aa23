# As people write them, with what they leave out.
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, N812, ARG001, D101, D102
"""Layers with one mistake each, written as people write them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from handwritten_mistakes.handwritten import Collection

LAYERS = Collection()
layer = LAYERS.layer
SAME = {"value_head_size": "head_size"}
ONE_WIDTH = {
    "query_size": 12,
    "key_size": 12,
    "value_size": 12,
    "output_size": 12,
    "num_heads": 3,
    "head_size": 4,
    "value_head_size": 4,
}


def heads_of(x, n):
    return x.view(x.shape[0], x.shape[1], n, -1).transpose(1, 2)


def projected(w, q, k, v):
    return F.linear(q, w.q, w.q_bias), F.linear(k, w.k, w.k_bias), F.linear(v, w.v, w.v_bias)


def merged(x):
    return x.transpose(1, 2).contiguous().view(x.shape[0], x.shape[2], -1)


@layer("heads-merged-without-transpose")
def reshape_without_transpose(g, w):
    def forward(query, key, value):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, query, key, value))
        out = F.scaled_dot_product_attention(q, k, v)
        return F.linear(out.reshape(query.shape[0], query.shape[1], -1), w.o, w.o_bias)

    return forward


@layer("heads-split-without-transpose")
def view_as_heads(g, w):
    def forward(query, key, value):
        q, k, v = (
            t.reshape(t.shape[0], g.num_heads, t.shape[1], -1)
            for t in projected(w, query, key, value)
        )
        return F.linear(merged(F.scaled_dot_product_attention(q, k, v)), w.o, w.o_bias)

    return forward


@layer("heads-split-interleaved")
def channels_dealt_out(g, w):
    def forward(query, key, value):
        q, k, v = (
            t.unflatten(-1, (-1, g.num_heads)).permute(0, 3, 1, 2)
            for t in projected(w, query, key, value)
        )
        return F.linear(merged(F.scaled_dot_product_attention(q, k, v)), w.o, w.o_bias)

    return forward


@layer("output-projection-missing", geometry=ONE_WIDTH)
def forgets_out_proj(g, w):
    def forward(query, key, value):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, query, key, value))
        return merged(F.scaled_dot_product_attention(q, k, v))

    return forward


@layer("output-bias-once-per-head")
def loop_over_heads(g, w):
    def forward(query, key, value):
        d, e = g.head_size, g.value_head_size
        total = 0
        for h in range(g.num_heads):
            q = F.linear(query, w.q, w.q_bias)[..., h * d : (h + 1) * d]
            k = F.linear(key, w.k, w.k_bias)[..., h * d : (h + 1) * d]
            v = F.linear(value, w.v, w.v_bias)[..., h * e : (h + 1) * e]
            a = torch.softmax(q @ k.mT / math.sqrt(d), -1) @ v
            total = total + F.linear(a, w.o[:, h * e : (h + 1) * e], w.o_bias)
        return total

    return forward


class KeyWithQueryProjection(nn.Module):
    def __init__(self, g, w):
        super().__init__()
        self.g, self.w = g, w

    def forward(self, query, key, value):
        w, n = self.w, self.g.num_heads
        q, k = F.linear(query, w.q, w.q_bias), F.linear(key, w.q, w.q_bias)
        q, k, v = (heads_of(t, n) for t in (q, k, F.linear(value, w.v, w.v_bias)))
        return F.linear(merged(F.scaled_dot_product_attention(q, k, v)), w.o, w.o_bias)


layer("key-projected-as-query", geometry={"key_size": "query_size"})(KeyWithQueryProjection)


@layer("residual-added", geometry={"output_size": "query_size"})
def with_residual(g, w):
    def forward(query, key, value):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, query, key, value))
        return query + F.linear(merged(F.scaled_dot_product_attention(q, k, v)), w.o, w.o_bias)

    return forward


@layer("biases-missing")
def no_biases(g, w):
    def forward(query, key, value):
        q, k, v = (
            heads_of(t @ m.T, g.num_heads) for t, m in ((query, w.q), (key, w.k), (value, w.v))
        )
        return merged(F.scaled_dot_product_attention(q, k, v)) @ w.o.T

    return forward


@layer("projections-transposed", geometry=ONE_WIDTH)
def x_times_w(g, w):
    def forward(query, key, value):
        q, k, v = (
            heads_of(t @ m + (0 if b is None else b), g.num_heads)
            for t, m, b in ((query, w.q, w.q_bias), (key, w.k, w.k_bias), (value, w.v, w.v_bias))
        )
        out = merged(F.scaled_dot_product_attention(q, k, v)) @ w.o
        return out if w.o_bias is None else out + w.o_bias

    return forward


@layer("heads-taken-for-tokens", inputs="self", geometry=SAME)
def no_transpose_at_all(g, w):
    def forward(x):
        q, k, v = (t.view(*x.shape[:2], g.num_heads, -1) for t in projected(w, x, x, x))
        out = F.scaled_dot_product_attention(q, k, v)
        return F.linear(out.flatten(2), w.o, w.o_bias)

    return forward


@layer("batch-taken-for-tokens", inputs="self")
def sequence_first(g, w):
    def forward(x):
        q, k, v = (heads_of(t.transpose(0, 1), g.num_heads) for t in projected(w, x, x, x))
        out = merged(F.scaled_dot_product_attention(q, k, v))
        return F.linear(out, w.o, w.o_bias).transpose(0, 1)

    return forward


@layer("scale-of-full-width", geometry=SAME)
def scaled_by_d_model(g, w):
    def forward(query, key, value):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, query, key, value))
        a = torch.softmax(q @ k.mT / math.sqrt(g.num_heads * g.head_size), -1)
        return F.linear(merged(a @ v), w.o, w.o_bias)

    return forward


@layer(
    "query-used-for-key-and-value",
    "key-used-for-query",
    geometry={"key_size": "query_size", "value_size": "query_size"},
)
def ignores_the_context(g, w):
    def forward(query, key, value):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, query, query, query))
        return F.linear(merged(F.scaled_dot_product_attention(q, k, v)), w.o, w.o_bias)

    return forward


@layer("heads-concatenated-along-tokens", geometry={"num_heads": 2})
def cat_along_tokens(g, w):
    def forward(query, key, value):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, query, key, value))
        a = F.scaled_dot_product_attention(q, k, v)
        out = torch.cat([a[:, h] for h in range(g.num_heads)], dim=1)
        return F.linear(out, w.o[:, : g.value_head_size], w.o_bias)

    return forward
