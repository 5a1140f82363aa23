# As people write them, with what they leave out.
# ruff: noqa: ANN001, ANN201
"""Implementations by people who did not know the catalogue, once told wrongly or not at all."""

from __future__ import annotations

import math

import torch

from handwritten_mistakes.handwritten import Collection

MENDED = Collection()
core = MENDED.core


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
