"""Which rows a candidate can compute at all: every intermediate of the golden is representable."""

from __future__ import annotations

import torch
from torch import Tensor

from .._golden import golden
from ..declare.declaration import Declaration
from ..problems.materialise import TORCH_DTYPES
from ..tolerance import model


def finite_limit(declaration: Declaration, dtype: str) -> float:
    """The largest number that both the tensors' dtype and a declared accumulator can hold."""
    formats = {dtype, declaration.accumulate or dtype} - {"native"}
    return min(torch.finfo(TORCH_DTYPES[name]).max for name in formats)


def representable_rows(attention: golden.Attention, limit: float) -> Tensor:
    """Rows whose intermediate values stay clear of a largest number by ``model.HEADROOM``.

    Query, key and value (behind the projections of a layer), their squares where they are
    normalised, the unscaled products with all keys that a row attends, their sums with the bias,
    what a user's function makes of them, and the output. Returns bool ``[B, H, Lq]``.
    """
    room = model.HEADROOM * limit
    keys = _within(attention.key, room) & _within(attention.value, room)
    products = _products(attention).abs() <= room
    if attention.bias is not None:
        products = products & (attention.logits.abs() <= room)
    if attention.semantics.score_mod is not None:
        products = products & (attention.modified.abs() <= room)
    attended = (products | ~attention.allowed).all(dim=-1) & keys.all(dim=-1, keepdim=True)
    own = _within(attention.query, room) & representable_output(attention.output, limit)
    return attended & own & _squares(attention, room)


def _squares(attention: golden.Attention, room: float) -> Tensor:
    """Rows whose own sum of squares, and that of every key, is small: a norm needs it."""
    if attention.semantics.qk_norm == "none":
        return torch.ones_like(attention.empty)
    query, key = (heads.square() for heads in (attention.given_query, attention.given_key))
    keys = (key.sum(dim=-1) <= room).all(dim=-1, keepdim=True)
    return (query.sum(dim=-1) <= room) & keys


def representable_output(output: Tensor, limit: float) -> Tensor:
    """Rows ``[..., L]`` of an answer ``[..., L, E]`` that do; NaN is the rule of an empty row."""
    sizes = torch.where(torch.isnan(output), 0.0, output)
    return _within(sizes, model.HEADROOM * limit)


def _within(rows: Tensor, room: float) -> Tensor:
    """Rows of nothing but numbers of at most a size; NaN is none."""
    return (rows.abs() <= room).all(dim=-1)


def _products(attention: golden.Attention) -> Tensor:
    """Sizes of the products before the scale, or after one above 1; for no scale, of the norms."""
    if attention.scale != 0.0:
        return attention.scores / min(abs(attention.scale), 1.0)
    query = torch.linalg.vector_norm(attention.query, dim=-1)
    key = torch.linalg.vector_norm(attention.key, dim=-1)
    norms: Tensor = query.unsqueeze(-1) * key.unsqueeze(-2)
    return norms
