# As people write them, with what they leave out.
# ruff: noqa: ANN001, ANN201, ANN202, N812, ARG001
"""Implementations with two mistakes each, written as people write them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from handwritten_mistakes.handwritten import Collection
from handwritten_mistakes.layers import ONE_WIDTH, SAME, heads_of, merged, projected

PAIRS = Collection()
core, layer = PAIRS.core, PAIRS.layer


def no_scale(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


@layer("scale-missing+heads-merged-without-transpose")
def unscaled_and_reshaped(g, w):
    def forward(query, key, value):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, query, key, value))
        return F.linear(no_scale(q, k, v).reshape(query.shape[0], -1, w.o.shape[1]), w.o, w.o_bias)

    return forward


@layer("scale-of-full-width+heads-split-without-transpose")
def wide_scale_and_view(g, w):
    def forward(query, key, value):
        q, k, v = (
            t.reshape(t.shape[0], g.num_heads, t.shape[1], -1)
            for t in projected(w, query, key, value)
        )
        scale = (g.num_heads * g.head_size) ** -0.5
        return F.linear(merged(F.scaled_dot_product_attention(q, k, v, scale=scale)), w.o, w.o_bias)

    return forward


@layer("softmax-over-queries+output-bias-missing")
def queries_and_no_bias(g, w):
    def forward(query, key, value):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, query, key, value))
        a = F.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-2) @ v
        return merged(a) @ w.o.T

    return forward


@layer("scale-missing+residual-added", geometry={"output_size": "query_size"})
def unscaled_residual(g, w):
    def forward(query, key, value):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, query, key, value))
        return query + F.linear(merged(no_scale(q, k, v)), w.o, w.o_bias)

    return forward


# Its pair comes after more pairs than are tried.
@layer("heads-split-interleaved+heads-merged-interleaved", "unknown-mistake")
def interleaved_both_ways(g, w):
    def forward(query, key, value):
        q, k, v = (
            t.unflatten(-1, (-1, g.num_heads)).permute(0, 3, 1, 2)
            for t in projected(w, query, key, value)
        )
        out = F.scaled_dot_product_attention(q, k, v).permute(0, 2, 3, 1).flatten(2)
        return F.linear(out, w.o, w.o_bias)

    return forward


@layer("key-projected-as-query+scale-missing", geometry={"key_size": "query_size"})
def shared_unscaled(g, w):
    def forward(query, key, value):
        q, k = F.linear(query, w.q, w.q_bias), F.linear(key, w.q, w.q_bias)
        q, k, v = (heads_of(t, g.num_heads) for t in (q, k, F.linear(value, w.v, w.v_bias)))
        return F.linear(merged(no_scale(q, k, v)), w.o, w.o_bias)

    return forward


@layer("causal-top-left+value-bias-missing", causal="bottom-right")
def left_and_no_value_bias(g, w):
    def forward(query, key, value, *, causal=False):
        q, k = F.linear(query, w.q, w.q_bias), F.linear(key, w.k, w.k_bias)
        q, k, v = (heads_of(t, g.num_heads) for t in (q, k, value @ w.v.T))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return F.linear(merged(a), w.o, w.o_bias)

    return forward


@layer("output-projection-missing+scale-of-full-width", geometry=ONE_WIDTH)
def no_out_proj_wide_scale(g, w):
    def forward(query, key, value):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, query, key, value))
        return merged(F.scaled_dot_product_attention(q, k, v, scale=12**-0.5))

    return forward


@layer("mask-inverted+heads-merged-without-transpose", masks=["keep"])
def inverted_and_reshaped(g, w):
    def forward(query, key, value, *, keep=None):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, query, key, value))
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=None if keep is None else ~keep)
        return F.linear(a.reshape(query.shape[0], -1, w.o.shape[1]), w.o, w.o_bias)

    return forward


@core("scale-missing+mask-inverted", masks=["keep"])
def unscaled_inverted(q, k, v, *, keep=None):
    s = q @ k.mT
    if keep is not None:
        s = s.masked_fill(keep, -math.inf)
    return s.softmax(-1) @ v


@core("scale-missing+causal-top-left", causal="bottom-right")
def unscaled_left(q, k, v, *, causal=False):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=1.0)


@core("softmax-over-queries+mask-ignored", masks=["keep"])
def queries_no_mask(q, k, v, *, keep=None):
    return F.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-2) @ v


@core("mask-ignored+causal-top-left", masks=["keep"], causal="bottom-right")
def no_mask_left(q, k, v, *, keep=None, causal=False):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


@core("mask-fill-1e4+scale-inverted", masks=["keep"])
def filled_and_multiplied(q, k, v, *, keep=None):
    s = q @ k.mT * math.sqrt(q.shape[-1])
    if keep is not None:
        s = s.masked_fill(~keep, -1e4)
    return s.softmax(-1) @ v


@core(
    "causal-sees-next+empty-rows-nan",
    masks=["keep"],
    causal="bottom-right",
    empty_rows="zeros",
    geometry={"key_length": "query_length"},
)
def next_and_nan(q, k, v, *, keep=None, causal=False):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if keep is not None:
        s = s.masked_fill(~keep, -math.inf)
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:]).triu(2).bool(), -math.inf)
    return s.softmax(-1) @ v


@core("bias-ignored+scale-missing", masks=["bias"])
def no_bias_no_scale(q, k, v, *, bias=None):
    s = q @ k.mT
    if bias is not None:
        s = s.masked_fill(torch.isneginf(bias), -math.inf)
    return s.softmax(-1) @ v


@core("groups-tiled+scale-missing", features=["gqa"])
def tiled_unscaled(q, k, v):
    n = q.shape[1] // k.shape[1]
    return no_scale(q, k.repeat(1, n, 1, 1), v.repeat(1, n, 1, 1))


@core("softcap-ignored+scale-argument-ignored", features=["softcap", "scale"])
def neither_option(q, k, v, *, softcap=None, scale=None):
    return F.scaled_dot_product_attention(q, k, v)


@core("mask-of-first-item+scale-of-key-length", masks=["keep"])
def first_mask_long_scale(q, k, v, *, keep=None):
    mask = None if keep is None else keep[:1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=k.shape[2] ** -0.5)


@core("lengths-inclusive+softmax-twice", masks=["lengths"])
def inclusive_twice(q, k, v, *, lengths=None):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if lengths is not None:
        s = s.masked_fill((torch.arange(k.shape[2]) > lengths[:, None])[:, None, None], -math.inf)
    p = s.softmax(-1).masked_fill(torch.isneginf(s), -math.inf)
    return p.softmax(-1) @ v


@core("key-and-value-swapped+scale-missing", geometry=SAME)
def swapped_unscaled(q, k, v):
    return no_scale(q, v, k)


@core("weights-of-sigmoid+causal-ignored", causal="bottom-right")
def sigmoid_everywhere(q, k, v, *, causal=False):
    return torch.sigmoid(q @ k.mT / math.sqrt(q.shape[-1])) @ v


@core("mask-inverted+first-key-lost", masks=["keep"], empty_rows="zeros")
def inverted_without_first(q, k, v, *, keep=None):
    seen = torch.arange(k.shape[2]) > 0
    seen = seen if k.shape[2] > 1 else ~seen
    if keep is not None:
        seen = seen & ~keep
    s = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
    return s.softmax(-1).nan_to_num() @ v
