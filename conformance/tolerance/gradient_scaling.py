"""What an error of the logit scale does to gradients, to first order.

With a dot for the derivative by the logarithm of the scale of the scores S, and the names of
``golden_gradients``,

    L. = S dL/dS,  P. = P * (L. - rowsum(P * L.)),  D. = rowsum(P. * dP),
    dL. = P. * (dP - D) - P * D.,  dS. = dL. * dL/dS + dL * S d2L/dS2

and the gradients follow from dS. and P. as they do from dS and P. The scale that multiplies dS in
the backward pass is another one, whose derivative is the gradient itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .contract import Contract
from .golden_gradients import GoldenGradients
from .gradient import Scaling
from .gradient_noise import Sum, noise
from .heads import sum_groups
from .incoming import backward_contract
from .statistical_gradients import Propagation
from .stored_scale import scale_rounding


@dataclass(frozen=True, kw_only=True, eq=False)
class Slopes:
    """Derivatives by the logarithm of the scale of the scores, for each query head.

    ``query [B, H, Lq, D]``, ``key [B, H, Lk, D]`` and ``value [B, H, Lk, Dv]`` of the gradients,
    ``output [B, H, Lq, Dv]`` of the answer.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


def slopes(gradients: GoldenGradients) -> Slopes:
    """How the weights carry an error of the scale into each gradient."""
    attention, weights = gradients.attention, gradients.weights
    logit = gradients.slope * attention.scores
    moved = weights * (logit - (weights * logit).sum(dim=-1, keepdim=True))
    row_sum = (moved * gradients.weight_gradient).sum(dim=-1, keepdim=True)
    score = moved * (gradients.weight_gradient - gradients.row_sum) - weights * row_sum
    score = score * gradients.slope
    score += gradients.logit_gradient * gradients.curvature * attention.scores
    return Slopes(
        query=attention.scale * (score @ attention.key),
        key=attention.scale * (score.mT @ attention.query),
        value=moved.mT @ gradients.output_gradient,
        output=moved @ attention.value,
    )


def core_scaling(spread: Propagation, contract: Contract, num_kv_heads: int) -> dict[str, Scaling]:
    """For "query", "key" and "value", in the shapes of their gradients."""
    gradients = spread.gradients
    found = slopes(gradients)
    scale, common = roundings(gradients, contract)
    direct = {
        "query": gradients.query,
        "key": gradients.key,
        "value": torch.zeros_like(gradients.value),
    }

    def scaling(name: str, heads: int) -> Scaling:
        semantics = gradients.attention.semantics

        def noise_of(weights: Tensor) -> float:
            every = golden.repeat_heads(weights, gradients.query.shape[1], semantics)
            return contract.sides * noise(Sum(**{name: every}), spread)

        return Scaling(
            direct=sum_groups(direct[name], heads, semantics),
            indirect=sum_groups(getattr(found, name), heads, semantics),
            scale_rounding=scale,
            common_rounding=common,
            noise=noise_of,
        )

    counts = {"query": gradients.query.shape[1], "key": num_kv_heads, "value": num_kv_heads}
    return {name: scaling(name, heads) for name, heads in counts.items()}


def roundings(gradients: GoldenGradients, contract: Contract) -> tuple[float, float]:
    """The relative errors that the scale and, besides, all elements of a gradient may share.

    Weights recomputed as exp(score - lse) keep the error of exp, which may have one sign for all
    scores, and that of the log-sum-exp, which is one number a row.
    """
    attention, unit = gradients.attention, contract.accumulator_roundoff
    logarithm = (gradients.live.largest - attention.weights.amax(dim=-1, keepdim=True).log()).abs()
    finite = logarithm.where(logarithm.isfinite(), 0.0)
    largest = float(finite.max()) if finite.numel() else 0.0
    common = backward_contract(contract).exp_error + model.LOG_SUM_EXP_ROUNDINGS * largest
    scale = scale_rounding(attention.scale, contract)
    return contract.sides * scale, contract.sides * common * unit
