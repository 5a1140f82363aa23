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
from ...tolerance.prepared import is_prepared
from ...tolerance.prepared_gradients import as_prepared, pulled
from ...tolerance.visible_keys import sum_groups
from .named_mistake import BackwardCall, BackwardSteps, DeclaredCall, Gradients, NotExpressible

# The inputs that a layer projects.
PROJECTED: Final = ("query", "key", "value")
# A call, and the output of its heads, merged for a layer.
BackwardBeginning = tuple[BackwardCall, Tensor]
# The gradient of heads as they were given, from their role and the gradient of heads as they meet.
WayBack = Callable[[BackwardCall, str, Tensor], Tensor]


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
        attention=as_prepared(core),
        upstream=behind,
        heads=declared.projected_heads(),
    )
    return call, merged


def _gradients(
    call: BackwardCall, merged: Tensor, upstream: Tensor, wrong: BackwardSteps
) -> Gradients:
    heads, inputs, semantics = heads_with(call, wrong), call.inputs, call.semantics
    back = unprepared if wrong.unprepared is None else wrong.unprepared
    heads = {role: back(call, role, gradient) for role, gradient in heads.items()}
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
    """What shows the gradient of heads as given: itself, of a layer that of their projection."""
    if not call.inputs.is_layer:
        return gradient
    merged, tokens = golden.merge_heads(gradient, call.semantics), getattr(call.inputs, role)
    return _matrix(merged, tokens.double(), BackwardSteps())


def unprepared(call: BackwardCall, role: str, gradient: Tensor) -> Tensor:
    """The gradient of heads as they were given, from that of heads as they meet.

    One for each head of query, key or value: heads that share a key are turned alike.
    """
    point = call.semantics
    if role not in PROJECTED[:2] or not is_prepared(point):
        return gradient
    positions, heads = _positions(call, role), call.heads[PROJECTED.index(role)]
    return pulled(
        heads,
        gradient,
        lambda given: golden.rotate_heads(golden.normalise_heads(given, point), positions, point),
    )


def _positions(call: BackwardCall, role: str) -> Tensor:
    """Where the tokens of queries or keys stand."""
    if role == "query":
        return call.attention.positions
    return torch.arange(call.heads[1].shape[-2])


def _turned_back(call: BackwardCall, role: str, gradient: Tensor) -> Tensor:
    """The gradient of heads before they were turned: the rotation the other way round."""
    return golden.rotate_heads(gradient, -_positions(call, role), call.semantics)


def _turned(times: int) -> WayBack:
    """As if the gradient had been turned onward so many times before it is turned back."""

    def back(call: BackwardCall, role: str, gradient: Tensor) -> Tensor:
        places = times * _positions(call, role)
        return unprepared(call, role, golden.rotate_heads(gradient, places, call.semantics))

    return back


def _by_constants(call: BackwardCall, role: str, gradient: Tensor) -> Tensor:
    """Divided by the norm alone."""
    heads, point = call.heads[PROJECTED.index(role)], call.semantics
    norms = golden.norms(_centred(heads) if point.qk_norm == "layer" else heads, point)
    return _turned_back(call, role, gradient) / norms


def _by_constant_norm(call: BackwardCall, role: str, gradient: Tensor) -> Tensor:
    divided = _by_constants(call, role, gradient)
    return _centred(divided) if call.semantics.qk_norm == "layer" else divided


def _centred(heads: Tensor) -> Tensor:
    return heads - heads.mean(dim=-1, keepdim=True)


def _turns(point: golden.Semantics) -> bool:
    return bool(point.rotary != "none")


def _normalises(point: golden.Semantics) -> bool:
    return bool(point.qk_norm != "none")


_TURN: Final = "turn the gradient of a turned head back by the angle of its place"
_FLOW: Final = "let the gradient flow through the norm, too: (g - y mean(y g)) / norm"
# Ways back from heads as they meet to those that were given, other than the right one: in words,
# what to do instead, where it can be made, and how it is made.
WAYS_BACK: Final[tuple[tuple[str, str, Callable[[golden.Semantics], bool], WayBack], ...]] = (
    ("the rotation is not turned back", _TURN, _turns, _turned(1)),
    ("heads are turned on by their angles instead of back", _TURN, _turns, _turned(2)),
    ("the norm is taken for a constant", _FLOW, _normalises, _by_constant_norm),
    ("norm and mean are taken for constants", _FLOW, _normalises, _by_constants),
    ("the normalisation is left out", _FLOW, _normalises, _turned_back),
    (
        "rotation and normalisation are left out",
        f"{_TURN}; {_FLOW}",
        lambda point: _turns(point) and _normalises(point),
        lambda _call, _role, gradient: gradient,
    ),
)


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
    attention = call.attention
    if wrong.attention is not None:
        attention = as_prepared(wrong.attention(call))
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


def divided_by_saved_sums(causal: Callable[[BackwardCall], bool]) -> BackwardSteps:
    """Weights recomputed under another causality, over the sums and the answer of the right pass.

    So does a pass that saves these two alone, as those of FlashAttention (Dao et al., 2022).
    """

    def attention(call: BackwardCall) -> golden.Attention:
        return call.other_attention(causal=causal(call))

    def weights(call: BackwardCall) -> Tensor:
        total = call.attention.logits.logsumexp(dim=-1, keepdim=True)
        total = total.masked_fill(~torch.isfinite(total), 0.0)  # of rows without keys
        return torch.exp(attention(call).logits - total)

    def row_term(call: BackwardCall, _weights: Tensor, _of_weights: Tensor) -> Tensor:
        return (call.upstream * call.attention.output).sum(-1, keepdim=True)

    return BackwardSteps(attention=attention, weights=weights, row_term=row_term)


def gradient_of_mask(call: BackwardCall, right: BackwardPass, logits: Tensor) -> Gradients:
    """The gradient of a core's additive mask, from that of the logits; {} where it has none."""
    bias = call.inputs.bias
    if bias is None or call.inputs.is_layer:
        return {}
    return {"bias": (logits * right.bias_slope).sum_to_size(bias.shape)}


def sum_of_groups(call: BackwardCall, heads: Tensor) -> Tensor:
    """Add up the gradients of the query heads that read one key/value head."""
    return sum_groups(heads, call.inputs.geometry.num_kv_heads, call.semantics)
