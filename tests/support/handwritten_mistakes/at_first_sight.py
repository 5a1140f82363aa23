# As people write them, with what they leave out.
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, N812, ARG001, D102, E741, E501
"""A second batch in other styles, written after the engine was finished: what it did at first sight.

25 of 26 were named rightly then, none wrongly; ``stable_softmax`` was unknown, since it divides after
the weighted sum and rows that nearly vanish lose other digits so.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from handwritten_mistakes.handwritten import Collection
from handwritten_mistakes.layers import ONE_WIDTH

SECOND = Collection()
core, layer = SECOND.core, SECOND.layer


@core("scale-missing")
def numpy_attention(query, key, value):
    q, k, v = query.numpy(), key.numpy(), value.numpy()
    s = np.einsum("bhqd,bhkd->bhqk", q, k)
    e = np.exp(s - s.max(-1, keepdims=True))
    return torch.from_numpy(np.einsum("bhqk,bhkd->bhqd", e / e.sum(-1, keepdims=True), v))


@core("scale-of-value-size")
def loops_everywhere(query, key, value):
    out = torch.zeros(*query.shape[:3], value.shape[3])
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            for i in range(query.shape[2]):
                s = torch.stack([query[b, h, i] @ row for row in key[b, h]]) / value.shape[3] ** 0.5
                out[b, h, i] = torch.softmax(s, 0) @ value[b, h]
    return out


@core("softmax-over-batch")
def implicit_dim(query, key, value):
    s = (query @ key.mT) * query.shape[-1] ** -0.5
    return F.softmax(s, dim=0) @ value


@core("maximum-of-the-whole-tensor")
def stable_softmax(query, key, value):
    s = query @ key.mT / math.sqrt(query.shape[-1])
    e = torch.exp(s - s.max())
    return e @ value / e.sum(-1, keepdim=True)


@core("running-maximum-starts-at-zero")
def flash_loop(query, key, value):
    m = torch.zeros(*query.shape[:3], 1)
    l, o = torch.zeros_like(m), torch.zeros(*query.shape[:3], value.shape[-1])
    for j in range(0, key.shape[2], 3):
        s = query @ key[:, :, j : j + 3].mT / math.sqrt(query.shape[-1])
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, c = torch.exp(s - new), torch.exp(m - new)
        l, o, m = c * l + p.sum(-1, keepdim=True), c * o + p @ value[:, :, j : j + 3], new
    return o / l


@core("padding-of-the-last-tile-counted")
def padded_to_eight(query, key, value):
    more = -key.shape[2] % 8
    k, v = F.pad(key, (0, 0, 0, more)), F.pad(value, (0, 0, 0, more))
    return F.scaled_dot_product_attention(query, k, v)


@core("values-reversed")
def values_backwards(query, key, value):
    return F.scaled_dot_product_attention(query, key, torch.flip(value, dims=[2]))


@core("values-of-another-head")
def next_head(query, key, value):
    v = torch.roll(value, shifts=1, dims=1)
    return F.scaled_dot_product_attention(query, key, v)


@core("keys-and-values-of-first-item")
def memory_not_batched(query, key, value):
    k, v = key[0], value[0]
    return F.scaled_dot_product_attention(query, k.expand_as(key), v.expand_as(value))


@core("heads-averaged")
def averaged_heads(query, key, value):
    out = F.scaled_dot_product_attention(query, key, value)
    return out.mean(1, keepdim=True).repeat(1, out.shape[1], 1, 1)


@core("mask-of-first-head", masks=["keep"], mask_shapes=["BHQK"])
def only_first_heads_mask(query, key, value, *, keep=None):
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=None if keep is None else keep[:, 0].unsqueeze(1)
    )


@core("keep-int-inverted", masks=["keep", "keep_int"])
def integer_as_padding(query, key, value, *, keep=None, keep_int=None):
    if keep_int is not None:
        keep = keep_int == 0
    return F.scaled_dot_product_attention(query, key, value, attn_mask=keep)


@core("lengths-ignored", masks=["keep", "lengths"])
def lengths_for_later(query, key, value, *, keep=None, lengths=None):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=keep)


@core("bias-subtracted", masks=["bias"])
def minus_bias(query, key, value, *, bias=None):
    s = query @ key.mT / math.sqrt(query.shape[-1])
    if bias is not None:
        s = torch.where(torch.isinf(bias), bias, s - bias)
    return s.softmax(-1) @ value


@core("causal-or-mask", masks=["keep"], causal="top-left")
def either_table(query, key, value, *, keep=None, causal=False):
    if causal:
        triangle = torch.ones(query.shape[2], key.shape[2]).tril().bool()
        keep = triangle if keep is None else keep | triangle
    return F.scaled_dot_product_attention(query, key, value, attn_mask=keep)


@core("causal-multiplies-weights", causal="top-left")
def tril_of_weights(query, key, value, *, causal=False):
    w = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1)
    return (w.tril() if causal else w) @ value


@core("softcap-after-mask", masks=["keep"], features=["softcap"], empty_rows="any")
def capped_last(query, key, value, *, keep=None, softcap=None):
    s = query @ key.mT / math.sqrt(query.shape[-1])
    if keep is not None:
        s = s.masked_fill(~keep, -math.inf)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    return s.softmax(-1) @ value


@core("window-sides-swapped", features=["window"])
def right_then_left(query, key, value, *, window=None):
    n, m = query.shape[2], key.shape[2]
    gap = torch.arange(m)[None, :] - torch.arange(n)[:, None] - (m - n)
    ok = torch.ones(n, m, dtype=torch.bool)
    if window is not None:
        right, left = window
        ok = ok & (gap >= -left if left >= 0 else ok) & (gap <= right if right >= 0 else ok)
    s = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(~ok, -math.inf)
    return torch.nan_to_num(s.softmax(-1)) @ value


class Fused(nn.Module):
    """One matrix for query, key and value, cut in the order of another library."""

    def __init__(self, g, w):
        super().__init__()
        self.n, self.d, self.w = g.num_heads, g.head_size, w
        self.qkv = torch.cat([w.q, w.k, w.v])
        self.b = None if w.q_bias is None else torch.cat([w.q_bias, w.k_bias, w.v_bias])

    def cut(self, x):
        b, t, _ = x.shape
        return F.linear(x, self.qkv, self.b).view(b, t, self.n, 3, self.d).permute(3, 0, 2, 1, 4)

    def forward(self, x):
        q, k, v = self.cut(x)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(*x.shape[:2], -1)
        return F.linear(y, self.w.o, self.w.o_bias)


layer("fused-projection-cut-by-heads", inputs="self", geometry=ONE_WIDTH)(Fused)


class Swapped(Fused):
    """The chunks are named in the wrong order."""

    def forward(self, x):
        k, q, v = F.linear(x, self.qkv, self.b).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.n, -1)).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return F.linear(y, self.w.o, self.w.o_bias)


layer("query-and-key-projections-swapped", inputs="self", geometry=ONE_WIDTH)(Swapped)


@layer("one-projection-for-all-heads", geometry=ONE_WIDTH)
def single_head_projection(g, w):
    d = g.head_size

    def forward(query, key, value):
        q, k, v = (
            F.linear(x, m[:d], None if b is None else b[:d])
            for x, m, b in ((query, w.q, w.q_bias), (key, w.k, w.k_bias), (value, w.v, w.v_bias))
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return F.linear(torch.cat([y] * g.num_heads, -1), w.o, w.o_bias)

    return forward


@layer("heads-merged-interleaved")
def stacked_on_the_wrong_axis(g, w):
    def forward(query, key, value):
        heads = []
        for h in range(g.num_heads):
            a, z = slice(h * g.head_size, (h + 1) * g.head_size), g.value_head_size
            c = slice(h * z, (h + 1) * z)
            q, k = F.linear(query, w.q, w.q_bias)[..., a], F.linear(key, w.k, w.k_bias)[..., a]
            v = F.linear(value, w.v, w.v_bias)[..., c]
            heads.append(F.scaled_dot_product_attention(q, k, v))
        return F.linear(torch.stack(heads, dim=-1).flatten(2), w.o, w.o_bias)

    return forward


@layer("output-projection-transposed", geometry=ONE_WIDTH)
def o_from_the_other_side(g, w):
    def forward(query, key, value):
        def split(x, m, b):
            return F.linear(x, m, b).unflatten(-1, (g.num_heads, -1)).movedim(2, 1)

        q, k, v = (
            split(query, w.q, w.q_bias),
            split(key, w.k, w.k_bias),
            split(value, w.v, w.v_bias),
        )
        y = F.scaled_dot_product_attention(q, k, v).movedim(1, 2).flatten(2) @ w.o
        return y if w.o_bias is None else y + w.o_bias

    return forward


@layer("scale-of-input-width", geometry={"value_head_size": "head_size"})
def scale_of_the_embedding(g, w):
    def forward(query, key, value):
        def split(x, m, b):
            return F.linear(x, m, b).unflatten(-1, (g.num_heads, -1)).movedim(2, 1)

        q, k, v = (
            split(query, w.q, w.q_bias),
            split(key, w.k, w.k_bias),
            split(value, w.v, w.v_bias),
        )
        y = F.scaled_dot_product_attention(q, k, v, scale=query.shape[-1] ** -0.5)
        return F.linear(y.movedim(1, 2).flatten(2), w.o, w.o_bias)

    return forward


@layer("heads-reversed")
def popped_heads(g, w):
    def forward(query, key, value):
        def split(x, m, b):
            return F.linear(x, m, b).unflatten(-1, (g.num_heads, -1)).movedim(2, 1)

        q, k, v = (
            split(query, w.q, w.q_bias),
            split(key, w.k, w.k_bias),
            split(value, w.v, w.v_bias),
        )
        heads = list(F.scaled_dot_product_attention(q, k, v).unbind(1))
        y = torch.cat([heads.pop() for _ in range(g.num_heads)], -1)
        return F.linear(y, w.o, w.o_bias)

    return forward


@core("mask-fill-100", masks=["drop"], empty_rows="any")
def hundred(query, key, value, *, drop=None):
    s = torch.baddbmm(
        torch.zeros(1), query.flatten(0, 1), key.flatten(0, 1).mT, alpha=query.shape[-1] ** -0.5
    ).unflatten(0, query.shape[:2])
    if drop is not None:
        s[drop.expand_as(s)] = -100
    return s.softmax(-1) @ value
