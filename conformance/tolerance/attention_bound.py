"""The worst-case bound of attention proper: from heads to heads, of its weights too."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from conformance._golden import golden

from . import model
from .contract import STAGES, Contract, gamma
from .prepared import prepared_errors
from .softmax_and_sum import (
    exponent_error,
    mean_bound,
    perturb,
    rounded_result,
    sum_roundings,
    weighted_sum_error,
)
from .spread import EXACT, Carried
from .visible_keys import LiveKeys, live_keys, with_sink


def is_normalised(semantics: golden.Semantics) -> bool:
    """Whether the weights of a query sum to one, which the sharper bound builds on."""
    return semantics.softmax_axis == "key" and semantics.mask_operation != "multiply-weights"


def unnormalised_bound(
    attention: golden.Attention,
    contract: Contract,
    carried: Carried,
) -> Tensor:
    """Each weight is off by its own error; nothing cancels: ``[B, H, Lq, Dv]``.

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
    """How far each element of a conforming answer may be from ``attention.output``.

    ``carried`` bounds the errors of the heads. ``attended`` (bool ``[B, H, Lk, 1]``) says which
    keys any query attends where ``attention`` holds some of the queries only.

    Returns float64 ``[B, H, Lq, Dv]``, finite and not negative. A row that has no key gets the
    error of the answer that its rule prescribes. Derived in docs/tolerance.md.
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
        attention, carried = with_sink(attention), carried.with_sink()
        attended = None if attended is None else pad(attended, (0, 0, 0, 1), value=True)
    if not is_normalised(attention.semantics):
        return unnormalised_bound(attention, contract, carried)
    live = live_keys(attention, attended)
    clean, incoming = without_empty_rows(attention, live), carried.only_attended(live)
    perturbed = perturb(clean, exponent_error(clean, live, contract, incoming), live)
    bound = weighted_sum_error(clean, perturbed, live, contract, incoming.value)
    if live.empty is None or not attention.semantics.empty_rows.startswith("mean"):
        return bound
    mean = mean_bound(attention, live.empty, contract, carried.value)
    return torch.where(live.empty, mean, bound)


def least_core_bound(attention: golden.Attention, contract: Contract) -> Tensor | None:
    """A part of :func:`core_bound` that is soon derived: an error within it needs no more.

    None where there is no such part.
    """
    least = least_one_sided_bound(attention, contract)
    return None if least is None else least.mul_(contract.sides)


def least_one_sided_bound(attention: golden.Attention, contract: Contract) -> Tensor | None:
    """What summing the products with the values, dividing and storing may cost by themselves.

    The weights of a conforming candidate may be larger than these, and moved, which costs more.
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


def without_empty_rows(attention: golden.Attention, live: LiveKeys) -> golden.Attention:
    """Rows without a key answer zeros, and values that only they read are gone."""
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
    """How far returned weights ``[B, H, Lq, Lk]`` may be from ``core.weights``.

    The weights are the output for values that are unit vectors, so the bound of the core for those
    values is the bound of the weights; but whoever merges partial results has none to return.
    """
    length = core.weights.shape[-1]
    unit_vectors = torch.eye(length, dtype=torch.float64).expand(
        *core.value.shape[:2], length, length
    )
    as_output = replace(core, value=unit_vectors, output=core.weights)
    whole = replace(contract, merge_roundings=0.0)
    return core_bound(as_output, whole, replace(carried, value=None))


def shares(
    bound: Callable[[Contract], Tensor], contract: Contract, index: tuple[int, ...]
) -> dict[str, float]:
    """The part of each stage in the bound of one element, largest first; they sum to 1.

    ``bound`` evaluates the worst-case bound under a contract. A stage counts by the bound that it
    would have alone. Empty when nothing rounds.
    """
    stages = [stage for stage in STAGES if stage != "quantisation" or contract.activation_steps]
    alone = {stage: float(bound(contract.only(stage))[index]) for stage in stages}
    total = sum(alone.values())
    if total <= 0.0:
        return {}
    ordered = sorted(alone, key=lambda stage: -alone[stage])
    return {stage: alone[stage] / total for stage in ordered}
