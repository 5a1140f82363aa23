"""Cores that compute in wide arithmetic and differ in where they round and in which order."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .arithmetic import finish, largest, logits, stored, transposed, wide
from .inputs import Heads


def mixed(scores: Tensor, heads: Heads, *, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax and weighted sum in wide arithmetic; weights stored in ``dtype`` if one is given."""
    weights = torch.softmax(scores, dim=-1)
    weights = weights if dtype is None else stored(weights, dtype)
    return (weights @ wide(heads.value)).to(heads.dtype)


def upcast(heads: Heads) -> Tensor:
    """Everything in wide arithmetic, rounded once at the end."""
    heads = heads.repeated()
    return mixed(logits(heads), heads)


def upcast_rounded_weights(heads: Heads) -> Tensor:
    """Wide arithmetic with the weights stored in the working dtype."""
    heads = heads.repeated()
    return mixed(logits(heads), heads, dtype=heads.dtype)


def query_scaled(heads: Heads) -> Tensor:
    """The query times the scale, stored in the working dtype, then wide arithmetic."""
    heads = heads.repeated()
    query = wide(heads.query * heads.scale)
    return mixed(finish(query @ transposed(wide(heads.key)), heads), heads)


def both_scaled(heads: Heads) -> Tensor:
    """Query and key each times the root of the scale, stored in the working dtype."""
    heads = heads.repeated()
    root = math.sqrt(heads.scale)
    query, key = wide(heads.query * root), wide(heads.key * root)
    return mixed(finish(query @ transposed(key), heads), heads)


def scale_stored(heads: Heads) -> Tensor:
    """The scale itself is a number of the working dtype."""
    heads = heads.repeated()
    scale = wide(torch.tensor(heads.scale, dtype=heads.dtype))
    products = wide(heads.query) @ transposed(wide(heads.key))
    return mixed(finish(products * scale, heads), heads)


def divided_by_root(heads: Heads) -> Tensor:
    """The product divided by the rounded root of the head size."""
    heads = heads.repeated()
    products = wide(heads.query) @ transposed(wide(heads.key))
    root = torch.tensor(1.0 / heads.scale, dtype=products.dtype)
    return mixed(finish(products / root, heads), heads)


def reciprocal(heads: Heads) -> Tensor:
    """The weighted sum of bare exponentials times one over their sum."""
    heads = heads.repeated()
    scores = logits(heads)
    weights = torch.exp(scores - largest(scores))
    total = weights.sum(dim=-1, keepdim=True).reciprocal()
    sums = stored(weights, heads.dtype) @ wide(heads.value)
    return (sums * total).to(heads.dtype)


def without_maximum(heads: Heads) -> Tensor:
    """Exponentials of the bare logits: correct while these are small."""
    heads = heads.repeated()
    weights = torch.exp(logits(heads))
    return (weights @ wide(heads.value) / weights.sum(dim=-1, keepdim=True)).to(heads.dtype)


def from_log_softmax(heads: Heads) -> Tensor:
    """Weights as exp(log_softmax), never divided by their sum."""
    heads = heads.repeated()
    weights = torch.exp(torch.log_softmax(logits(heads), dim=-1))
    return (weights @ wide(heads.value)).to(heads.dtype)


def from_log_sum_exp(heads: Heads) -> Tensor:
    """Weights as exp(logit - lse) with the lse stored."""
    heads = heads.repeated()
    scores = logits(heads)
    weights = torch.exp(scores - torch.logsumexp(scores, dim=-1, keepdim=True))
    return (weights @ wide(heads.value)).to(heads.dtype)


def wide_inside(heads: Heads) -> Tensor:
    """Everything in float64, rounded once."""
    return heads.golden().output.to(heads.dtype)


def numpy_arrays(heads: Heads) -> Tensor:
    """The plain formula in numpy."""
    heads = heads.repeated()
    query, key, value = (wide(t).numpy() for t in (heads.query, heads.key, heads.value))
    scores = query @ key.swapaxes(-1, -2) * query.dtype.type(heads.scale)
    scores = finish(torch.from_numpy(scores), heads).numpy()
    weights = torch.exp(torch.from_numpy(scores - scores.max(axis=-1, keepdims=True))).numpy()
    answer = weights / weights.sum(axis=-1, keepdims=True) @ value
    return torch.from_numpy(answer).to(heads.dtype)


def tensor_float(numbers: Tensor) -> Tensor:
    """Float32 rounded to the 10 bits of TensorFloat-32, to nearest, ties to even."""
    bits = numbers.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def tensor_float_operands(heads: Heads) -> Tensor:
    """Both matrix products take TensorFloat-32 operands."""
    heads = heads.repeated()
    query, key, value = map(tensor_float, (heads.query, heads.key, heads.value))
    weights = torch.softmax(finish(query @ transposed(key) * heads.scale, heads), dim=-1)
    return tensor_float(weights) @ value


def head_by_head(heads: Heads) -> Tensor:
    """A loop over items and heads: matrix products of another shape."""
    heads = heads.repeated()
    scores = torch.stack(
        [
            wide(query) @ wide(key).T
            for query, key in zip(heads.query.flatten(0, 1), heads.key.flatten(0, 1), strict=True)
        ]
    ).view(*heads.query.shape[:3], -1)
    return mixed(finish(scores * heads.scale, heads), heads)


def row_by_row(heads: Heads) -> Tensor:
    """A loop over queries: products of a matrix and a vector."""
    heads = heads.repeated()
    scores = logits(heads)
    rows = [
        torch.softmax(scores[:, :, row : row + 1], dim=-1) @ wide(heads.value)
        for row in range(scores.shape[2])
    ]
    return torch.cat(rows, dim=2).to(heads.dtype)


def reversed_keys(heads: Heads) -> Tensor:
    """Adds up from the last key to the first."""
    heads = heads.repeated()
    weights = torch.softmax(logits(heads).flip(-1), dim=-1)
    return (weights @ wide(heads.value).flip(-2)).to(heads.dtype)


def sequential(heads: Heads) -> Tensor:
    """One channel after the other and one key after the other: the longest chain of roundings."""
    heads = heads.repeated()
    query, key, value = wide(heads.query), wide(heads.key), wide(heads.value)
    products = torch.zeros(*query.shape[:3], key.shape[2], dtype=query.dtype)
    for channel in range(query.shape[-1]):
        products += query[..., channel].unsqueeze(-1) * key[..., channel].unsqueeze(-2)
    scores = finish(products * heads.scale, heads)
    weights = torch.exp(scores - largest(scores))
    total = torch.zeros(*query.shape[:3], 1, dtype=query.dtype)
    sums = torch.zeros(*query.shape[:3], value.shape[-1], dtype=query.dtype)
    for index in range(key.shape[2]):
        weight = weights[..., index : index + 1]
        total += weight
        sums += stored(weight, heads.dtype) * value[..., index : index + 1, :]
    return (sums / total).to(heads.dtype)


def pairwise(heads: Heads) -> Tensor:
    """Sums of elementwise products, which torch adds up in pairs."""
    heads = heads.repeated()
    products = wide(heads.query).unsqueeze(-2) * wide(heads.key).unsqueeze(-3)
    weights = torch.softmax(finish(products.sum(dim=-1) * heads.scale, heads), dim=-1)
    sums = (weights.unsqueeze(-1) * wide(heads.value).unsqueeze(-3)).sum(dim=-2)
    return sums.to(heads.dtype)
