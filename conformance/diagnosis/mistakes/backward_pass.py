"""A backward pass step by step, in float64, in which a mistake changes some steps."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..._golden import golden
from ...oracle.oracle import evaluate, known_weights
from ...problems.inputs import Inputs
from ...tolerance.backward_pass import backward_pass
from ...tolerance.visible_keys import sum_groups
from .named_mistake import BackwardCall, BackwardSteps, DeclaredCall, Gradients, NotExpressible


def gradients_with(
    inputs: Inputs, semantics: golden.Semantics, upstream: Tensor, wrong: BackwardSteps
) -> Gradients:
    """The gradients of a candidate that takes wrong steps, by the names of its inputs.

    Raises NotExpressible where a step cannot be taken, or the layer is cut into heads in another
    way.
    """
    try:
        with torch.no_grad():
            call = DeclaredCall(inputs=inputs, semantics=semantics)
            return _gradients(call, upstream.double(), wrong)
    except (ValueError, RuntimeError, IndexError) as error:
        raise NotExpressible from error


def _gradients(declared: DeclaredCall, upstream: Tensor, wrong: BackwardSteps) -> Gradients:
    inputs, semantics = declared.inputs, declared.semantics
    heads = declared.projected_heads()
    evaluation = evaluate(inputs, semantics)
    if isinstance(evaluation, golden.Attention):
        call = BackwardCall(
            inputs=inputs,
            semantics=semantics,
            attention=evaluation,
            upstream=upstream,
            heads=heads,
        )
        return _by_input(call, _heads(call, wrong), wrong)
    if (semantics.head_split, semantics.head_merge) != ("blocks", "blocks"):
        raise NotExpressible
    weights, core = known_weights(inputs), evaluation.core
    merged = golden.merge_heads(core.output, semantics)
    behind = upstream if weights.o is None else upstream @ weights.o.double()
    call = BackwardCall(
        inputs=inputs,
        semantics=semantics,
        attention=core,
        upstream=golden.split_heads(behind, inputs.geometry.num_heads, semantics),
        heads=heads,
    )
    result: Gradients = {}
    if weights.o is not None:
        result["o"] = _matrix(upstream, merged, wrong)
        result["o_bias"] = _bias(upstream, wrong)
    for name, each in _heads(call, wrong).items():
        role, tokens = name[0], getattr(inputs, name).double()
        gradient = golden.merge_heads(each, semantics)
        result[name] = gradient @ getattr(weights, role).double()
        result[role] = _matrix(gradient, tokens, wrong)
        result[f"{role}_bias"] = _bias(gradient, wrong)
    return _by_input(call, result, wrong)


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


def _heads(call: BackwardCall, wrong: BackwardSteps) -> Gradients:
    """The gradients of the heads, with one key/value head for those that share it."""
    if wrong.upstream is not None:
        call = dataclasses.replace(call, upstream=wrong.upstream(call))
    attention = call.attention if wrong.attention is None else wrong.attention(call)
    right = backward_pass(attention, call.upstream)
    weights = right.weights if wrong.weights is None else wrong.weights(call)
    row_term = (weights * right.weight_gradient).sum(dim=-1, keepdim=True)
    if wrong.row_term is not None:
        row_term = wrong.row_term(call, weights, right.weight_gradient)
    slope = right.slope if wrong.slope is None else wrong.slope(call)
    scores = weights * (right.weight_gradient - row_term) * slope
    for_query = scores if wrong.scores is None else wrong.scores(call, scores)
    scale = attention.scale
    query_scale, key_scale = (scale, scale) if wrong.scales is None else wrong.scales(call)
    shared = _sum_of_groups if wrong.shared is None else wrong.shared
    result = {
        "query": query_scale * (for_query @ attention.key),
        "key": shared(call, key_scale * (scores.mT @ attention.query)),
        "value": shared(call, weights.mT @ call.upstream),
    }
    return result if wrong.heads is None else wrong.heads(call, result)


def _sum_of_groups(call: BackwardCall, heads: Tensor) -> Tensor:
    return sum_groups(heads, call.inputs.geometry.num_kv_heads, call.semantics)
