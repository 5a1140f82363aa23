"""Mistakes in a backward pass that only some way of calling it shows: named by the clause."""

from __future__ import annotations

from typing import Final


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
