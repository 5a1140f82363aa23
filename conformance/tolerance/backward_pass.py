"""The golden gradients of attention, with their intermediate values, in float64.

With dO the gradient of the output, P the weights and L the logits,

    dV = P^T dO,  dP = dO V^T,  D = rowsum(P * dP),  dL = P * (dP - D),  dS = dL * dL/dS,
    dQ = scale dS K,  dK = scale dS^T Q

(Dao et al., arXiv:2205.14135, appendix B.2.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from conformance._golden import golden

from .attention_bound import is_normalised
from .modified_gradients import function_slope
from .prepared import is_prepared_at
from .visible_keys import LiveKeys, has_sink, live_keys, with_sink


@dataclass(frozen=True, kw_only=True, eq=False)
class BackwardPass:
    """Every intermediate value of the backward pass, per query head.

    ``weights`` ``[B, H, Lq, Lk]`` depend on the scores: zero in rows without a key. ``slope`` is
    the derivative of a logit by its scaled score and ``curvature`` its derivative without the
    curvature of a user's function; ``function_slope`` is this function's part, None without one;
    ``weight_gradient`` dP, ``row_sum`` D ``[B, H, Lq, 1]`` less ``of_lse``, ``logit_gradient`` dL
    and ``score_gradient`` dS (by the scaled score). ``query [B, H, Lq, D]``, ``key [B, H, Lk, D]``
    and ``value [B, H, Lk, Dv]`` are the gradients; heads sharing a key/value head are to be added.
    ``bias [B, H, Lq, Lk]`` is the gradient by a bias for each pair, None without a bias, and
    ``bias_slope`` the derivative of a logit by it.
    """

    attention: golden.Attention
    output_gradient: Tensor
    live: LiveKeys
    weights: Tensor
    slope: Tensor
    function_slope: Tensor | None
    curvature: Tensor
    weight_gradient: Tensor
    row_sum: Tensor
    logit_gradient: Tensor
    score_gradient: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    bias_slope: Tensor
    of_lse: Tensor | None = None


def has_gradient_bounds(semantics: golden.Semantics) -> bool:
    """Whether gradients have bounds at a point: the weights of a query sum to one.

    And query and key meet as they are: neither normalised nor turned. A bias before the scale has
    another slope than one by distance, which is added behind it.
    """
    by_distance = semantics.alibi or semantics.relative != "none"
    one_slope = semantics.bias_order == "after-scale" or not by_distance
    return is_normalised(semantics) and not is_prepared_at(semantics) and one_slope


def backward_pass(
    attention: golden.Attention, output_gradient: Tensor, of_lse: Tensor | None = None
) -> BackwardPass:
    """Return the gradients for ``output_gradient [B, H, Lq, Dv]``.

    ``of_lse [B, H, Lq]`` is the gradient of a returned natural log-sum-exp, whose derivative by a
    logit is its weight: it is taken off the row term.
    A sink counts as one more key, the last, whose logit does not depend on a score. Raises
    ValueError at a point of the semantics without a bound, for rows without a key whose answer is
    NaN, and for an output gradient of another shape.
    """
    _check(attention, output_gradient)
    attention = with_sink(attention)
    live = live_keys(attention)
    weights = attention.weights
    if live.empty is not None:
        weights = weights.masked_fill(live.empty, 0.0)
    function = None if attention.semantics.score_mod is None else function_slope(attention)
    slope, bias_slope, curvature = _slopes(attention, function)
    run = golden.Run(
        golden.BACKWARD,
        {
            "output_gradient": output_gradient.double(),
            "live_weights": weights,
            "score_slope": slope,
            "query_factor": attention.scale,
            "key_factor": attention.scale,
            **{name: getattr(attention, name) for name in ("weights", "query", "key", "value")},
        },
    )
    if of_lse is not None:
        taken_off = of_lse.double().unsqueeze(-1)
        run = run.edited(golden.Edit("row_term", change=lambda row_term: row_term - taken_off))
    return BackwardPass(
        attention=attention,
        output_gradient=run["output_gradient"],
        live=live,
        weights=weights,
        slope=slope,
        function_slope=function,
        curvature=curvature,
        weight_gradient=run["weight_gradient"],
        row_sum=run["row_term"],
        of_lse=of_lse,
        logit_gradient=run["logit_gradient"],
        score_gradient=run["score_gradient"],
        query=run["query_gradient"],
        key=run["key_gradients"],
        value=run["value_gradients"],
        bias=None if attention.bias is None else run["logit_gradient"] * bias_slope,
        bias_slope=bias_slope,
    )


def _check(attention: golden.Attention, output_gradient: Tensor) -> None:
    semantics = attention.semantics
    if not has_gradient_bounds(semantics):
        msg = (
            "gradients have bounds where the weights of a query sum to 1 and query and key meet as "
            f"they are, not at softmax_axis={semantics.softmax_axis!r}, mask_operation="
            f"{semantics.mask_operation!r}, qk_norm={semantics.qk_norm!r}, rotary="
            f"{semantics.rotary!r}, relative={semantics.relative!r} with bias_order="
            f"{semantics.bias_order!r}"
        )
        raise ValueError(msg)
    if semantics.empty_rows == "nan" and bool(attention.output.isnan().any()):
        msg = "gradients have no bounds at empty_rows='nan' where a row has no key"
        raise ValueError(msg)
    if output_gradient.shape != attention.output.shape:
        msg = (
            f"output_gradient has shape {list(output_gradient.shape)}, "
            f"not the output's {list(attention.output.shape)}"
        )
        raise ValueError(msg)


def _slopes(attention: golden.Attention, function: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the derivatives of a logit by score and by bias, and the former's derivative."""
    passed = torch.ones_like(attention.scores)
    if attention.semantics.mask_operation in ("replace", "multiply-logits"):
        passed = attention.allowed.double()
    slope, curvature = passed, torch.zeros_like(passed)
    after = attention.semantics.caps("bias")
    if attention.softcap is not None:
        # Minus infinity where a mask comes after the cap: there the slope is zero.
        capped = attention.logits.clamp_min(-attention.softcap) if after else attention.capped
        ratio = capped / attention.softcap
        slope = passed * (1.0 - ratio) * (1.0 + ratio)
        curvature = slope * ratio * (-2.0 / attention.softcap)
    by_bias = slope if after else passed
    if function is not None:
        slope = slope * function
    if attention.semantics.bias_order == "before-scale":
        by_bias = slope * attention.scale
    if has_sink(attention):
        cut = _but_last(slope)  # one tensor where it was one: they round alike then
        return cut, cut if by_bias is slope else _but_last(by_bias), _but_last(curvature)
    return slope, by_bias, curvature


def _but_last(pairs: Tensor) -> Tensor:
    """Zero the last key, the sink: neither query nor key nor bias moves its logit."""
    return torch.cat([pairs[..., :-1], torch.zeros_like(pairs[..., -1:])], dim=-1)
