"""Errors of the logit scale and of single roundings in the gradients of a layer.

A layer's gradients are linear in those of its core: derivatives pass through forwards, and the
weights of a sum of errors backwards.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from conformance._golden import golden

from .gradient_noise import Sum, noise
from .gradient_scaling import Slopes
from .heads import sum_groups, unmerge_heads, unsplit_heads
from .layer_backward import LayerBackward
from .statistical_gradients import Propagation


def through_layer(backward: LayerBackward, found: Slopes | None) -> LayerBackward:
    """The layer's backward pass with derivatives in place of the gradients of its parts.

    By the scale of the scores where ``found`` is given, else by that of the backward pass. The
    output bias, whose gradient no scale moves, is left out.
    """
    gradients, layer = backward.gradients, backward.layer
    if found is None:
        value, output = torch.zeros_like(gradients.value), torch.zeros_like(layer.core.output)
        found = Slopes(query=gradients.query, key=gradients.key, value=value, output=output)
    parts = {
        name: replace(
            part,
            gradient=unsplit_heads(
                sum_groups(getattr(found, part.input_name), part.num_heads, backward.semantics),
                backward.semantics,
            ),
        )
        for name, part in backward.parts.items()
    }
    layer = replace(layer, merged=golden.merge_heads(found.output, backward.semantics))
    return replace(backward, parts=parts, layer=layer, output_bias=False)


def layer_noise(name: str, backward: LayerBackward, spread: Propagation, weights: Tensor) -> float:
    """One deviation of the sum of one gradient's errors, each times a weight of its shape.

    ``name`` is an input ("query" ...), a matrix ("q" ..., "o") or a bias ("q_bias" ...). Counts the
    roundings before the products of the last projection.
    """
    return backward.contract.sides * noise(_through_projection(name, backward, weights), spread)


def _through_projection(name: str, backward: LayerBackward, weights: Tensor) -> Sum:
    semantics, core = backward.semantics, backward.layer.core
    if name == "o":
        merged = backward.output_gradient @ weights[:, : backward.layer.merged.shape[-1]]
        return Sum(output=unmerge_heads(merged, core.output.shape, semantics))
    for matrix, part in backward.parts.items():
        if name == part.input_name:
            projected = weights @ part.matrix.mT
        elif name == matrix:
            projected = part.tokens @ weights.mT
        elif name == f"{matrix}_bias":
            projected = weights.expand_as(part.gradient)
        else:
            continue
        heads = golden.split_heads(projected, part.num_heads, semantics)
        every = golden.repeat_heads(heads, core.query.shape[1], semantics)
        return Sum(**{part.input_name: every})
    msg = f"no gradient is named {name!r}"
    raise ValueError(msg)
