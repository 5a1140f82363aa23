"""The worst-case bound of attention proper: from heads to heads."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from conformance._golden import golden

from .contract import Contract
from .keys import LiveKeys, live_keys
from .prepared import prepared_errors
from .scores import exponent_error
from .sinks import more_keys, with_sink
from .sums import mean_bound, weighted_sum_error
from .unnormalised import is_normalised, unnormalised_bound
from .weights import perturb


def core_bound(
    attention: golden.Attention,
    contract: Contract,
    *,
    query_error: Tensor | None = None,
    key_error: Tensor | None = None,
    value_error: Tensor | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """How far each element of a conforming answer may be from ``attention.output``.

    The errors bound what given query ``[B, H, Lq, D]``, key ``[B, H, Lk, D]`` and value
    ``[B, H, Lk, Dv]`` already carry; None means that they are exact. Key and value heads are
    repeated for every query head, as in ``attention``. ``seen`` (bool ``[B, H, Lk, 1]``) says which
    keys any query sees where ``attention`` holds some of the queries only.

    Returns float64 ``[B, H, Lq, Dv]``, finite
    and not negative; a row that has no key gets the error of the answer that its rule prescribes.

    Derived in docs/tolerance.md.
    """
    bound = one_sided_bound(attention, contract, query_error, key_error, value_error, seen)
    return bound.mul_(contract.sides)


def one_sided_bound(
    attention: golden.Attention,
    contract: Contract,
    query_error: Tensor | None = None,
    key_error: Tensor | None = None,
    value_error: Tensor | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """The distance of one computation from the exact answer; see :func:`core_bound`."""
    if attention.weights.numel() == 0 or attention.output.numel() == 0:
        return torch.zeros_like(attention.output)
    query_error, key_error = prepared_errors(
        attention, contract.at("score"), query_error, key_error
    )
    if attention.sinks is not None:
        attention = with_sink(attention)
        key_error, value_error = (
            None if error is None else more_keys(error) for error in (key_error, value_error)
        )
        seen = None if seen is None else pad(seen, (0, 0, 0, 1), value=True)
    if not is_normalised(attention.semantics):
        return unnormalised_bound(attention, contract, query_error, key_error, value_error)
    live = live_keys(attention, seen)
    bound = _bound(
        without_empty_rows(attention, live),
        live,
        contract,
        query_error,
        None if key_error is None else live.only_seen(key_error),
        None if value_error is None else live.only_seen(value_error),
    )
    if live.empty is None or attention.semantics.empty_rows not in ("mean-of-all", "mean-of-valid"):
        return bound
    mean = mean_bound(attention, live.empty, contract, value_error)
    return torch.where(live.empty, mean, bound)


def without_empty_rows(attention: golden.Attention, live: LiveKeys) -> golden.Attention:
    """Rows without a key answer zeros, and values that only they read are gone."""
    if live.empty is None:
        return attention
    return replace(
        attention,
        weights=attention.weights.masked_fill(live.empty, 0.0),
        output=attention.output.masked_fill(live.empty, 0.0),
        value=live.only_seen(attention.value),
    )


def _bound(
    attention: golden.Attention,
    live: LiveKeys,
    contract: Contract,
    query_error: Tensor | None,
    key_error: Tensor | None,
    value_error: Tensor | None,
) -> Tensor:
    error = exponent_error(attention, live, contract, query_error=query_error, key_error=key_error)
    perturbed = perturb(attention, error, live)
    return weighted_sum_error(attention, perturbed, live, contract, value_error)
