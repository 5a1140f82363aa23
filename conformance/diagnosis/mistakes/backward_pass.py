"""A backward pass step by step, in float64, in which a mistake changes some steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...oracle.oracle import evaluate, known_weights
from ...problems.inputs import Inputs
from ...tolerance.backward_pass import BackwardPass, backward_pass
from ...tolerance.visible_keys import sum_groups
from .named_mistake import BackwardCall, BackwardSteps, DeclaredCall, Gradients, NotExpressible

# The inputs that a layer projects.
PROJECTED: Final = ("query", "key", "value")
# A call, and the output of its heads, merged for a layer.
BackwardBeginning = tuple[BackwardCall, Tensor]


def gradients_with(
    begin: Callable[[], BackwardBeginning], upstream: Tensor, wrong: BackwardSteps
) -> Gradients:
    """The gradients of a candidate that takes wrong steps, by the names of its inputs.

    ``begin`` gives what :func:`backward_call` does. Raises NotExpressible where a step cannot be
    taken, or the layer is cut into heads in another way.
    """
    try:
        with torch.no_grad():
            return _gradients(*begin(), upstream.double(), wrong)
    except (ValueError, RuntimeError, IndexError) as error:
        raise NotExpressible from error


def backward_call(
    inputs: Inputs, semantics: golden.Semantics, upstream: Tensor
) -> BackwardBeginning:
    """What a backward pass starts from, and the output of the heads, merged for a layer.

    Raises NotExpressible for a layer that is cut into heads in another way.
    """
    declared = DeclaredCall(inputs=inputs, semantics=semantics)
    evaluation = evaluate(inputs, semantics)
    core = evaluation if isinstance(evaluation, golden.Attention) else evaluation.core
    merged, behind = core.output, upstream.double()
    if not isinstance(evaluation, golden.Attention):
        if (semantics.head_split, semantics.head_merge) != ("blocks", "blocks"):
            raise NotExpressible
        weights = known_weights(inputs)
        merged = golden.merge_heads(core.output, semantics)
        behind = behind if weights.o is None else behind @ weights.o.double()
        behind = golden.split_heads(behind, inputs.geometry.num_heads, semantics)
    call = BackwardCall(
        inputs=inputs,
        semantics=semantics,
        attention=core,
        upstream=behind,
        heads=declared.projected_heads(),
    )
    return call, merged


def _gradients(
    call: BackwardCall, merged: Tensor, upstream: Tensor, wrong: BackwardSteps
) -> Gradients:
    heads, inputs, semantics = heads_with(call, wrong), call.inputs, call.semantics
    if not inputs.is_layer:
        return _by_input(call, heads, wrong)
    weights = known_weights(inputs)
    result: Gradients = {}
    if weights.o is not None:
        result["o"] = _matrix(upstream, merged, wrong)
        result["o_bias"] = _bias(upstream, wrong)
    for name in PROJECTED:
        role, tokens = name[0], getattr(inputs, name).double()
        gradient = golden.merge_heads(heads[name], semantics)
        result[name] = gradient @ getattr(weights, role).double()
        result[role] = _matrix(gradient, tokens, wrong)
        result[f"{role}_bias"] = _bias(gradient, wrong)
    return _by_input(call, result, wrong)


def observable(call: BackwardCall, role: str, gradient: Tensor) -> Tensor:
    """What shows the gradient of heads: itself, of a layer that of their projection."""
    if not call.inputs.is_layer:
        return gradient
    merged, tokens = golden.merge_heads(gradient, call.semantics), getattr(call.inputs, role)
    return _matrix(merged, tokens.double(), BackwardSteps())


def _by_input(call: BackwardCall, gradients: Gradients, wrong: BackwardSteps) -> Gradients:
    """The gradients with those of shared inputs added up."""
    result = gradients if wrong.final is None else wrong.final(call, gradients)
    if call.inputs.mode == "self":
        result["x"] = result.pop("query") + result.pop("key") + result.pop("value")
    elif call.inputs.mode == "memory":
        result["context"] = result.pop("key") + result.pop("value")
    return result


def _matrix(gradient: Tensor, tokens: Tensor, wrong: BackwardSteps) -> Tensor:
    if wrong.matrix is not None:
        return wrong.matrix(gradient, tokens)
    return gradient.flatten(0, 1).mT @ tokens.flatten(0, 1)


def _bias(gradient: Tensor, wrong: BackwardSteps) -> Tensor:
    return gradient.sum(dim=(0, 1)) if wrong.bias is None else wrong.bias(gradient)


def heads_with(call: BackwardCall, wrong: BackwardSteps) -> Gradients:
    """The gradients of the heads, with one key/value head for those that share it.

    And of a core's additive mask, where it has finite values.
    """
    if wrong.upstream is not None:
        call = dataclasses.replace(call, upstream=wrong.upstream(call))
    attention = call.attention if wrong.attention is None else wrong.attention(call)
    right = call.right if attention is call.attention else backward_pass(attention, call.upstream)
    weights = right.weights if wrong.weights is None else wrong.weights(call)
    row_term = (weights * right.weight_gradient).sum(dim=-1, keepdim=True)
    if wrong.row_term is not None:
        row_term = wrong.row_term(call, weights, right.weight_gradient)
    slope = right.slope if wrong.slope is None else wrong.slope(call)
    logits = weights * (right.weight_gradient - row_term)
    scores = logits * slope
    for_query = scores if wrong.scores is None else wrong.scores(call, scores)
    scale = attention.scale
    query_scale, key_scale = (scale, scale) if wrong.scales is None else wrong.scales(call)
    shared = sum_of_groups if wrong.shared is None else wrong.shared
    result = {
        "query": query_scale * (for_query @ attention.key),
        "key": shared(call, key_scale * (scores.mT @ attention.query)),
        "value": shared(call, weights.mT @ call.upstream),
        **gradient_of_mask(call, right, logits),
    }
    return result if wrong.heads is None else wrong.heads(call, result)


def gradient_of_mask(call: BackwardCall, right: BackwardPass, logits: Tensor) -> Gradients:
    """The gradient of a core's additive mask, from that of the logits; {} where it has none."""
    bias = call.inputs.bias
    if bias is None or call.inputs.is_layer:
        return {}
    return {"bias": (logits * right.bias_slope).sum_to_size(bias.shape)}


def sum_of_groups(call: BackwardCall, heads: Tensor) -> Tensor:
    """Add up the gradients of the query heads that read one key/value head."""
    return sum_groups(heads, call.inputs.geometry.num_kv_heads, call.semantics)
