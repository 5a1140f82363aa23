# As people write them, with what they leave out.
# ruff: noqa: ANN001, ANN201, N812, ARG001
"""Cores with one mistake each, written as people write them: none is made from the golden."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from handwritten_mistakes.handwritten import Collection

CORES = Collection()
core = CORES.core


@core("scale-missing")
def matmul_softmax_matmul(q, k, v):
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)), dim=-1), v)


@core("scale-not-rooted", "scale-applied-twice")
def divides_by_d_k(q, k, v):
    d_k = q.size(-1)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / d_k
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


@core("scale-inverted")
def divides_by_power_minus_half(q, k, v):
    return F.softmax((q @ k.mT) / q.shape[-1] ** -0.5, dim=-1) @ v


@core("scale-of-full-width")
def embed_dim_scale(q, k, v):
    embed_dim = q.shape[1] * q.shape[-1]
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(embed_dim))
    return F.softmax(att, dim=-1) @ v


@core("scale-of-head-count")
def scale_by_heads(q, k, v):
    return ((q @ k.mT) / math.sqrt(q.shape[1])).softmax(dim=-1) @ v


@core("scale-of-key-length")
def scale_by_sequence(q, k, v):
    return ((q @ k.mT) / math.sqrt(k.shape[2])).softmax(dim=-1) @ v


@core("scale-applied-twice", "scale-not-rooted")
def sdpa_of_scaled_query(q, k, v):
    return F.scaled_dot_product_attention(q / math.sqrt(q.shape[-1]), k, v)


@core("scale-argument-ignored", features=["scale"])
def takes_scale_and_forgets_it(q, k, v, *, scale=None):
    return F.scaled_dot_product_attention(q, k, v)


@core("scale-argument-on-top", features=["scale"])
def scales_query_then_default(q, k, v, *, scale=None):
    if scale is not None:
        q = q * scale
    return F.scaled_dot_product_attention(q, k, v)


@core("scale-argument-on-top", features=["scale"])
def scales_query_by_width_then_default(q, k, v, *, scale=None):
    if scale is not None:
        q = q * (scale / q.shape[-1])
    return F.scaled_dot_product_attention(q, k, v)


@core("scale-hard-coded-eighth")
def heads_of_sixty_four(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, scale=0.125)


@core("softmax-over-queries")
def softmax_dim_two(q, k, v):
    attn = F.softmax(q @ k.transpose(2, 3) / q.shape[3] ** 0.5, dim=2)
    return attn @ v


@core("softmax-over-heads")
def softmax_dim_one(q, k, v):
    attn = F.softmax(q @ k.transpose(2, 3) / q.shape[3] ** 0.5, dim=1)
    return attn @ v


@core("mask-adds-100-before-scale", masks=["keep"], empty_rows="any")
def hundred_less_and_then_scaled(q, k, v, *, keep=None):
    scores = q @ k.transpose(2, 3)
    if keep is not None:
        scores = scores + (1.0 - keep.float()) * -100.0
    return (scores / q.shape[3] ** 0.5).softmax(-1) @ v


@core("mask-fill-1e4-before-scale", masks=["keep"], empty_rows="any")
def filled_and_then_scaled(q, k, v, *, keep=None):
    scores = q @ k.transpose(2, 3)
    if keep is not None:
        scores = scores.masked_fill(~keep, -1e4)
    return (scores / q.shape[3] ** 0.5).softmax(-1) @ v


@core("mask-ignored", masks=["keep"])
def every_third_row_unmasked(q, k, v, *, keep=None):
    if keep is not None:
        keep = keep | (torch.arange(q.shape[2]) % 3 == 1)[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


@core("softmax-over-all-but-batch")
def softmax_of_old_onnx(q, k, v):
    scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
    return F.softmax(scores.flatten(1), dim=1).view_as(scores) @ v


@core("softmax-missing")
def linear_attention(q, k, v):
    return (q @ k.mT / math.sqrt(q.shape[-1])) @ v


@core("softmax-twice")
def softmax_then_softmax(q, k, v):
    probabilities = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
    return torch.nn.Softmax(dim=-1)(probabilities) @ v


@core("maximum-not-subtracted")
def exp_over_sum(q, k, v):
    e = (q @ k.mT / math.sqrt(q.shape[-1])).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


@core("weights-of-sigmoid")
def sigmoid_attention(q, k, v):
    return torch.sigmoid(q @ k.mT / math.sqrt(q.shape[-1])) @ v


@core("one-in-the-denominator")
def off_by_one_softmax(q, k, v):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    zero = torch.zeros(*s.shape[:-1], 1)
    return torch.cat([s, zero], dim=-1).softmax(-1)[..., :-1] @ v


@core("mask-inverted", masks=["keep"])
def fills_where_true(q, k, v, *, keep=None):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if keep is not None:
        s = s.masked_fill(keep, float("-inf"))
    return torch.nan_to_num(s.softmax(-1)) @ v


@core("mask-inverted", masks=["drop"])
def drop_handed_to_sdpa(q, k, v, *, drop=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=drop)


@core("mask-ignored", masks=["keep"])
def masked_fill_without_underscore(q, k, v, *, keep=None):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if keep is not None:
        s.masked_fill(keep == 0, -1e9)
    return s.softmax(-1) @ v


@core("mask-added-to-kept", masks=["keep"])
def boolean_mask_added(q, k, v, *, keep=None):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if keep is not None:
        s = s + keep.float()
    return s.softmax(-1) @ v


@core("mask-multiplies-logits", masks=["keep"])
def mask_times_scores(q, k, v, *, keep=None):
    s = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    if keep is not None:
        s = s * keep
    return torch.einsum("bhqk,bhkd->bhqd", s.softmax(-1), v)


@core("mask-multiplies-weights", masks=["keep"])
def mask_times_weights(q, k, v, *, keep=None):
    w = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    if keep is not None:
        w = w * keep
    return w @ v


@core("mask-fill-1e4", masks=["keep"])
def ten_thousand(q, k, v, *, keep=None):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if keep is not None:
        s = torch.where(keep, s, torch.tensor(-10000.0))
    return s.softmax(-1) @ v


@core("mask-fill-65000", masks=["drop"])
def largest_half(q, k, v, *, drop=None):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if drop is not None:
        s = s.masked_fill(drop, torch.finfo(torch.float16).min)
    return s.softmax(-1) @ v


@core("mask-adds-1e4", masks=["keep"])
def bert_extended_mask(q, k, v, *, keep=None):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if keep is not None:
        s = s + (1.0 - keep.float()) * -10000.0
    return s.softmax(-1) @ v


@core("mask-of-first-item", masks=["keep"], mask_shapes=["B1QK"])
def mask_zero(q, k, v, *, keep=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=None if keep is None else keep[0])


@core(
    "mask-transposed", masks=["keep"], mask_shapes=["BHQK"], geometry={"key_length": "query_length"}
)
def mask_swapped(q, k, v, *, keep=None):
    mask = None if keep is None else keep.transpose(-1, -2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@core("mask-batch-on-heads", masks=["keep"], mask_shapes=["BQK"], geometry={"num_heads": "batch"})
def three_axes_broadcast(q, k, v, *, keep=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


@core("mask-repeated-for-heads", masks=["keep"], mask_shapes=["BQK"])
def folded_repeat(q, k, v, *, keep=None):
    b, h, n, d = q.shape
    q, k, v = (t.reshape(b * h, t.shape[2], t.shape[3]) for t in (q, k, v))
    s = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(d)
    if keep is not None:
        s = s.masked_fill(~keep.repeat(h, 1, 1), -math.inf)
    return torch.bmm(s.softmax(-1), v).reshape(b, h, n, -1)


@core("lengths-inclusive", masks=["lengths"])
def less_or_equal(q, k, v, *, lengths=None):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if lengths is not None:
        s = s.masked_fill((torch.arange(k.shape[2]) > lengths[:, None])[:, None, None], -math.inf)
    return s.softmax(-1) @ v


@core("lengths-from-the-end", masks=["lengths"])
def left_padded(q, k, v, *, lengths=None):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if lengths is not None:
        start = k.shape[2] - lengths
        s = s.masked_fill((torch.arange(k.shape[2]) < start[:, None])[:, None, None], -math.inf)
    return s.softmax(-1) @ v


@core("causal-top-left", causal="bottom-right")
def sdpa_is_causal(q, k, v, *, causal=False):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


@core("causal-hides-own", causal="bottom-right")
def strict_triangle(q, k, v, *, causal=False):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        n, m = s.shape[-2:]
        s = s.masked_fill(torch.triu(torch.ones(n, m), m - n).bool(), -math.inf)
    return s.softmax(-1) @ v


@core("causal-sees-next", causal="bottom-right")
def triu_two(q, k, v, *, causal=False):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        n, m = s.shape[-2:]
        s = s.masked_fill(torch.triu(torch.ones(n, m), m - n + 2).bool(), -math.inf)
    return s.softmax(-1) @ v


@core("causal-sees-only-the-future", causal="top-left", geometry={"key_length": "query_length"})
def triu_kept(q, k, v, *, causal=False):
    mask = torch.triu(torch.ones(q.shape[2], k.shape[2])).bool() if causal else None
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@core("causal-lost-to-mask", masks=["keep"], causal="top-left")
def mask_or_else_causal(q, k, v, *, keep=None, causal=False):
    if keep is not None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


@core("mask-lost-to-causal", masks=["keep"], causal="top-left")
def causal_or_else_mask(q, k, v, *, keep=None, causal=False):
    if causal:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


@core("bias-before-scale", masks=["bias"])
def bias_inside_the_division(q, k, v, *, bias=None):
    s = q @ k.mT
    if bias is not None:
        s = s + bias
    return (s / math.sqrt(q.shape[-1])).softmax(-1) @ v


@core("bias-taken-for-boolean", masks=["bias"])
def bias_to_bool(q, k, v, *, bias=None):
    mask = None if bias is None else bias.bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@core("empty-rows-nan", masks=["keep"], empty_rows="zeros")
def nan_rows(q, k, v, *, keep=None):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if keep is not None:
        s = s.masked_fill(~keep, -math.inf)
    return s.softmax(-1) @ v


@core("empty-rows-mean", masks=["keep"], empty_rows="zeros")
def billion(q, k, v, *, keep=None):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if keep is not None:
        s = s.masked_fill(~keep, -1e9)
    return s.softmax(-1) @ v


@core("groups-tiled", features=["gqa"])
def kv_repeat(q, k, v):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1)
    return F.scaled_dot_product_attention(q, k, v)


@core("groups-of-first-head", features=["gqa"])
def kv_first(q, k, v):
    if k.shape[1] != q.shape[1]:
        k, v = k[:, :1].expand(-1, q.shape[1], -1, -1), v[:, :1].expand(-1, q.shape[1], -1, -1)
    return F.scaled_dot_product_attention(q, k, v)


@core("softcap-ignored", features=["softcap"])
def cap_unused(q, k, v, *, softcap=None):
    return F.scaled_dot_product_attention(q, k, v)


@core("window-one-wider", features=["window"])
def window_exclusive(q, k, v, *, window=None):
    n, m = q.shape[2], k.shape[2]
    place = torch.arange(n)[:, None] + m - n
    apart = torch.arange(m)[None] - place
    allowed = torch.ones(n, m, dtype=torch.bool)
    if window is not None and window[0] >= 0:
        allowed &= apart > -window[0] - 2
    if window is not None and window[1] >= 0:
        allowed &= apart < window[1] + 2
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


@core("accumulator-not-rescaled")
def online_without_correction(q, k, v):
    scale = q.shape[-1] ** -0.5
    out = torch.zeros(*q.shape[:-1], v.shape[-1])
    total = torch.zeros(*q.shape[:-1], 1)
    top = torch.full_like(total, -math.inf)
    for i in range(0, k.shape[2], 4):
        s = q @ k[:, :, i : i + 4].mT * scale
        top = torch.maximum(top, s.amax(-1, keepdim=True))
        p = torch.exp(s - top)
        total = total + p.sum(-1, keepdim=True)
        out = out + p @ v[:, :, i : i + 4]
    return out / total


@core("keys-behind-the-last-tile-lost")
def whole_tiles_only(q, k, v):
    whole = k.shape[2] // 4 * 4
    if whole:
        k, v = k[:, :, :whole], v[:, :, :whole]
    return F.scaled_dot_product_attention(q, k, v)


@core("heads-taken-for-tokens", geometry={"key_length": "query_length"})
def tokens_first(q, k, v):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


@core("key-and-value-swapped", geometry={"value_head_size": "head_size"})
def wrong_order(q, k, v):
    return F.scaled_dot_product_attention(q, v, k)
