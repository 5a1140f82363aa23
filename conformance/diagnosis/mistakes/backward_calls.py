"""Backward passes that fail with some calls only: a failing clause or option names the mistake.

Each needs one entry here. Gradients that are wrong everywhere are named by ``backward``.
"""

from __future__ import annotations

from typing import Final

from .backward import GOLDEN_GRADIENTS
from .named_mistake import NamedMistake, named

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
