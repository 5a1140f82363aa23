"""The worst-case bound of attention proper: from heads to heads, of its weights too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from conformance._golden import golden

from . import model
from .contract import STAGES, Contract, gamma
from .prepared import is_prepared, prepared_errors
from .softmax_and_sum import (
    exponent_error,
    exponential_error,
    gate_unit,
    gated_value,
    mean_bound,
    perturb,
    rounded_result,
    sum_roundings,
    weighted_sum_error,
)
from .spread import EXACT, Carried
from .visible_keys import LiveKeys, has_memory, live_keys, with_sink


def is_normalised(semantics: golden.Semantics) -> bool:
    """Tell whether the weights of a query sum to one, a premise of the sharper bound."""
    return semantics.softmax_axis == "key" and semantics.mask_operation != "multiply-weights"


def unnormalised_bound(
    attention: golden.Attention,
    contract: Contract,
    carried: Carried,
) -> Tensor:
    """Bound the output by each weight's own error; nothing cancels: ``[B, H, Lq, Dv]``.

    A softmax along another axis divides by a sum whose relative error is at most the largest of its
    terms; without a softmax the weights are the logits.
    """
    live = live_keys(attention)
    error = exponent_error(attention, live, contract, carried)
    stored = contract.at("rounding")
    contract = contract.at("accumulation")
    weights = attention.weights.abs()
    terms = max(attention.logits.shape)
    blocks = math.ceil(terms / contract.key_block)
    relative = (
        2.0 * gamma(terms + blocks + model.SUM_ROUNDINGS, contract.accumulator_roundoff)
        + model.DIVISION_ROUNDINGS * contract.accumulator_roundoff
        + 2.0 * contract.weight_roundoff
        + contract.operand_error
    )
    if attention.semantics.softmax_axis != "none":
        largest = float(error.amax())
        growth = torch.expm1((error + largest).clamp_max_(model.LARGEST_LOGARITHM))
        # A weight that float64 rounded to zero may come back; none exceeds 1.
        error = live.only((weights + model.LOST_WEIGHT).mul_(growth).clamp_max_(1.0))
    size = attention.value.abs()
    error.add_(weights, alpha=relative).add_(contract.weight_underflow)
    bound = error @ size
    if carried.value is not None:
        bound += (error + weights) @ carried.value
    flushed = size.sum(dim=-2, keepdim=True).add_(live.key_length)
    bound.add_(flushed, alpha=contract.accumulator_underflow)
    return rounded_result(bound, attention.output, stored)


def core_bound(
    attention: golden.Attention,
    contract: Contract,
    carried: Carried = EXACT,
    attended: Tensor | None = None,
) -> Tensor:
    """Bound the error of each element of a conforming answer from ``attention.output``.

    ``carried`` bounds the errors of the heads. ``attended`` (bool ``[B, H, Lk, 1]``) says which
    keys any query attends, if ``attention`` holds a part of the queries only. Returns float64 ``[B,
    H, Lq, Dv]``, finite and not negative. A row without a key gets the error of its rule's answer.
    Derived in docs/tolerance.md.
    """
    return one_sided_bound(attention, contract, carried, attended).mul_(contract.sides)


def one_sided_bound(
    attention: golden.Attention,
    contract: Contract,
    carried: Carried = EXACT,
    attended: Tensor | None = None,
) -> Tensor:
    """The distance of one computation from the exact answer; see :func:`core_bound`."""
    if attention.weights.numel() == 0 or attention.output.numel() == 0:
        return torch.zeros_like(attention.output)
    carried = prepared_errors(attention, contract.at("score"), carried)
    if attention.sinks is not None:
        attention, carried = with_sink(attention), carried.with_exact_key()
        attended = None if attended is None else pad(attended, (0, 0, 0, 1), value=True)
    if not is_normalised(attention.semantics):
        return unnormalised_bound(attention, contract, carried)
    live = live_keys(attention, attended)
    clean, incoming = without_empty_rows(attention, live), carried.only_attended(live)
    perturbed = perturb(clean, exponent_error(clean, live, contract, incoming), live)
    bound = weighted_sum_error(clean, perturbed, live, contract, incoming.value)
    bound = bound + gated_value(attention, contract)
    if live.empty is None or not attention.semantics.empty_rows.startswith("mean"):
        return bound
    mean = mean_bound(attention, live.empty, contract, carried.value)
    return torch.where(live.empty, mean, bound)


def least_core_bound(attention: golden.Attention, contract: Contract) -> Tensor | None:
    """Return a cheap lower estimate of :func:`core_bound`; None if unavailable.

    An answer within it passes without the whole bound.
    """
    least = least_one_sided_bound(attention, contract)
    return None if least is None else least.mul_(contract.sides)


def least_one_sided_bound(attention: golden.Attention, contract: Contract) -> Tensor | None:
    """Return a lower limit of the bound: summing, dividing and storing alone.

    The weights of a conforming candidate may be larger than these, and moved, at a higher cost.
    """
    if attention.output.numel() == 0 or attention.weights.numel() == 0:
        return None
    if not is_normalised(attention.semantics):
        return None
    stored, key_length = contract.at("rounding"), attention.weights.shape[-1]
    product, division = sum_roundings(key_length, contract.at("accumulation"))
    weights, output = attention.weights, attention.output
    if bool(attention.empty.any()):
        empty = attention.empty.unsqueeze(-1)
        weights, output = weights.masked_fill(empty, 0.0), output.masked_fill(empty, 0.0)
    error = (weights @ attention.value.abs()).mul_(product).add_(output.abs(), alpha=division)
    # What float64 lost here may not make it larger than the whole.
    kept = 1.0 - (key_length + 8) * model.UNIT_ROUNDOFF["float64"]
    return rounded_result(error, output, stored).mul_(kept)


def most_core_bound(
    attention: golden.Attention, contract: Contract, carried: Sequence[float] = (0.0, 0.0, 0.0)
) -> float:
    """A cheap upper estimate of all of :func:`core_bound`; infinite where there is none.

    An error above it fails whatever the whole bound is.

    Each step of that bound for the largest numbers alone. ``carried`` are the largest errors of
    query, key and value heads.
    """
    semantics = attention.semantics
    unusual = attention.alibi is not None or semantics.score_mod is not None
    if is_prepared(attention) or unusual or not is_normalised(semantics):
        return math.inf
    if attention.output.numel() == 0 or contract.exact:
        return math.inf
    if semantics.empty_rows.startswith("mean") and bool(attention.empty.any()):
        return math.inf
    logit = largest_size(attention.logits.nan_to_num(nan=math.inf, neginf=0.0))
    length = attention.logits.shape[-1]
    if attention.sinks is not None:  # one more key, whose logit a row may add
        logit, length = max(logit, largest_size(attention.sinks)), length + 1
    unit, stored = contract.accumulator_roundoff, contract.unit_roundoff
    error = _most_logit_error(attention, contract, logit, carried[0], carried[1])
    error += 2.0 * model.EXPONENT_ROUNDINGS * unit * logit + exponential_error(length, contract)
    if not error <= model.LARGEST_GROWTH:
        return math.inf
    # As in weighted_sum_error; this bounds the growth of weights and the shrinking of sums.
    growth, value = math.expm1(error), largest_size(attention.value)
    most, count = (1.0 + growth) ** 2, math.log(length)
    product, division = sum_roundings(length, contract)
    sums = min((logit + count) * unit, count) * model.LOG_SUM_EXP_ROUNDINGS
    merged = 2.0 * math.ceil(length / contract.key_block) * contract.merge_roundings * unit
    moved = 4.0 * growth * (1.0 + growth) * (1.0 + division)
    bound = value * (moved + most * (product + sums) + division + merged)
    bound += carried[2] * most * (1.0 + product) + length * contract.weight_underflow * value
    bound += length * (value + 1.0) * contract.accumulator_underflow
    bound += model.PARTIAL_STORES * contract.underflow
    bound += value * gate_unit(contract) * has_memory(attention)
    bound = bound * (1.0 + stored) + value * stored + contract.underflow
    # The loss of float64 here, and in the comparison with this, is far less.
    bound *= contract.sides * (1.0 + model.UNIT_ROUNDOFF["float32"])
    return math.inf if math.isnan(bound) else bound


def _most_logit_error(
    attention: golden.Attention, contract: Contract, logit: float, of_query: float, of_key: float
) -> float:
    """Return an upper limit of the logits' errors, the exponential's own left out.

    As in :func:`exponent_error`. A product is no larger than that of the vectors' lengths; the
    factor on a query's error is a key minus the mean of the keys.
    """
    size, scale, bias = attention.query.shape[-1], abs(attention.scale), attention.bias
    unit, stored = contract.accumulator_roundoff, contract.unit_roundoff
    of_query, of_key = math.sqrt(size) * of_query, math.sqrt(size) * of_key
    query, key = largest_norm(attention.query) + of_query, largest_norm(attention.key)
    relative = gamma(size + model.SCORE_ROUNDINGS, unit) + contract.operand_error
    scaling = contract.pre_scaling_roundings * stored * (1.0 + stored)
    if contract.scales_query_alone:
        of_query += query * scaling
    else:
        relative += scaling
    error = query * ((key + of_key) * relative + of_key) + of_query * 2.0 * key
    error = error * scale + contract.accumulator_underflow * (size + 2) * (1.0 + scale)
    if contract.score_roundoff:
        rounding = model.SCORE_STORES * contract.score_roundoff
        error = error * (1.0 + rounding) + largest_size(attention.scores) * rounding
    if attention.softcap is not None:  # it makes no error larger
        capping = model.SOFTCAP_ROUNDINGS * unit + model.SOFTCAP_STORES * contract.score_roundoff
        error += capping * max(largest_size(attention.capped), logit)  # that of a sink, too
    if bias is not None:
        added = largest_size(bias.nan_to_num(nan=math.inf, neginf=0.0)) * max(1.0, scale)
        most = max(largest_size(attention.modified), logit)  # that of a sink, too
        error += model.BIAS_ROUNDINGS * unit * (most + added)
        error = error * (1.0 + contract.score_roundoff) + logit * contract.score_roundoff
    if attention.sinks is not None:
        rounding = model.SINK_STORES * contract.score_roundoff
        error = error * (1.0 + rounding) + 2.0 * logit * rounding
    return error


def largest_size(tensor: Tensor) -> float:
    """Return the size of the largest number; NaN if the tensor has NaN."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def largest_norm(tensor: Tensor) -> float:
    """Return the largest length of a vector along the last axis; NaN if the tensor has NaN."""
    largest = largest_size(tensor)  # squares of what is next to nothing, or huge, are lost
    if not 0.0 < largest < math.inf:
        return largest
    return largest * largest_size(torch.linalg.vector_norm(tensor / largest, dim=-1))


def without_empty_rows(attention: golden.Attention, live: LiveKeys) -> golden.Attention:
    """Zero the rows without a key, and the values read by no other row."""
    if live.empty is None:
        return attention
    return replace(
        attention,
        weights=attention.weights.masked_fill(live.empty, 0.0),
        output=attention.output.masked_fill(live.empty, 0.0),
        value=live.only_attended(attention.value),
    )


def weights_bound(
    core: golden.Attention,
    contract: Contract,
    carried: Carried = EXACT,
) -> Tensor:
    """Bound the error of returned weights ``[B, H, Lq, Lk]`` from ``core.weights``.

    The weights are the output for values that are unit vectors, so the core's bound for these
    values is the bound of the weights; implementations merging partial results return no weights.
    """
    length = core.weights.shape[-1]
    unit_vectors = torch.eye(length, dtype=torch.float64).expand(
        *core.value.shape[:2], length, length
    )
    as_output = replace(core, value=unit_vectors, output=core.weights)
    whole = replace(contract, merge_roundings=0.0)
    return core_bound(as_output, whole, replace(carried, value=None))


def log_sum_exp_bound(attention: golden.Attention, contract: Contract) -> Tensor:
    """Bound the error of natural log-sum-exps ``[B, H, Lq]`` of given heads; zero in empty rows.

    The logarithm of the sum moves by no more than that of the mean of ``exp(error)`` under the
    weights; the sum, the logarithm, a change of base and the store round. See docs/tolerance.md.
    """
    if attention.logits.numel() == 0:
        return torch.zeros(attention.logits.shape[:-1], dtype=torch.float64)
    carried = prepared_errors(attention, contract.at("score"), EXACT)
    if attention.sinks is not None:
        attention, carried = with_sink(attention), carried.with_exact_key()
    live = live_keys(attention)
    clean, incoming = without_empty_rows(attention, live), carried.only_attended(live)
    error = exponent_error(clean, live, contract, incoming, whole=True)
    growth = error.clamp_max_(model.LARGEST_GROWTH).expm1_()
    moved = (clean.weights * growth).sum(dim=-1).log1p_()
    contract = contract.at("accumulation")
    _, summed = sum_roundings(live.key_length, contract)
    roundings = model.LOG_SUM_EXP_ROUNDINGS + model.LOG_SUM_EXP_STORES
    lse = attention.log_sum_exp.nan_to_num(neginf=0.0)
    size = lse.abs() + math.log(live.key_length)
    bound = moved - math.log1p(-summed) + size * (roundings * contract.accumulator_roundoff)
    return torch.where(torch.isneginf(attention.log_sum_exp), 0.0, bound * contract.sides)


def shares(
    bound: Callable[[Contract], Tensor], contract: Contract, index: tuple[int, ...]
) -> dict[str, float]:
    """Return each stage's part in the bound of one element, largest first; the sum is 1.

    ``bound`` evaluates the worst-case bound under a contract. A stage counts by its bound alone.
    Empty when nothing rounds.
    """
    stages = [stage for stage in STAGES if stage != "quantisation" or contract.activation_steps]
    alone = {stage: float(bound(contract.only(stage))[index]) for stage in stages}
    total = sum(alone.values())
    if total <= 0.0:
        return {}
    ordered = sorted(alone, key=lambda stage: -alone[stage])
    return {stage: alone[stage] / total for stage in ordered}
