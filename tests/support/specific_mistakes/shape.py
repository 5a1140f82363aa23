"""What answers in another shape, or not at all."""

from __future__ import annotations

from typing import Final

from .consequences import ANYTHING, NOTHING_ELSE, Specific, also

SHAPE: Final[Specific] = {
    "shape.bounds": ("ReadsPastTheEnd", NOTHING_ELSE),
    "shape.dtype": ("AnswersInFloat64", also("mixed.undeclared-inputs")),
    "shape.empty-batch": ("EmptyBatchRaises", NOTHING_ELSE),
    "shape.empty-key": ("NoKeysUnwritten", NOTHING_ELSE),
    "shape.empty-query": ("EmptyQueryRaises", NOTHING_ELSE),
    "shape.expanded": ("ExpandedInputsRefused", NOTHING_ELSE),
    # An answer of another shape fails every clause that asks for one.
    "shape.output": ("HeadsAlongTokens", ANYTHING),
    "shape.rejects-mismatch": ("HeadSizesCutToFit", NOTHING_ELSE),
    "shape.rejects-others": ("LongerMaskAccepted", NOTHING_ELSE),
    "shape.rejects-width": ("WidthCutToFit", NOTHING_ELSE),
    "shape.shared": (
        "SharedValuesLost",
        also("gradients.options gradients.shared numerics.options"),
    ),
    "shape.strided": (
        "LastStrideAssumedOne",
        also("gradients.options gradients.strided numerics.options"),
    ),
    "shape.weights": (
        "WeightsOfReversedHeads",
        also("gradients.options gradients.weights numerics.options"),
    ),
    "shape.weights-aside": (
        "NoOutputWithWeights",
        also("gradients.options gradients.weights numerics.options"),
    ),
}
