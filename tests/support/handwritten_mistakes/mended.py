# As people write them, with what they leave out.
# ruff: noqa: ANN001, ANN003, ANN201, ANN202
"""Implementations by people who did not know the catalogue, once told wrongly or not at all."""

from __future__ import annotations

import math

import torch

from conformance import Semantics
from handwritten_mistakes.handwritten import Collection
from handwritten_mistakes.layer_parts import heads_of, projected

MENDED = Collection()
core, layer = MENDED.core, MENDED.layer


def scores_of(query, key):
    return query @ key.mT / math.sqrt(query.shape[-1])


def past(scores):
    """Keys after their query, top-left."""
    return ~torch.ones(scores.shape[-2:], dtype=torch.bool).tril()


@core("softmax-over-heads", masks=["keep"], mask_shapes=["BK"], empty_rows="any")
def bert_with_dim_one(query, key, value, *, keep=None):
    scores = scores_of(query, key)
    if keep is not None:
        scores = scores.masked_fill(~keep[:, None, None], torch.finfo(scores.dtype).min)
    return scores.softmax(dim=1) @ value


@core("softmax-over-heads", masks=["keep"], empty_rows="any")
def added_numbers_with_dim_one(query, key, value, *, keep=None):
    scores = scores_of(query, key)
    if keep is not None:
        scores = scores + (1.0 - keep.float()) * -10000.0
    return scores.softmax(dim=1) @ value


@core("softmax-over-queries", masks=["keep"], causal="top-left", empty_rows="any")
def two_fills_with_dim_two(query, key, value, *, keep=None, causal=False):
    scores = scores_of(query, key)
    if keep is not None:
        scores = scores.masked_fill(~keep, -1e4)
    if causal:
        scores = scores.masked_fill(past(scores), -1e9)
    return scores.softmax(dim=2) @ value


@core("softmax-over-batch", masks=["keep"], causal="top-left", empty_rows="any")
def infinite_triangle_with_dim_zero(query, key, value, *, keep=None, causal=False):
    scores = scores_of(query, key)
    if keep is not None:
        scores = scores.masked_fill(~keep, -1e9)
    if causal:
        scores = scores.masked_fill(past(scores), -math.inf)
    return scores.softmax(dim=0) @ value


@core("bias-before-scale", masks=["bias"], features=["scale"])
def infinite_bias_meets_any_scale(query, key, value, *, bias=None, scale=None):
    scores = query @ key.mT
    if bias is not None:
        scores = scores + bias
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    return scores.softmax(dim=-1) @ value


@core("mask-fill-50", masks=["keep"], empty_rows="any")
def filled_with_minus_fifty(query, key, value, *, keep=None):
    scores = scores_of(query, key)
    if keep is not None:
        scores = scores.masked_fill(~keep, -50.0)
    return scores.softmax(dim=-1) @ value


@core("mask-fill-3e4", masks=["keep"], empty_rows="any")
def filled_with_the_least_short(query, key, value, *, keep=None):
    scores = scores_of(query, key)
    if keep is not None:
        scores = torch.where(keep, scores, -32768.0)
    return scores.softmax(dim=-1) @ value


@core("query-used-for-key-and-value", masks=["keep"], empty_rows="any")
def attends_to_itself_where_the_mask_lets_it(query, key, value, *, keep=None):
    """Answers of another shape, where values are no wider than keys."""
    scores = scores_of(query, key)
    if keep is None or keep.shape[-1] == query.shape[2]:
        scores, value = scores_of(query, query), query
    if keep is not None:
        scores = scores.masked_fill(~keep, -math.inf)
    return scores.softmax(dim=-1) @ value


def packed(**promises):
    """What sequences that lie one after another promise."""
    return {"layout": "varlen", "causal": "bottom-right", "empty_rows": "nan", **promises}


def over_all_tokens(query, key, value, hidden):
    """One table of all tokens by all tokens."""
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[-1])
    weights = scores.masked_fill(hidden, -math.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, value)


def sequences_of(offsets, *, right=True):
    """The sequence of each token, and its place there."""
    index = torch.arange(int(offsets[-1]), dtype=torch.int32)
    item = (torch.searchsorted(offsets, index, right=right) - 1).clamp(min=0)
    return item, index - offsets[item]


@core("sequences-begin-late", **packed(causal=None))
def boundary_to_the_one_before(query, key, value, *, cu_seqlens_q, cu_seqlens_k, **_longest):
    item, _ = sequences_of(cu_seqlens_q)
    other, _ = sequences_of(cu_seqlens_k, right=False)
    return over_all_tokens(query, key, value, item[:, None] != other)


@core("sequences-counted-by-the-queries", **packed())
def places_by_the_offsets_of_queries(
    query, key, value, *, cu_seqlens_q, cu_seqlens_k, causal=False, **_longest
):
    (item, place), (other, _) = sequences_of(cu_seqlens_q), sequences_of(cu_seqlens_k)
    places = torch.arange(len(key)) - cu_seqlens_q[other]
    last = place + (cu_seqlens_k.diff() - cu_seqlens_q.diff())[item]
    hidden = item[:, None] != other
    return over_all_tokens(query, key, value, hidden | (causal & (places > last[:, None])))


@core("sequences-cut-by-the-queries", **packed())
def keys_from_the_offsets_of_queries(
    query, key, value, *, cu_seqlens_q, cu_seqlens_k, causal=False, **_longest
):
    """As many keys as the sequence has, or as are left, from where its queries begin."""
    item, place = sequences_of(cu_seqlens_q)
    begin = cu_seqlens_q[item][:, None]
    count = cu_seqlens_k.diff()[item][:, None].minimum((len(key) - begin).clamp(min=0))
    places = torch.arange(len(key)) - begin
    last = place[:, None] + count - cu_seqlens_q.diff()[item][:, None]
    hidden = (places < 0) | (places >= count)
    return over_all_tokens(query, key, value, hidden | (causal & (places > last)))


@core("causal-of-all-sequences", **packed())
def one_diagonal_for_all(
    query, key, value, *, cu_seqlens_q, cu_seqlens_k, causal=False, **_longest
):
    hidden = sequences_of(cu_seqlens_q)[0][:, None] != sequences_of(cu_seqlens_k)[0]
    ahead = torch.ones_like(hidden).triu(1 + len(key) - len(query))
    return over_all_tokens(query, key, value, hidden | (causal & ahead))


@core("scale-missing+causal-hides-own", causal="bottom-right", empty_rows="any")
def unscaled_and_strictly_causal(query, key, value, *, causal=False):
    """The first row has no key: the fill makes it the mean of all values."""
    scores = query @ key.mT
    if causal:
        queries, keys = scores.shape[-2:]
        hidden = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries)
        scores = scores.masked_fill(hidden, -1e9)
    return scores.softmax(dim=-1) @ value


@core("scale-missing+weights-transposed")
def unscaled_and_transposed_where_square(query, key, value):
    """The second can be made only where there are as many queries as keys."""
    weights = (query @ key.mT).softmax(dim=-1)
    square = query.shape[2] == key.shape[2]
    return (weights.mT if square else weights) @ value


@layer("scale-of-half-head-size+heads-merged-interleaved")
def half_the_head_size_and_channels_merged(g, w):
    """Both show in every call, but one alone with a single head."""

    def forward(query, key, value):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, query, key, value))
        weights = (q @ k.mT / math.sqrt(g.head_size / 2)).softmax(dim=-1)
        merged = (weights @ v).permute(0, 2, 3, 1).flatten(2)
        return torch.nn.functional.linear(merged, w.o, w.o_bias)

    return forward


@core("mask-adds-1e6", masks=["bias"], causal="bottom-right", empty_rows="any")
def minus_infinity_made_a_million(query, key, value, *, bias=None, causal=False):
    """What lies under minus infinity in the problem's own bias nobody sees."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias.clamp(min=-1e6)
    if causal:
        queries, keys = scores.shape[-2:]
        hidden = torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)
        scores = torch.where(hidden, scores - 1e6, scores)
    return scores.softmax(dim=-1) @ value


@core("key-used-for-query")
def keys_in_place_of_queries(query, key, value):
    """The answer has as many rows as there are keys."""
    return (key @ key.mT * query.shape[-1] ** -0.5).softmax(dim=-1) @ value


@layer("mask-of-first-item", inputs="self", masks=["keep"], mask_shapes=["BK"], empty_rows="any")
def mask_of_the_first_item_with_a_usual_fill(g, w):
    """A fill of -1e9 is no mistake beside it, but where a token sees its own squared logit."""

    def forward(tokens, *, keep=None):
        q, k, v = (heads_of(t, g.num_heads) for t in projected(w, tokens, tokens, tokens))
        scores = scores_of(q, k)
        if keep is not None:
            scores = scores.masked_fill(~keep[:1, None, None], -1e9)
        answer = (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)
        return torch.nn.functional.linear(answer, w.o, w.o_bias)

    return forward


def divided_by_their_size(heads, epsilon):
    return heads * torch.rsqrt(heads.square().mean(dim=-1, keepdim=True) + epsilon)


@core("qk-norm-epsilon-of-keys", semantics=Semantics(qk_norm="rms"))
def another_epsilon_of_the_keys(query, key, value):
    query, key = divided_by_their_size(query, 1e-6), divided_by_their_size(key, 1e-3)
    return scores_of(query, key).softmax(dim=-1) @ value


@core("bias-before-scale", masks=["bias"], causal="bottom-right", features=["scale"])
def added_before_the_scale_if_causal(query, key, value, *, bias=None, causal=False, scale=None):
    """The minus infinities of the flag are scaled, too: with no positive scale they are none."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    bias = 0.0 if bias is None else bias
    scores = query @ key.mT
    if not causal:
        return (scores * scale + bias).softmax(dim=-1) @ value
    queries, keys = scores.shape[-2:]
    hidden = torch.full((queries, keys), -math.inf).triu(1 + keys - queries)
    return ((scores + hidden + bias) * scale).softmax(dim=-1) @ value


@core("answer-with-tokens-before-heads")
def not_transposed_back(query, key, value):
    """Where there are as many heads as queries the shape is right."""
    weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(dim=-1)
    return (weights @ value).transpose(1, 2)


@core("answer-with-heads-merged")
def merged_as_a_layer_would(query, key, value):
    weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(dim=-1)
    return (weights @ value).transpose(1, 2).flatten(2)


@core(
    "visibility: no weight after the softmax for the last key+mask-inverted",
    masks=["keep"],
    empty_rows="zeros",
)
def inverted_and_the_last_key_left_out(query, key, value, *, keep=None):
    """What shows without a mask is read; the other is of the catalogue."""
    scores = scores_of(query, key)
    if keep is not None:
        scores = scores.masked_fill(keep, -math.inf)
    weights = scores.softmax(dim=-1).nan_to_num()
    return weights[..., :-1] @ value[..., :-1, :]


@core("causal-fill-1e5", causal="bottom-right", empty_rows="any")
def future_filled_with_a_hundred_thousand(query, key, value, *, causal=False):
    """Another fill of the triangle than -5e4 and -65504, which it is not called."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if causal:
        queries, keys = scores.shape[-2:]
        hidden = torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)
        scores = scores.masked_fill(hidden, -1e5)
    return scores.softmax(dim=-1) @ value
