"""Cores whose products, sums and exponentials are written in other words for the same formula."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ._kit import admitted, check, core, factor, soften

FEW: Final = 2


@core()
def bias_inside_the_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """``baddbmm``: the table of zeros and minus infinities is what the product is added to."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    table = table.expand(*query.shape[:3], key.shape[2])
    # A row without keys keeps all of them here, and is zeroed behind the softmax: no NaN comes up.
    hidden = ~table & table.any(-1, keepdim=True)
    bias = torch.zeros(table.shape, dtype=query.dtype).masked_fill(hidden, -torch.inf)
    flat = [x.flatten(0, 1) for x in (bias, query, key)]
    logits = torch.baddbmm(flat[0], flat[1], flat[2].mT, alpha=factor(query, scale))
    weights: Tensor = logits.softmax(-1).unflatten(0, query.shape[:2])
    return weights.masked_fill(~table, 0.0) @ value


@core()
def complex_numbers_of_channel_pairs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Two channels are a complex number; the product is the real part of an inner product."""
    check(query, key, value)
    pairs = [torch.nn.functional.pad(x, (0, x.shape[-1] % FEW)) for x in (query, key)]
    one, other = (torch.complex(x[..., 0::2], x[..., 1::2]) for x in pairs)
    scores = (one @ other.conj().mT).real * factor(query, scale)
    return soften(scores, admitted(query, key, keep, causal=causal)) @ value


@core()
def outer_products_of_channels(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The scores as a sum of outer products, one a channel, the last channel first."""
    check(query, key, value)
    scores = query.new_zeros(*query.shape[:3], key.shape[2])
    for channel in reversed(range(query.shape[-1])):
        scores = scores + query[..., channel, None] * key[..., None, :, channel]
    return soften(scores * factor(query, scale), admitted(query, key, keep, causal=causal)) @ value


@core()
def scores_from_two_halves(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Content and position as some models have them: the scores are sums of two products."""
    check(query, key, value)
    half = query.shape[-1] // 2
    scores = query[..., :half] @ key[..., :half].mT + query[..., half:] @ key[..., half:].mT
    return soften(scores * factor(query, scale), admitted(query, key, keep, causal=causal)) @ value


@core()
def values_by_columns(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The weights meet one column of the values at a time."""
    check(query, key, value)
    scores = query @ key.mT * factor(query, scale)
    weights = soften(scores, admitted(query, key, keep, causal=causal))
    columns = [(weights @ column[..., None])[..., 0] for column in value.unbind(-1)]
    return torch.stack(columns, dim=-1)


@core()
def divided_by_a_diagonal_matrix(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The textbook's D^-1 A V, D a diagonal matrix of the rows' sums."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    logits = (query @ key.mT * factor(query, scale)).masked_fill(~table, -torch.inf)
    largest = logits.detach().amax(-1, keepdim=True)
    table_of_exponentials = (logits - largest.nan_to_num(neginf=0.0)).exp()
    sums = table_of_exponentials.sum(-1)
    inverse = torch.diag_embed(torch.where(sums == 0, torch.ones_like(sums), sums).reciprocal())
    return inverse @ (table_of_exponentials @ value)


@core(without=["gradients"], expected_failures=[])
def sparse_table_of_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Only the weights that are not zero are stored, by rows; a sparse product for each head."""
    check(query, key, value)
    scores = query @ key.mT * factor(query, scale)
    weights = soften(scores, admitted(query, key, keep, causal=causal))
    tables, tokens = weights.flatten(0, 1), value.flatten(0, 1)
    if not weights.numel():
        return weights @ value
    mixed = [torch.sparse.mm(t.to_sparse(), v) for t, v in zip(tables, tokens, strict=True)]
    answer: Tensor = torch.stack(mixed).unflatten(0, query.shape[:2])
    return answer


@core()
def smallest_exponentials_first(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The sum that divides is made of the sorted exponentials, from the smallest on."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    logits = (query @ key.mT * factor(query, scale)).masked_fill(~table, -torch.inf)
    largest = logits.detach().amax(-1, keepdim=True).nan_to_num(neginf=0.0)
    exponentials = (logits - largest).exp()
    total = exponentials.sort(dim=-1).values.cumsum(-1)[..., -1:]
    return exponentials @ value / total.masked_fill(total == 0, 1.0)


@core()
def logarithms_summed_up_cumulatively(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The last of the cumulative log-sum-exps normalises the row."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    logits = (query @ key.mT * factor(query, scale)).masked_fill(~table, -torch.inf)
    # The lowest finite number in the place of minus infinity: the difference of two is no NaN.
    finite = logits.clamp_min(torch.finfo(logits.dtype).min)
    total = finite.logcumsumexp(-1)[..., -1:]
    return (finite - total).exp().masked_fill(~table, 0.0) @ value


@core()
def halves_of_keys_in_a_tree(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Keys are halved until one is left; sums and maxima of the halves are merged on the way up."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    logits = (query @ key.mT * factor(query, scale)).masked_fill(~table, -torch.inf)

    def merged(start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        if stop - start == 1:
            column = logits[..., start:stop]
            largest = column.detach().nan_to_num(neginf=-1e30)
            share = (column - largest).exp()
            return largest, share, share * value[:, :, start:stop]
        middle = (start + stop) // 2
        one, other = merged(start, middle), merged(middle, stop)
        largest = torch.maximum(one[0], other[0])
        factors = (one[0] - largest).exp(), (other[0] - largest).exp()
        sums = one[1] * factors[0] + other[1] * factors[1]
        return largest, sums, one[2] * factors[0] + other[2] * factors[1]

    if not key.shape[2]:
        return query.new_zeros(*query.shape[:3], value.shape[-1])
    _, total, mixture = merged(0, key.shape[2])
    return mixture / total.masked_fill(total == 0, 1.0)


@core()
def lowest_number_where_hidden(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The lowest finite number as the fill; hidden weights are zeroed, the rest divided again."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    scores = query @ key.mT * factor(query, scale)
    weights = scores.masked_fill(~table, torch.finfo(scores.dtype).min).softmax(-1) * table
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1.0) @ value


@core(dtypes=["float32", "bfloat16"])
def double_precision_inside(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Everything in float64; only the answer is rounded."""
    check(query, key, value)
    wide = [x.double() for x in (query, key, value)]
    scores = wide[0] @ wide[1].mT * factor(query, scale)
    weights = soften(scores, admitted(query, key, keep, causal=causal))
    return (weights @ wide[2]).to(query.dtype)


@core(features=["scale", "gqa"])
def shared_heads_looked_up(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """``index_select`` by the number of the head that each query head reads."""
    check(query, key, value)
    heads, kv_heads = query.shape[1], key.shape[1]
    read = torch.arange(heads) // (heads // kv_heads)
    key, value = key.index_select(1, read), value.index_select(1, read)
    scores = query @ key.mT * factor(query, scale)
    return soften(scores, admitted(query, key, keep, causal=causal)) @ value
