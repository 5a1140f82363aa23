"""Bounds of the layer's gradients: by its inputs, its four matrices and their biases."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from conformance._golden import golden

from .contract import Contract
from .gradient import Gradient, Scaling
from .gradient_scaling import roundings, slopes
from .layer_backward import LayerBackward, layer_backward
from .layer_scaling import layer_noise, through_layer
from .prepared_gradients import has_statistics
from .spread import deviations_for
from .statistical_gradients import Propagation
from .statistical_layer_gradients import layer_propagation, layer_variances, supports_statistics
from .storing import Errors, stored
from .worst_layer_gradients import worst_layer_errors

__all__ = ["layer_gradients"]


def layer_gradients(
    layer: golden.MultiHeadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: golden.ProjectionWeights,
    semantics: golden.Semantics,
    *,
    output_gradient: Tensor,
    contract: Contract,
) -> dict[str, Gradient]:
    """The gradients of the layer for ``output_gradient [B, Lq, Eo]``, with their bounds.

    ``query [B, Lq, Eq]``, ``key [B, Lk, Ek]``, ``value [B, Lk, Ev]`` and ``weights`` are what the
    layer was evaluated on. The output gradient is exact, and for the statistical bound independent
    in each element. Results are named "query", "key", "value" (by the inputs), "q", "k", "v", "o"
    and "q_bias" ... (by those weights that take part), in the shapes of what they belong to. Where
    one tensor is query, key and value, ``add_gradients`` makes its gradient of the three.

    Where heads are reinterpreted memory, are normalised or turned before they meet, or stand beside
    distances, the statistical bound is the worst case.

    Raises ValueError at a point of the semantics that has no bound, and for an output gradient of
    another shape.

    Derived in docs/tolerance.md.
    """
    if output_gradient.shape != layer.output.shape:
        msg = (
            f"output_gradient has shape {list(output_gradient.shape)}, "
            f"not the output's {list(layer.output.shape)}"
        )
        raise ValueError(msg)
    tokens = {"q": query.double(), "k": key.double(), "v": value.double()}
    backward = layer_backward(layer, tokens, weights, semantics, output_gradient.double(), contract)
    values = _values(backward)
    worst = worst_layer_errors(backward)
    deviations = deviations_for(sum(each.numel() for each in values.values()))
    if supports_statistics(semantics) and has_statistics(semantics):
        spread = layer_propagation(backward, deviations)
        variances, scaling = layer_variances(backward, spread), _scaling(backward, spread)
        found = {
            name: _finished(exact, worst[name], variances[name], contract, deviations)
            for name, exact in values.items()
        }
        return found | {name: found[name].with_scaling(each) for name, each in scaling.items()}
    worst = {name: contract.sides * each for name, each in worst.items()}
    return {
        name: Gradient(value=exact, worst=worst[name], bound=worst[name], scale=worst[name])
        for name, exact in values.items()
    }


def _finished(
    exact: Tensor, worst: Tensor, variance: Tensor, contract: Contract, deviations: float
) -> Gradient:
    """The worst case has counted the last rounding already."""
    errors = Errors(value=exact, worst=worst, variance=variance)
    return replace(stored(errors, contract, deviations), worst=contract.sides * worst)


def _scaling(backward: LayerBackward, spread: Propagation) -> dict[str, Scaling]:
    """What an error of the logit scale does to each gradient but that of the output bias."""
    direct = _values(through_layer(backward, None))
    indirect = _values(through_layer(backward, slopes(backward.gradients)))
    scale, common = roundings(backward.gradients, backward.contract)
    return {
        name: Scaling(
            direct=direct[name],
            indirect=indirect[name],
            scale_rounding=scale,
            common_rounding=common,
            noise=partial(layer_noise, name, backward, spread),
        )
        for name in direct
    }


def _values(backward: LayerBackward) -> dict[str, Tensor]:
    """The golden gradients."""
    values: dict[str, Tensor] = {}
    for name, part in backward.parts.items():
        values[part.input_name] = part.gradient @ part.matrix
        flat = part.gradient.flatten(0, 1)
        values[name] = flat.mT @ part.tokens.flatten(0, 1)
        if part.bias:
            values[f"{name}_bias"] = flat.sum(dim=0)
    if backward.output_matrix is not None:
        flat = backward.output_gradient.flatten(0, 1)
        product = flat.mT @ backward.layer.merged.flatten(0, 1)
        values["o"] = widened(product, backward)
        if backward.output_bias:
            values["o_bias"] = flat.sum(dim=0)
    return values


def widened(product: Tensor, backward: LayerBackward) -> Tensor:
    """Columns of the output matrix that no head meets have no gradient: zeros up to its width."""
    missing = backward.output_width - product.shape[-1]
    return torch.nn.functional.pad(product, (0, missing))
