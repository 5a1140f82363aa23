"""What computes other numbers."""

from __future__ import annotations

from typing import Final

from .consequences import NOTHING_ELSE, Specific, also

NUMERICS: Final[Specific] = {
    "numerics.lifted-logits": ("CapApproximated", also("gradients.options")),
    "numerics.accumulation": ("AccumulatorInHalfPrecision", NOTHING_ELSE),
    "numerics.overflow-half": ("ProductOverflowsHalf", NOTHING_ELSE),
    "numerics.subnormal": ("SmallQueriesTakenForZero", also("numerics.golden")),
    "numerics.any-length": (
        "LongMaskCutOff",
        also(
            "equivariance.keys mask.causal-and-mask mask.empty-row mask.forms-agree mask.golden "
            "mask.no-leak mask.no-leak-nonfinite mask.padding-is-absence mask.per-item "
            "mask.single-key shape.weights"
        ),
    ),
    "numerics.long-sequence": ("BlockNumbersWrap", NOTHING_ELSE),
    "numerics.nan-shows": ("NanAnsweredWithZeros", NOTHING_ELSE),
    "numerics.options": (
        "WindowLostUnderLengths",
        also("gradients.options window.any-length window.golden window.causal"),
    ),
    "numerics.constant-value": (
        "DividedByCount",
        also(
            "mask.bias mask.bias-counts mask.causal-alignment mask.causal-combined "
            "mask.causal-first-key mask.golden mask.padding-is-absence mask.single-key "
            "numerics.convex numerics.golden numerics.large-logits numerics.near-ties "
            "numerics.odd-scale numerics.scale numerics.typical-error shape.weights"
        ),
    ),
    "numerics.convex": (
        "OutputTimesSqrtKeys",
        also(
            "mask.bias mask.bias-counts mask.causal-alignment mask.causal-combined "
            "mask.causal-first-key mask.golden mask.padding-is-absence mask.single-key "
            "numerics.constant-value numerics.golden numerics.large-logits numerics.near-ties "
            "numerics.odd-scale numerics.scale numerics.typical-error state.dropout"
        ),
    ),
    "numerics.golden": (
        "HeadSizeAndCountSwapped",
        also(
            "mask.bias mask.causal-alignment mask.causal-combined mask.causal-first-key "
            "mask.empty-row mask.golden numerics.large-logits numerics.near-ties numerics.scale "
            "numerics.scale-error numerics.typical-error shape.weights"
        ),
    ),
    "numerics.key-shift": (
        "CosineScores",
        also(
            "mask.bias mask.causal-alignment mask.causal-combined mask.causal-first-key "
            "mask.golden numerics.golden numerics.large-logits numerics.near-ties "
            "numerics.odd-scale numerics.scale numerics.scale-error numerics.typical-error "
            "shape.weights"
        ),
    ),
    "numerics.large-logits": (
        "LogitsClamped",
        also(
            "mask.bias mask.causal-alignment mask.causal-combined mask.causal-first-key "
            "mask.golden numerics.golden numerics.near-ties numerics.scale "
            "numerics.scale-error numerics.typical-error shape.weights"
        ),
    ),
    "numerics.near-ties": (
        "ScoresOfElevenBits",
        also(
            "gradients.alone gradients.dropout gradients.shared mask.bias mask.causal-alignment "
            "mask.causal-combined "
            "mask.causal-first-key mask.golden numerics.golden numerics.key-shift "
            "numerics.large-logits "
            "numerics.odd-scale numerics.scale numerics.scale-error numerics.typical-error "
            "shape.weights"
        ),
    ),
    "numerics.odd-scale": ("ScaleZeroTakenForUnset", NOTHING_ELSE),
    "numerics.scale": (
        "DividedByHeadSize",
        also(
            "mask.bias mask.causal-alignment mask.causal-combined mask.causal-first-key "
            "mask.golden numerics.golden numerics.large-logits numerics.near-ties "
            "numerics.scale-error numerics.typical-error shape.weights"
        ),
    ),
    "numerics.scale-error": ("ScaleOfTwentyBits", NOTHING_ELSE),
    "numerics.typical-error": (
        "LongRowsOfSeventeenBits",
        also("gradients.options mask.causal-first-key"),
    ),
    "numerics.value-linear": (
        "OutputRectified",
        also(
            "mask.bias mask.causal-alignment mask.causal-combined mask.causal-first-key "
            "mask.golden mask.single-key numerics.convex numerics.golden numerics.large-logits "
            "numerics.near-ties numerics.odd-scale numerics.scale numerics.typical-error "
            "state.dropout"
        ),
    ),
}
