"""The sums over the keys in other orders, and with less error than usual."""

from __future__ import annotations

import torch
from torch import Tensor

from ._kit import NAN_HIDDEN, NAN_SPREADS, admitted, check, core, factor, soften


@core()
def compensated_sums(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Kahan's summation over the keys, for numerator and denominator in one."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    logits = (query @ key.mT * factor(query, scale)).masked_fill(~table, -torch.inf)
    largest = logits.amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
    weights = torch.exp(logits - largest).unsqueeze(-1)
    ones = value.new_ones(*value.shape[:-1], 1)
    terms = weights * torch.cat([value, ones], dim=-1).unsqueeze(2)
    total = torch.zeros_like(terms[..., 0, :])
    lost = torch.zeros_like(total)
    for term in terms.unbind(dim=-2):
        corrected = term - lost
        grown = total + corrected
        lost = (grown - total) - corrected
        total = grown
    sum_of_weights = total[..., -1:]
    return total[..., :-1] / torch.where(sum_of_weights == 0, 1.0, sum_of_weights)


@core()
def pairwise_sums(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The weighted values added up two by two."""
    check(query, key, value)
    scores = query @ key.mT * factor(query, scale)
    weights = soften(scores, admitted(query, key, keep, causal=causal))
    terms = weights.unsqueeze(-1) * value.unsqueeze(2)
    while terms.shape[-2] > 1:
        if terms.shape[-2] % 2:
            terms = torch.cat([terms, torch.zeros_like(terms[..., :1, :])], dim=-2)
        terms = terms[..., ::2, :] + terms[..., 1::2, :]
    return terms.sum(dim=-2)


@core(expected_failures=[NAN_SPREADS, NAN_HIDDEN])
def largest_weight_first(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Every row sorts its keys by their logits."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    logits = (query @ key.mT * factor(query, scale)).masked_fill(~table, -torch.inf)
    sorted_logits, order = logits.sort(dim=-1, descending=True, stable=True)
    weights = torch.nan_to_num(sorted_logits.softmax(dim=-1))
    rows = value.unsqueeze(2).expand(*order.shape, value.shape[-1])
    met = rows.gather(3, order.unsqueeze(-1).expand_as(rows))
    return (weights.unsqueeze(-2) @ met).squeeze(-2)


@core()
def keys_reversed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Keys, values and mask flipped: the sums run from the last key to the first."""
    table = admitted(query, key, keep, causal=causal).flip(-1)
    scores = query @ key.flip(-2).mT * factor(query, scale)
    return soften(scores, table) @ value.flip(-2)
