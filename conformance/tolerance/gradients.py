"""Bounds of the gradients of attention proper: from an output gradient to query, key and value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from conformance._golden import golden

from .backward_pass import BackwardPass, backward_pass
from .contract import Contract
from .gradient import Gradient, GradientStatistics, add_gradients
from .gradient_scaling import core_scaling
from .learned_gradients import slope_gradient, table_gradient
from .positions import farthest_distance
from .prepared import prepared_errors
from .prepared_gradients import (
    as_prepared,
    has_statistics,
    learned_gradients,
    unprepared_gradients,
)
from .spread import Carried, deviations_for
from .statistical_gradients import Propagation, propagation
from .storing import (
    UnstoredGradient,
    grouped_worst,
    key_store_variance,
    query_block_stores,
    query_store_variance,
    spread_of,
    stored,
    value_store_variance,
    worst_of_stores,
)
from .visible_keys import has_sink, sum_groups
from .worst_gradients import WorstErrors, sum_error, worst_errors


def sink_gradient(gradients: BackwardPass, worst: WorstErrors, contract: Contract) -> Gradient:
    """Return the gradient ``[H]`` with its worst-case bound, also used as the statistical one.

    A row gives ``p (dP - D)`` with dP = 0, as the value of a sink is zero. Rows and items may be
    added up in blocks, each of which may be stored.
    """
    rows = gradients.logit_gradient[..., -1:]
    error = torch.zeros_like(rows) if worst.sink is None else worst.sink
    items, length = rows.shape[0], rows.shape[-2]

    def total(each: Tensor) -> Tensor:
        return each.sum(dim=(0, 2, 3))

    sizes = total(rows.abs() + error)
    summed = total(error) + sum_error(items * length, contract) * sizes
    stores = items * (1 + max(query_block_stores(length, contract), 0))
    summed += worst_of_stores(sizes, stores, contract)
    summed += contract.accumulator_underflow * (items * length + 1)
    return stored(UnstoredGradient(value=total(rows), worst=summed), contract)


def core_gradients(
    attention: golden.Attention,
    output_gradient: Tensor,
    contract: Contract,
    *,
    num_kv_heads: int | None = None,
    carried: Tensor | None = None,
    of_lse: Tensor | None = None,
) -> dict[str, Gradient]:
    """Return the gradients of query, key, value and bias (if any), with their bounds.

    ``output_gradient [B, H, Lq, Dv]`` is the candidate's, too: exact, and for the statistical bound
    independent in each element. The results have the shapes of their tensors: query ``[B, H, Lq,
    D]``, key ``[B, Hkv, Lk, D]``, value ``[B, Hkv, Lk, Dv]`` (one key/value head per query head by
    default), the bias's own, and ``[H]`` of sinks.

    Raises ValueError at a point of the semantics without a bound (see
    :func:`.backward_pass.has_gradient_bounds`), for an output gradient of another shape, and for
    heads that do not fit.

    ``carried``, of the output gradient's shape, bounds the error it already carries, by element.
    ``of_lse [B, H, Lq]`` is the gradient of a returned natural log-sum-exp; beside it the worst
    case alone is a bound.

    Derived in docs/tolerance.md.
    """
    gradients = backward_pass(as_prepared(attention), output_gradient, of_lse)
    num_kv_heads = attention.query.shape[1] if num_kv_heads is None else num_kv_heads
    count = sum(each.numel() for each in (gradients.query, gradients.key, gradients.value))
    deviations = deviations_for(count)
    gated = _gated(gradients, contract.unit_roundoff, 1, carried)
    if not has_statistics(attention):
        return _without_statistics(attention, gradients, contract, gated, num_kv_heads)
    memory = "bias_k" in attention.learned
    worst = worst_errors(gradients, contract, gated)

    @cache
    def statistics() -> dict[str, GradientStatistics]:
        # Made again: intermediate values would lie in memory until somebody asks.
        again = backward_pass(as_prepared(attention), output_gradient)
        variances = _gated(again, contract.unit_roundoff, 2, carried)
        spread = propagation(again, contract, variances, deviations)
        errors = _errors(attention, again, worst, contract, num_kv_heads, spread)
        by_name = {name: spread_of(each, contract, deviations) for name, each in errors.items()}
        if attention.sinks is None:
            scaling = core_scaling(spread, contract, num_kv_heads)
            by_name |= {name: by_name[name].with_scaling(each) for name, each in scaling.items()}
        return by_name

    by_name = {
        name: stored(errors, contract, partial(one_of, statistics, name))
        for name, errors in _errors(attention, gradients, worst, contract, num_kv_heads).items()
    }
    if attention.sinks is not None:
        keys = slice(0, attention.key.shape[-2])
        by_name |= {name: by_name[name].of_tokens(keys) for name in ("key", "value")}
    if _gives_sinks(attention):
        by_name["sinks"] = sink_gradient(gradients, worst, contract)
    return _without_memory(by_name, contract) if memory else by_name


def _without_memory(by_name: dict[str, Gradient], contract: Contract) -> dict[str, Gradient]:
    """Gradients with those of the last key and value, which all items share, apart."""
    own = dict(by_name)
    for memory, name in (("bias_k", "key"), ("bias_v", "value")):
        gradient = by_name[name]
        own[name] = gradient.of_tokens(slice(0, -1))
        items = gradient.value.shape[0]
        parts = [
            gradient.viewed(lambda part, item=item: part[item, :, -1])  # type: ignore[misc]  # bound at once
            for item in range(items)
        ]
        own[memory] = (
            add_gradients(parts, contract)
            if parts
            else gradient.viewed(lambda part: part.new_zeros(part.shape[1], part.shape[-1]))
        )
    return own


def _gives_sinks(attention: golden.Attention) -> bool:
    """Whether a call gives sinks: a null key is one that nobody gives."""
    return attention.sinks is not None and not attention.semantics.null_key


def one_of(
    statistics: Callable[[], Mapping[str, GradientStatistics]], name: str
) -> GradientStatistics:
    """Return the statistics of one gradient."""
    return statistics()[name]


def _errors(
    attention: golden.Attention,
    gradients: BackwardPass,
    worst: WorstErrors,
    contract: Contract,
    num_kv_heads: int,
    spread: Propagation | None = None,
) -> dict[str, UnstoredGradient]:
    """Return the errors of each gradient before its store; no variance without ``spread``."""
    errors = head_gradients(gradients, worst, contract, num_kv_heads, spread)
    if attention.bias is not None:
        bias = attention.run["counted_bias"]
        errors["bias"] = _bias_errors(bias, gradients, worst, spread, contract)
    return errors


def _without_statistics(
    attention: golden.Attention,
    gradients: BackwardPass,
    contract: Contract,
    incoming: Carried,
    num_kv_heads: int,
) -> dict[str, Gradient]:
    """Return worst-case bounds alone, for prepared heads or scores biased by distance."""
    incoming = prepared_errors(attention, contract.at("score"), incoming)
    if attention.sinks is not None:
        incoming = incoming.with_exact_key()
    worst = worst_errors(gradients, contract, incoming)
    by_name = unprepared_gradients(attention, gradients, worst, contract, num_kv_heads)
    by_name |= learned_gradients(attention, gradients, worst, contract, num_kv_heads)
    if "alibi_slopes" in attention.learned and attention.alibi is not None:
        biased = gradients.logit_gradient * gradients.bias_slope, worst.bias
        by_name["alibi_slopes"] = slope_gradient(
            attention, biased, farthest_distance(attention), contract
        )
    if "relative_table" in attention.learned:
        biased = gradients.logit_gradient * gradients.bias_slope, worst.bias
        by_name["relative_table"] = table_gradient(attention, biased, contract)
    if _gives_sinks(attention):
        by_name["sinks"] = sink_gradient(gradients, worst, contract)
    if attention.bias is not None:
        errors = _bias_errors(attention.bias, gradients, worst, None, contract)
        by_name["bias"] = stored(errors, contract)
    return by_name


def _gated(gradients: BackwardPass, unit: float, power: int, carried: Tensor | None) -> Carried:
    """Return the error the output gradient carries, to a power.

    Beside a sink it may pass a gate behind the attention, and be stored.
    """
    if not has_sink(gradients.attention):
        return Carried(output_gradient=None if carried is None else carried**power)
    gated = unit * gradients.output_gradient.abs()
    return Carried(output_gradient=(gated if carried is None else gated + carried) ** power)


def head_gradients(
    gradients: BackwardPass,
    worst: WorstErrors,
    contract: Contract,
    num_kv_heads: int,
    spread: Propagation | None = None,
) -> dict[str, UnstoredGradient]:
    """Gradients of the heads of query, key and value before they are stored.

    Without ``spread`` there is no variance.
    """
    query = UnstoredGradient(value=gradients.query, worst=worst.query)
    key = UnstoredGradient(value=gradients.key, worst=worst.key)
    value = UnstoredGradient(value=gradients.value, worst=worst.value)
    if spread is not None:
        attention, incoming = gradients.attention, spread.incoming
        square = attention.scale**2
        of_query = square * spread.rows(attention.key, incoming.key)
        of_key = square * spread.columns(attention.query, incoming.query)
        of_value = spread.weight_columns(gradients.output_gradient, incoming.output_gradient)
        stores = spread.contract
        of_query = of_query + query_store_variance(gradients, stores)
        of_key = of_key + key_store_variance(gradients, stores)
        query = replace(query, variance=of_query).rounded(spread.pre_scaled)
        key = replace(key, variance=of_key).rounded(spread.pre_scaled)
        value = replace(value, variance=of_value + value_store_variance(gradients, stores))
    semantics = gradients.attention.semantics
    return {
        "query": query,
        "key": _grouped(key, num_kv_heads, semantics, contract),
        "value": _grouped(value, num_kv_heads, semantics, contract),
    }


def _grouped(
    errors: UnstoredGradient, num_kv_heads: int, semantics: golden.Semantics, contract: Contract
) -> UnstoredGradient:
    """Add up the heads of a group; each head and every partial sum may be stored."""
    heads = errors.value.shape[1]
    if heads == num_kv_heads:
        return errors
    group = heads // num_kv_heads

    def total(tensor: Tensor) -> Tensor:
        return sum_groups(tensor, num_kv_heads, semantics)

    variance = None
    if errors.variance is not None:
        squares = total(errors.value.square())
        variance = total(errors.variance) + group * contract.unit_roundoff**2 * squares
    return UnstoredGradient(
        value=total(errors.value),
        worst=grouped_worst(errors.value, errors.worst, num_kv_heads, semantics, contract),
        variance=variance,
        underflow=group * contract.underflow,
    )


def _bias_errors(
    bias: Tensor,
    gradients: BackwardPass,
    worst: WorstErrors,
    spread: Propagation | None,
    contract: Contract,
) -> UnstoredGradient:
    """Return the gradient of a bias: pairs sharing one of its elements are added up.

    No variance without ``spread``.
    """
    pairs = gradients.bias
    if pairs is None:  # for the type checker: there is a bias
        pairs = gradients.logit_gradient
    # Behind them a memory or a sink, which have no bias.
    length = gradients.attention.run["sizes"].key_length
    pairs, error = pairs[..., :length], worst.bias[..., :length]
    terms = pairs.numel() // max(1, bias.numel())
    sums = terms * contract.accumulator_roundoff
    sizes = (pairs.abs() + error).sum_to_size(bias.shape)
    errors = UnstoredGradient(
        value=pairs.sum_to_size(bias.shape), worst=error.sum_to_size(bias.shape) + sums * sizes
    )
    if spread is None:
        return errors
    if gradients.attention.semantics.bias_order == "before-scale":
        variance = spread.pair(gradients.slope) * gradients.attention.scale**2
    else:
        variance = spread.pair(gradients.bias_slope)
    walk = pairs.square().sum_to_size(bias.shape) * (terms * contract.accumulator_roundoff**2)
    return replace(errors, variance=variance[..., :length].sum_to_size(bias.shape) + walk)
