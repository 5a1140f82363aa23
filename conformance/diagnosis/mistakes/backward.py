"""Mistakes in the backward pass of attention, named by gradients that are the same.

A mistake needs one entry here, with the wrong steps that it takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...tolerance.backward_pass import backward_pass
from .named_mistake import BackwardCall, BackwardSteps, Gradients, NamedMistake, named

GOLDEN_GRADIENTS: Final = "gradients.golden"
_SHARED: Final = "add up the gradients of all query heads that read a key/value head"
# The mistake that forgets several rules at once: of one rule another name says more.
EVERY_RULE: Final = "masks-forgotten-backward"
_RECOMPUTE: Final = "recompute the weights exactly as the forward pass makes them"
_ADD_UP: Final = "add up over items and tokens"


def _backward(name: str, primary: str = GOLDEN_GRADIENTS) -> Callable[..., list[NamedMistake]]:
    """Head an entry, as ``named`` does; its ways are wrong steps of the backward pass."""

    def entries(sentence: str, fix: str, *ways: Mapping[str, Any]) -> list[NamedMistake]:
        steps = ({"backward": BackwardSteps(**way)} for way in ways)
        return named(name, primary)(sentence, fix, *steps)

    return entries


def _cut(*names: str) -> Callable[[BackwardCall, Gradients], Gradients]:
    """No gradient reaches some of the heads, or of the weights."""
    return lambda _call, gradients: {
        name: torch.zeros_like(gradient) if name in names else gradient
        for name, gradient in gradients.items()
    }


def _first_item(call: BackwardCall) -> Tensor:
    upstream = torch.zeros_like(call.upstream)
    upstream[:1] = call.upstream[:1]
    return upstream


def _without_mask(call: BackwardCall) -> golden.Attention:
    """Without masks other than additive ones, which hide keys by their values."""
    inputs = call.inputs
    return call.other_attention(keep=inputs.keep if inputs.mask_form == "bias" else None)


def _unnormalised(
    attention: Callable[[BackwardCall], golden.Attention],
) -> Callable[[BackwardCall], Tensor]:
    """Weights by the log-sum-exp of the admitted logits: what is hidden comes on top."""

    def weights(call: BackwardCall) -> Tensor:
        free = attention(call)
        kept = call.attention.logits.masked_fill(~call.attention.allowed, -torch.inf)
        total = kept.logsumexp(dim=-1, keepdim=True)
        exponentials = torch.exp(free.logits - torch.where(total.isneginf(), torch.inf, total))
        return exponentials.masked_fill(~free.allowed, 0.0)

    return weights


def _recomputed(
    attention: Callable[[BackwardCall], golden.Attention], **steps: Any
) -> list[dict[str, Any]]:
    """Ways to recompute weights: divided by their own sum or by that of the forward pass.

    The row term is made of these weights, or of the forward pass's answer.
    """
    divided: tuple[dict[str, Any], ...] = ({}, {"weights": _unnormalised(attention)})
    terms: tuple[dict[str, Any], ...] = ({}, {"row_term": _row_term_of_answer})
    return [
        {"attention": attention, **weights, **term, **steps}
        for term in terms
        for weights in divided
    ]


def _row_term_of_answer(call: BackwardCall, _weights: Tensor, _gradient: Tensor) -> Tensor:
    return (call.upstream * call.attention.output).sum(dim=-1, keepdim=True)


def _without(**changes: Any) -> Callable[[BackwardCall], golden.Attention]:
    return lambda call: call.other_attention(**changes)


def _other_corner(call: BackwardCall) -> golden.Attention:
    other = {"bottom-right": "top-left", "top-left": "bottom-right"}
    point = call.semantics
    return call.other_attention(
        semantics=point.replace(causal_alignment=other[point.causal_alignment])
    )


def _row_sums(weights: Tensor, gradient: Tensor) -> Tensor:
    return (weights * gradient).sum(dim=-1, keepdim=True)


def _default_scale(call: BackwardCall) -> tuple[float, float]:
    return call.default_scale, call.default_scale


def _slope(call: BackwardCall) -> Tensor:
    """The derivative of cap and function, which are not forgotten."""
    return backward_pass(call.attention, call.upstream).slope


def _uncapped_slope(call: BackwardCall) -> Tensor:
    """The derivative of the function alone, where there is one: that of the cap is forgotten."""
    slope = backward_pass(call.attention, call.upstream).function_slope
    return torch.ones_like(call.attention.scores) if slope is None else slope


def _unmodified(call: BackwardCall) -> golden.Attention:
    return call.other_attention(semantics=call.semantics.replace(score_mod=None))


def _unmodified_slope(call: BackwardCall) -> Tensor:
    """The derivative of the cap alone: that of the function is forgotten."""
    point = call.attention.semantics.replace(score_mod=None)
    plain = dataclasses.replace(call.attention, semantics=point)
    return backward_pass(plain, call.upstream).slope


def _scaled(query: int, key: int) -> Callable[[BackwardCall], tuple[float, float]]:
    """Powers of the scale, for query and key."""
    return lambda call: (call.attention.scale**query, call.attention.scale**key)


def _of_neighbours(total: Callable[[Tensor], Tensor]) -> Callable[[BackwardCall, Tensor], Tensor]:
    """Of the neighbours ``[B, Hkv, group, L, D]`` that read one head."""
    return lambda call, heads: total(heads.unflatten(1, (call.inputs.geometry.num_kv_heads, -1)))


def _in_turns(call: BackwardCall, heads: Tensor) -> Tensor:
    tiled: Tensor = heads.unflatten(1, (-1, call.inputs.geometry.num_kv_heads)).sum(dim=1)
    return tiled


def _swapped(_call: BackwardCall, gradients: Gradients) -> Gradients:
    if gradients["key"].shape != gradients["value"].shape:
        return gradients
    return {**gradients, "key": gradients["value"], "value": gradients["key"]}


def _turned(matrix: Tensor) -> Tensor:
    """The transpose of what is square."""
    return matrix.mT if matrix.shape[-1] == matrix.shape[-2] else matrix


def _matrix_of(items: slice) -> Callable[[Tensor, Tensor], Tensor]:
    """The gradient of a matrix from some items of the batch."""

    def matrix(gradient: Tensor, tokens: Tensor) -> Tensor:
        product: Tensor = gradient[items].flatten(0, 1).mT @ tokens[items].flatten(0, 1)
        return product

    return matrix


_matrix: Final = _matrix_of(slice(None))


ATTENTION: Final[tuple[NamedMistake, ...]] = (
    *(
        mistake
        for name in ("query", "key", "value")
        for mistake in _backward(f"gradient-of-{name}-cut")(
            f"no gradient reaches the {name}",
            f"do not detach the {name}, and return its gradient",
            {"heads": _cut(name)},
        )
    ),
    *_backward("gradient-of-weights-cut")(
        "gradients flow to the values alone: the weights are detached",
        "do not detach the weights",
        {"heads": _cut("query", "key")},
    ),
    *_backward("gradients-halved")(
        "every gradient is half of what it must be",
        "look for a factor of 2 between the answer and the backward pass",
        {"upstream": lambda call: 0.5 * call.upstream},
    ),
    *_backward("gradients-doubled")(
        "every gradient is twice what it must be",
        "look for a gradient that is added twice",
        {"upstream": lambda call: 2.0 * call.upstream},
    ),
    *_backward("gradients-negated")(
        "every gradient has the other sign",
        "look for a sign in the backward pass",
        {"upstream": lambda call: -1.0 * call.upstream},
    ),
    *_backward("gradients-averaged-over-items")(
        "every gradient is divided by the number of items",
        "do not average in the backward pass: the loss says what is averaged",
        {"upstream": lambda call: call.upstream / call.upstream.shape[0]},
    ),
    *_backward("gradients-of-first-item")(
        "only the first item of a batch gets a gradient",
        "go over the whole batch in the backward pass",
        {"upstream": _first_item},
    ),
    *_backward("softmax-jacobian-ignored")(
        "the row term is missing in the backward pass of the softmax: dS is P * dP",
        "dS = P * (dP - rowsum(P * dP))",
        {"row_term": lambda _call, weights, _gradient: torch.zeros_like(weights[..., :1])},
    ),
    *_backward("row-term-of-another-row")(
        "the row term of the softmax's backward pass is that of the row before",
        "index rowsum(dO * O) by the query",
        {"row_term": lambda _call, *both: _row_sums(*both).roll(1, dims=2)},
    ),
    *_backward("row-term-of-first-head")(
        "every head uses the row term of the first head",
        "index rowsum(dO * O) by the head",
        {"row_term": lambda _call, *both: _row_sums(*both)[:, :1].expand_as(both[0][..., :1])},
    ),
    *_backward("mask-forgotten-backward", "gradients.masked-zero")(
        "the backward pass recomputes the weights without the mask",
        _RECOMPUTE,
        *_recomputed(_without_mask),
        *_recomputed(_without(keep=None)),
    ),
    *_backward("causal-forgotten-backward", "gradients.causal")(
        "the backward pass recomputes the weights without the causal rule",
        _RECOMPUTE,
        *_recomputed(_without(causal=False)),
    ),
    *_backward(EVERY_RULE, "gradients.options")(
        "the backward pass recomputes the weights with every key, whatever hides it",
        _RECOMPUTE,
        *_recomputed(_without(keep=None, causal=False, window=None)),
    ),
    *_backward("causal-other-corner-backward")(
        "the backward pass aligns the causal diagonal with the other corner",
        _RECOMPUTE,
        {"attention": _other_corner},
    ),
    *_backward("window-forgotten-backward", "gradients.options")(
        "the backward pass recomputes the weights without the window",
        _RECOMPUTE,
        *_recomputed(_without(window=None)),
    ),
    *_backward("bias-forgotten-backward", "gradients.options")(
        "the backward pass recomputes the weights without the additive mask's values",
        _RECOMPUTE,
        *_recomputed(_without(bias=None)),
    ),
    *_backward("softcap-derivative-forgotten", "gradients.options")(
        "the backward pass takes the capped scores for the scores",
        "multiply dS by 1 - tanh(scores / cap) ** 2",
        {"slope": _uncapped_slope},
    ),
    *_backward("softcap-forgotten-backward", "gradients.options")(
        "the backward pass recomputes the weights without the cap",
        _RECOMPUTE,
        *_recomputed(_without(softcap=None), slope=_slope),
    ),
    *_backward("score-mod-derivative-forgotten")(
        "the backward pass takes the modified scores for the scores",
        "multiply dS by the derivative of score_mod",
        {"slope": _unmodified_slope},
    ),
    *_backward("score-mod-forgotten-backward")(
        "the backward pass recomputes the weights without score_mod",
        _RECOMPUTE,
        {"attention": _unmodified},
        {"attention": _unmodified, "slope": _slope},
    ),
    *_backward("scale-forgotten-backward")(
        "the gradients of query and key are not multiplied by the scale",
        "dQ = scale * dS K, dK = scale * dS^T Q",
        {"scales": _scaled(0, 0)},
    ),
    *_backward("scale-forgotten-for-query")(
        "the gradient of the query is not multiplied by the scale",
        "dQ = scale * dS K",
        {"scales": _scaled(0, 1)},
    ),
    *_backward("scale-forgotten-for-key")(
        "the gradient of the key is not multiplied by the scale",
        "dK = scale * dS^T Q",
        {"scales": _scaled(1, 0)},
    ),
    *_backward("scaled-twice-backward")(
        "the gradients of query and key are multiplied by the scale twice",
        "dQ = scale * dS K, dK = scale * dS^T Q",
        {"scales": _scaled(2, 2)},
    ),
    *_backward("scaled-twice-for-key")(
        "the gradient of the key is multiplied by the scale twice",
        "dK = scale * dS^T Q, with the query as it was given",
        {"scales": _scaled(1, 2)},
    ),
    *_backward("default-scale-backward", "gradients.options")(
        "the backward pass uses the default scale where the call gives another",
        "keep the scale of the call for the backward pass",
        {"scales": _default_scale},
    ),
    *_backward("groups-tiled-backward")(
        "a key/value head gets the gradients of query heads in turns, not of neighbours",
        _SHARED,
        {"shared": _in_turns},
    ),
    *_backward("groups-of-first-head-backward")(
        "a key/value head gets the gradient of the first query head that reads it alone",
        _SHARED,
        {"shared": _of_neighbours(lambda heads: heads[:, :, 0])},
    ),
    *_backward("groups-of-last-head-backward")(
        "a key/value head gets the gradient of the last query head that reads it alone",
        _SHARED,
        {"shared": _of_neighbours(lambda heads: heads[:, :, -1])},
    ),
    *_backward("groups-averaged-backward")(
        "the gradients of query heads that share a key/value head are averaged",
        _SHARED,
        {"shared": _of_neighbours(lambda heads: heads.mean(dim=2))},
    ),
    *_backward("gradients-of-key-and-value-swapped")(
        "key and value get each other's gradient",
        "return the gradients in the order of the arguments",
        {"heads": _swapped},
    ),
    *_backward("scores-transposed-backward")(
        "the gradient of the scores meets the keys transposed",
        "dQ = scale * dS K, with dS [queries, keys]",
        {"scores": lambda _call, scores: _turned(scores)},
    ),
)


LAYERS: Final[tuple[NamedMistake, ...]] = (
    *_backward("gradient-of-output-matrix-cut")(
        "no gradient reaches the output matrix",
        "do not detach the output projection's weight",
        {"final": _cut("o")},
    ),
    *_backward("gradient-of-value-bias-cut")(
        "no gradient reaches the bias of the values",
        "do not detach the bias",
        {"final": _cut("v_bias")},
    ),
    *_backward("gradient-of-matrix-transposed")(
        "the gradient of a square matrix is transposed",
        "dW = dY^T X for W [out, in]",
        {"matrix": lambda *both: _turned(_matrix(*both))},
    ),
    *_backward("gradient-of-matrix-of-last-item")(
        "the gradient of a matrix is that of the last item alone",
        _ADD_UP,
        {"matrix": _matrix_of(slice(-1, None))},
    ),
    *_backward("gradient-of-matrix-of-first-item")(
        "the gradient of a matrix is that of the first item alone",
        _ADD_UP,
        {"matrix": _matrix_of(slice(0, 1))},
    ),
    *_backward("gradient-of-matrix-averaged")(
        "the gradient of a matrix is averaged over the items",
        _ADD_UP,
        {"matrix": lambda gradient, tokens: _matrix(gradient, tokens) / len(gradient)},
    ),
    *_backward("gradient-of-bias-averaged")(
        "the gradient of a bias is averaged over items and tokens",
        _ADD_UP,
        {"bias": lambda gradient: gradient.mean(dim=(0, 1))},
    ),
)

# Named by the clause that fails though the plain gradients of every problem are right.
OF_CALLS: Final[tuple[NamedMistake, ...]] = (
    *named("gradients-overwritten", "gradients.accumulate")(
        "the backward pass replaces the gradients that are there",
        "return gradients and leave .grad alone: autograd adds them up",
    ),
    *named("strides-ignored-backward", "gradients.strided")(
        "the backward pass reads a tensor as if it lay row after row in memory",
        "honour strides, or call contiguous() on the gradient of the answer and on the inputs",
    ),
    *named("state-of-the-last-call", "gradients.interleaved")(
        "the backward pass uses what the last call has left behind",
        "keep what the backward pass needs in its own context (save_for_backward)",
    ),
    *named("gradient-needs-another-input", "gradients.alone")(
        "the gradient of an input depends on which others require one",
        "look at ctx.needs_input_grad of each input by itself",
    ),
    *named("buffers-overwritten-backward", "gradients.repeated")(
        "the backward pass overwrites what it needs a second time",
        "leave saved tensors as they are",
    ),
    *named("empty-rows-poison-gradients", "gradients.empty-row-finite")(
        "a row without keys is mended in the answer, but not in the backward pass",
        "fill masked logits with masked_fill, or mend the row before the softmax",
    ),
    *named("gradient-of-bias-wrong", "gradients.bias")(
        "the gradient of an additive mask is not dS, added up over the axes it is broadcast along",
        "sum dS over the axes of size 1 of the mask",
    ),
    *named("gradient-of-returned-weights-lost", "gradients.weights")(
        "the gradients of the answer and of the returned weights do not both flow back",
        "add the gradient of the returned weights to dO V^T, or return them detached "
        "(mark_non_differentiable)",
    ),
    *named("other-weights-dropped-backward", "gradients.dropout")(
        "the backward pass does not drop the weights that the answer has dropped, or does not "
        "divide the others as it did",
        "keep the mask, or the state of the generator, in the context of the call, and multiply "
        "dO V^T and the weights of dV by mask / (1 - p)",
    ),
    *named("gradient-of-shared-input-lost", "gradients.shared")(
        "an input that is key and value (or query, too) does not get the sum of their gradients",
        "return a gradient for each argument, in memory of its own: autograd adds them up",
    ),
    *named("no-queries-no-backward", "gradients.no-queries")(
        "without queries or items the backward pass fails, or leaves gradients unwritten",
        "return zeros for keys and values before anything is launched",
    ),
    *named("second-gradients-cut", "gradients.double-backward")(
        "the backward pass has no history of its own, or not all of it",
        "write the backward pass in operations that autograd follows, or use once_differentiable",
    ),
)

# Named where gradients are right without an option of the call; every problem of the clause in
# ``also`` has that option.
OF_OPTIONS: Final[tuple[NamedMistake, ...]] = (
    *named(
        "cache-wrong-backward", GOLDEN_GRADIENTS, right_without="past", also=("gradients.cache",)
    )(
        "gradients are right without a cache of keys and values, and wrong with one",
        "cut up the gradient of the joined keys as they were joined, and recompute the weights "
        "with the places that the forward pass gives cached and new keys",
    ),
    *named(
        "sinks-wrong-backward", GOLDEN_GRADIENTS, right_without="sinks", also=("gradients.sinks",)
    )(
        "gradients are right without sinks, and wrong beside them",
        "keep the sink in the log-sum-exp that weights are recomputed with, and give the sink "
        "minus the sum over its rows of its weight times rowsum(dO * O)",
    ),
)
