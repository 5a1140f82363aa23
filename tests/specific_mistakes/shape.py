"""What answers in another shape, or not at all."""

from __future__ import annotations

from typing import Final

from .consequences import NOTHING_ELSE, Specific, also

SHAPE: Final[Specific] = {
    "shape.bounds": ("ReadsPastTheEnd", NOTHING_ELSE),
    "shape.dtype": ("AnswersInFloat64", NOTHING_ELSE),
    "shape.empty-batch": ("EmptyBatchRaises", NOTHING_ELSE),
    "shape.empty-query": ("EmptyQueryRaises", NOTHING_ELSE),
    "shape.expanded": ("ExpandedInputsRefused", NOTHING_ELSE),
    "shape.output": (
        "HeadsAlongTokens",
        also(
            "equivariance.batch equivariance.batch-independent equivariance.heads "
            "equivariance.keys equivariance.queries equivariance.tokens mask.all-keep mask.bias "
            "mask.bias-counts mask.broadcast mask.causal mask.causal-alignment "
            "mask.causal-and-mask mask.causal-combined mask.causal-first-key mask.empty-row "
            "mask.empty-row-isolated mask.forms-agree mask.golden mask.no-leak "
            "mask.no-leak-nonfinite mask.padding-is-absence mask.per-head mask.per-item "
            "mask.single-key numerics.constant-value numerics.golden numerics.key-shift "
            "numerics.large-logits numerics.near-ties numerics.scale numerics.scale-error "
            "numerics.typical-error numerics.value-linear shape.dtype shape.empty-batch "
            "shape.expanded shape.strided shape.weights state.answer-kept "
            "state.bitwise-repeatable state.inputs-unchanged state.no-memory state.repeatable"
        ),
    ),
    "shape.rejects-mismatch": ("HeadSizesCutToFit", NOTHING_ELSE),
    "shape.rejects-others": ("LongerMaskAccepted", NOTHING_ELSE),
    "shape.rejects-width": ("WidthCutToFit", NOTHING_ELSE),
    "shape.shared": ("SharedValuesLost", NOTHING_ELSE),
    "shape.strided": ("LastStrideAssumedOne", NOTHING_ELSE),
    "shape.weights": ("WeightsOfReversedHeads", NOTHING_ELSE),
    "shape.weights-aside": ("NoOutputWithWeights", NOTHING_ELSE),
}
