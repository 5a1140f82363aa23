"""Each promise about rows without keys, kept in the usual way."""

from __future__ import annotations

import torch
from torch import Tensor

from ._kit import NAN_HIDDEN, NAN_SPREADS, admitted, check, core, factor


@core(empty_rows="nan")
def empty_rows_are_nan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The plain softmax over minus infinities."""
    logits = query @ key.mT * factor(query, scale)
    hidden = ~admitted(query, key, keep, causal=causal)
    return torch.softmax(logits.masked_fill(hidden, -torch.inf), dim=-1) @ value


@core(empty_rows="mean-of-all", dtypes=["float32", "float64"])
def empty_rows_average(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The lowest finite number as the fill: a row without keys weighs all of them alike."""
    logits = query @ key.mT * factor(query, scale)
    hidden = ~admitted(query, key, keep, causal=causal)
    return logits.masked_fill(hidden, torch.finfo(logits.dtype).min).softmax(dim=-1) @ value


@core(empty_rows="mean-of-all", expected_failures=[])
def empty_rows_keep_every_key(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """A row that would have no key is told to weigh all of them alike; hidden NaN is cleaned."""
    table = admitted(query, key, keep, causal=causal)
    alive = table.any(dim=-1, keepdim=True)
    logits = (query @ key.mT * factor(query, scale)).masked_fill(~table, -torch.inf)
    weights = torch.softmax(torch.where(alive, logits, 0.0), dim=-1)
    output = weights @ value
    if bool(value.isfinite().all()):
        return output
    attended = ((table | ~alive).to(value) @ (~value.isfinite()).to(value)) > 0
    return torch.where(attended, output, weights @ value.nan_to_num(0.0, 0.0, 0.0))


@core(empty_rows="mean-of-valid", expected_failures=[NAN_SPREADS, NAN_HIDDEN])
def empty_rows_average_what_causality_admits(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """A finite fill where the mask hides, minus infinity where causality does."""
    logits = query @ key.mT * factor(query, scale)
    lowest = torch.finfo(logits.dtype).min
    masked = logits.masked_fill(~admitted(query, key, keep, causal=False), lowest)
    later = ~admitted(query, key, None, causal=causal)
    return torch.softmax(masked.masked_fill(later, -torch.inf), dim=-1).nan_to_num() @ value


@core(empty_rows="any")
def empty_rows_are_refused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Nothing is promised about them, so that an exception is an answer, too."""
    table = admitted(query, key, keep, causal=causal)
    if not bool(table.any(dim=-1).all()):
        msg = "a query has no key to attend"
        raise ValueError(msg)
    logits = (query @ key.mT * factor(query, scale)).masked_fill(~table, -torch.inf)
    return torch.softmax(logits, dim=-1) @ value


@core(
    masks=["keep", "bias"],
    empty_rows={"keep": "zeros", "bias": "nan", "causal": "zeros", "weights": "nan"},
    features=["scale", "weights"],
    expected_failures=[NAN_SPREADS, NAN_HIDDEN],
)
def empty_rows_by_way(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Two ways through the code: one mends rows without keys, which a bias or the weights leave."""
    check(query, key, value)
    logits = query @ key.mT * factor(query, scale)
    if bias is not None:
        if bias.shape[-1] != key.shape[-2]:
            msg = f"the bias is for {bias.shape[-1]} keys, but there are {key.shape[-2]}"
            raise ValueError(msg)
        logits = logits + bias
    hidden = ~admitted(query, key, keep, causal=causal)
    weights = torch.softmax(logits.masked_fill(hidden, -torch.inf), dim=-1)
    if return_weights:
        return weights @ value, weights
    return (weights if bias is not None else weights.nan_to_num()) @ value
