"""Mistakes in a backward pass that a failing gradient can be named after."""

from __future__ import annotations

from typing import Final

import torch

from .backward_steps import (
    WrongBackward,
    all_unmasked,
    cut,
    default_scale,
    first_item,
    grouped,
    matrix_averaged,
    matrix_of,
    matrix_transposed,
    mean_over_items,
    of_first_head,
    one,
    rolled,
    same,
    scales,
    slope,
    squared,
    swapped,
    tiled,
    times,
    top_left,
    transposed,
    uncapped_slope,
    uncausal,
    unmasked,
    unmodified,
    unmodified_slope,
    without,
    without_mask,
)

_SHARED: Final = "add up the gradients of all query heads that read a key/value head"
_RECOMPUTE: Final = "recompute the weights exactly as the forward pass makes them"

BACKWARD: Final[tuple[WrongBackward, ...]] = (
    WrongBackward(
        name="gradient-of-query-cut",
        text="no gradient reaches the query",
        fix="do not detach the query, and return its gradient",
        heads=cut("query"),
    ),
    WrongBackward(
        name="gradient-of-key-cut",
        text="no gradient reaches the key",
        fix="do not detach the key, and return its gradient",
        heads=cut("key"),
    ),
    WrongBackward(
        name="gradient-of-value-cut",
        text="no gradient reaches the value",
        fix="do not detach the value, and return its gradient",
        heads=cut("value"),
    ),
    WrongBackward(
        name="gradient-of-weights-cut",
        text="gradients flow to the values alone: the weights are detached",
        fix="do not detach the weights",
        heads=cut("query", "key"),
    ),
    WrongBackward(
        name="gradients-halved",
        text="every gradient is half of what it must be",
        fix="look for a factor of 2 between the answer and the backward pass",
        upstream=times(0.5),
    ),
    WrongBackward(
        name="gradients-doubled",
        text="every gradient is twice what it must be",
        fix="look for a gradient that is added twice",
        upstream=times(2.0),
    ),
    WrongBackward(
        name="gradients-negated",
        text="every gradient has the other sign",
        fix="look for a sign in the backward pass",
        upstream=times(-1.0),
    ),
    WrongBackward(
        name="gradients-averaged-over-items",
        text="every gradient is divided by the number of items",
        fix="do not average in the backward pass: the loss says what is averaged",
        upstream=mean_over_items,
    ),
    WrongBackward(
        name="gradients-of-first-item",
        text="only the first item of a batch gets a gradient",
        fix="go over the whole batch in the backward pass",
        upstream=first_item,
    ),
    WrongBackward(
        name="softmax-jacobian-ignored",
        text="the row term is missing in the backward pass of the softmax: dS is P * dP",
        fix="dS = P * (dP - rowsum(P * dP))",
        row_term=lambda _asked, weights, _gradient: torch.zeros_like(weights[..., :1]),
    ),
    WrongBackward(
        name="row-term-of-another-row",
        text="the row term of the softmax's backward pass is that of the row before",
        fix="index rowsum(dO * O) by the query",
        row_term=rolled,
    ),
    WrongBackward(
        name="row-term-of-first-head",
        text="every head uses the row term of the first head",
        fix="index rowsum(dO * O) by the head",
        row_term=of_first_head,
    ),
    WrongBackward(
        name="mask-forgotten-backward",
        text="the backward pass recomputes the weights without the mask",
        fix=_RECOMPUTE,
        clause="gradients.masked-zero",
        attention=without_mask,
        weights=unmasked,
    ),
    WrongBackward(
        name="mask-forgotten-backward",
        text="the backward pass recomputes the weights without the mask",
        fix=_RECOMPUTE,
        clause="gradients.masked-zero",
        attention=without_mask,
    ),
    WrongBackward(
        name="mask-forgotten-backward",
        text="the backward pass recomputes the weights without the mask",
        fix=_RECOMPUTE,
        clause="gradients.masked-zero",
        attention=without(keep=None),
    ),
    WrongBackward(
        name="mask-forgotten-backward",
        text="the backward pass recomputes the weights without the mask",
        fix=_RECOMPUTE,
        clause="gradients.masked-zero",
        attention=without(keep=None),
        weights=all_unmasked,
    ),
    WrongBackward(
        name="causal-forgotten-backward",
        text="the backward pass recomputes the weights without the causal rule",
        fix=_RECOMPUTE,
        clause="gradients.causal",
        attention=without(causal=False),
        weights=uncausal,
    ),
    WrongBackward(
        name="causal-forgotten-backward",
        text="the backward pass recomputes the weights without the causal rule",
        fix=_RECOMPUTE,
        clause="gradients.causal",
        attention=without(causal=False),
    ),
    WrongBackward(
        name="causal-other-corner-backward",
        text="the backward pass aligns the causal diagonal with the other corner",
        fix=_RECOMPUTE,
        attention=top_left,
    ),
    WrongBackward(
        name="window-forgotten-backward",
        text="the backward pass recomputes the weights without the window",
        fix=_RECOMPUTE,
        clause="gradients.options",
        attention=without(window=None),
    ),
    WrongBackward(
        name="bias-forgotten-backward",
        text="the backward pass recomputes the weights without the additive mask's values",
        fix=_RECOMPUTE,
        clause="gradients.options",
        attention=without(bias=None),
    ),
    WrongBackward(
        name="softcap-derivative-forgotten",
        text="the backward pass takes the capped scores for the scores",
        fix="multiply dS by 1 - tanh(scores / cap) ** 2",
        clause="gradients.options",
        slope=uncapped_slope,
    ),
    WrongBackward(
        name="softcap-forgotten-backward",
        text="the backward pass recomputes the weights without the cap",
        fix=_RECOMPUTE,
        clause="gradients.options",
        attention=without(softcap=None),
        slope=slope,
    ),
    WrongBackward(
        name="score-mod-derivative-forgotten",
        text="the backward pass takes the modified scores for the scores",
        fix="multiply dS by the derivative of score_mod",
        slope=unmodified_slope,
    ),
    WrongBackward(
        name="score-mod-forgotten-backward",
        text="the backward pass recomputes the weights without score_mod",
        fix=_RECOMPUTE,
        attention=unmodified,
    ),
    WrongBackward(
        name="score-mod-forgotten-backward",
        text="the backward pass recomputes the weights without score_mod",
        fix=_RECOMPUTE,
        attention=unmodified,
        slope=slope,
    ),
    WrongBackward(
        name="scale-forgotten-backward",
        text="the gradients of query and key are not multiplied by the scale",
        fix="dQ = scale * dS K, dK = scale * dS^T Q",
        scales=scales(one, one),
    ),
    WrongBackward(
        name="scale-forgotten-for-query",
        text="the gradient of the query is not multiplied by the scale",
        fix="dQ = scale * dS K",
        scales=scales(one, same),
    ),
    WrongBackward(
        name="scale-forgotten-for-key",
        text="the gradient of the key is not multiplied by the scale",
        fix="dK = scale * dS^T Q",
        scales=scales(same, one),
    ),
    WrongBackward(
        name="scaled-twice-backward",
        text="the gradients of query and key are multiplied by the scale twice",
        fix="dQ = scale * dS K, dK = scale * dS^T Q",
        scales=scales(squared, squared),
    ),
    WrongBackward(
        name="scaled-twice-for-key",
        text="the gradient of the key is multiplied by the scale twice",
        fix="dK = scale * dS^T Q, with the query as it was given",
        scales=scales(same, squared),
    ),
    WrongBackward(
        name="default-scale-backward",
        text="the backward pass uses the default scale where the call gives another",
        fix="keep the scale of the call for the backward pass",
        clause="gradients.options",
        scales=default_scale,
    ),
    WrongBackward(
        name="groups-tiled-backward",
        text="a key/value head gets the gradients of query heads in turns, not of neighbours",
        fix=_SHARED,
        shared=tiled,
    ),
    WrongBackward(
        name="groups-of-first-head-backward",
        text="a key/value head gets the gradient of the first query head that reads it alone",
        fix=_SHARED,
        shared=grouped(lambda heads: heads[:, :, 0]),
    ),
    WrongBackward(
        name="groups-of-last-head-backward",
        text="a key/value head gets the gradient of the last query head that reads it alone",
        fix=_SHARED,
        shared=grouped(lambda heads: heads[:, :, -1]),
    ),
    WrongBackward(
        name="groups-averaged-backward",
        text="the gradients of query heads that share a key/value head are averaged",
        fix=_SHARED,
        shared=grouped(lambda heads: heads.mean(dim=2)),
    ),
    WrongBackward(
        name="gradients-of-key-and-value-swapped",
        text="key and value get each other's gradient",
        fix="return the gradients in the order of the arguments",
        heads=swapped,
    ),
    WrongBackward(
        name="scores-transposed-backward",
        text="the gradient of the scores meets the keys transposed",
        fix="dQ = scale * dS K, with dS [queries, keys]",
        scores=transposed,
    ),
    WrongBackward(
        name="gradient-of-output-matrix-cut",
        text="no gradient reaches the output matrix",
        fix="do not detach the output projection's weight",
        final=cut("o"),
    ),
    WrongBackward(
        name="gradient-of-value-bias-cut",
        text="no gradient reaches the bias of the values",
        fix="do not detach the bias",
        final=cut("v_bias"),
    ),
    WrongBackward(
        name="gradient-of-matrix-transposed",
        text="the gradient of a square matrix is transposed",
        fix="dW = dY^T X for W [out, in]",
        matrix=matrix_transposed,
    ),
    WrongBackward(
        name="gradient-of-matrix-of-last-item",
        text="the gradient of a matrix is that of the last item alone",
        fix="add up over items and tokens",
        matrix=matrix_of(slice(-1, None)),
    ),
    WrongBackward(
        name="gradient-of-matrix-of-first-item",
        text="the gradient of a matrix is that of the first item alone",
        fix="add up over items and tokens",
        matrix=matrix_of(slice(0, 1)),
    ),
    WrongBackward(
        name="gradient-of-matrix-averaged",
        text="the gradient of a matrix is averaged over the items",
        fix="add up over items and tokens",
        matrix=matrix_averaged,
    ),
    WrongBackward(
        name="gradient-of-bias-averaged",
        text="the gradient of a bias is averaged over items and tokens",
        fix="add up over items and tokens",
        bias=lambda gradient: gradient.mean(dim=(0, 1)),
    ),
)


def _entry(name: str, text: str, fix: str) -> dict[str, str]:
    return {"name": name, "text": text, "fix": fix}


# By what a failing problem hands over where gradients are right without it.
BESIDE: Final[dict[str, dict[str, str]]] = {
    "past": _entry(
        "cache-wrong-backward",
        "gradients are right without a cache of keys and values, and wrong with one",
        "cut up the gradient of the joined keys as they were joined, and recompute the weights "
        "with the places that the forward pass gives cached and new keys",
    ),
    "sinks": _entry(
        "sinks-wrong-backward",
        "gradients are right without sinks, and wrong beside them",
        "keep the sink in the log-sum-exp that weights are recomputed with, and give the sink "
        "minus the sum over its rows of its weight times rowsum(dO * O)",
    ),
}

# By the clause that fails though the plain gradients of every problem are right.
OF_CALLS: Final[dict[str, dict[str, str]]] = {
    "gradients.accumulate": _entry(
        "gradients-overwritten",
        "the backward pass replaces the gradients that are there",
        "return gradients and leave .grad alone: autograd adds them up",
    ),
    "gradients.strided": _entry(
        "strides-ignored-backward",
        "the backward pass reads a tensor as if it lay row after row in memory",
        "honour strides, or call contiguous() on the gradient of the answer and on the inputs",
    ),
    "gradients.interleaved": _entry(
        "state-of-the-last-call",
        "the backward pass uses what the last call has left behind",
        "keep what the backward pass needs in its own context (save_for_backward)",
    ),
    "gradients.alone": _entry(
        "gradient-needs-another-input",
        "the gradient of an input depends on which others require one",
        "look at ctx.needs_input_grad of each input by itself",
    ),
    "gradients.repeated": _entry(
        "buffers-overwritten-backward",
        "the backward pass overwrites what it needs a second time",
        "leave saved tensors as they are",
    ),
    "gradients.empty-row-finite": _entry(
        "empty-rows-poison-gradients",
        "a row without keys is mended in the answer, but not in the backward pass",
        "fill masked logits with masked_fill, or mend the row before the softmax",
    ),
    "gradients.bias": _entry(
        "gradient-of-bias-wrong",
        "the gradient of an additive mask is not dS, added up over the axes it is broadcast along",
        "sum dS over the axes of size 1 of the mask",
    ),
    "gradients.weights": _entry(
        "gradient-of-returned-weights-lost",
        "the gradients of the answer and of the returned weights do not both flow back",
        "add the gradient of the returned weights to dO V^T, or return them detached "
        "(mark_non_differentiable)",
    ),
    "gradients.dropout": _entry(
        "other-weights-dropped-backward",
        "the backward pass does not drop the weights that the answer has dropped, or does not "
        "divide the others as it did",
        "keep the mask, or the state of the generator, in the context of the call, and multiply "
        "dO V^T and the weights of dV by mask / (1 - p)",
    ),
    "gradients.shared": _entry(
        "gradient-of-shared-input-lost",
        "an input that is key and value (or query, too) does not get the sum of their gradients",
        "return a gradient for each argument, in memory of its own: autograd adds them up",
    ),
    "gradients.no-queries": _entry(
        "no-queries-no-backward",
        "without queries or items the backward pass fails, or leaves gradients unwritten",
        "return zeros for keys and values before anything is launched",
    ),
    "gradients.double-backward": _entry(
        "second-gradients-cut",
        "the backward pass has no history of its own, or not all of it",
        "write the backward pass in operations that autograd follows, or use once_differentiable",
    ),
}
