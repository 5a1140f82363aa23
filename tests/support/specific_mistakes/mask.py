"""What goes wrong with masks, biases and causality."""

from __future__ import annotations

from typing import Final

from .consequences import ANYWHERE, NOTHING_ELSE, Specific, also

MASK: Final[Specific] = {
    "mask.strided": ("BiasNeedsContiguity", NOTHING_ELSE),
    "mask.all-keep": (
        "UnscaledUnderMask",
        also("mask.bias mask.causal-combined mask.golden mask.padding-is-absence shape.weights"),
    ),
    "mask.bias": (
        "BiasIgnored",
        also("mask.bias mask.bias-counts mask.causal-combined shape.weights"),
    ),
    "mask.bias-counts": ("BiasClamped", also("mask.bias mask.causal-combined shape.weights")),
    "mask.broadcast": (
        "PaddingHidesQueriesToo",
        also(
            "equivariance.keys equivariance.queries mask.bias mask.bias-counts "
            "mask.causal-combined mask.golden mask.padding-is-absence mask.single-key "
            "state.no-memory"
        ),
    ),
    "mask.causal": (
        "CausalNeedsMask",
        also("mask.causal-alignment mask.causal-combined mask.causal-first-key shape.weights"),
    ),
    "mask.causal-alignment": (
        "BottomRightForTopLeft",
        ANYWHERE | also("mask.empty-row shape.weights"),
    ),
    "mask.causal-and-mask": (
        "CausalLostUnderMask",
        also("mask.causal-combined mask.empty-row shape.weights"),
    ),
    "mask.causal-combined": (
        "WindowLostUnderCausal",
        also(
            "gradients.options mask.empty-row-options numerics.options window.any-length "
            "window.causal window.golden"
        ),
    ),
    "mask.causal-first-key": ("CausalFillMinusTenThousand", NOTHING_ELSE),
    "mask.empty-row": ("EmptyRowIsInfinite", also("mask.empty-row")),
    "mask.empty-row-weights": ("EmptyRowIsNanWithWeights", also("mask.empty-row-options")),
    "mask.empty-row-options": ("MergedEmptyPartialsNaN", also("mask.no-leak-nonfinite")),
    "mask.bias-far-below": (
        "MaximumFlooredAtMinusTenThousand",
        ANYWHERE
        | also("mask.bias-lowest mask.causal-first-key mask.single-key numerics.large-logits"),
    ),
    "mask.bias-lowest": ("LowestBiasOverflows", NOTHING_ELSE),
    "mask.int-nonzero": ("OnlyOneKeeps", NOTHING_ELSE),
    "mask.empty-row-isolated": (
        "EmptyRowEmptiesItsHead",
        also("mask.causal-alignment mask.causal-combined mask.causal-first-key shape.weights"),
    ),
    "mask.forms-agree": (
        "LengthsFromTheEnd",
        also(
            "mask.causal-and-mask mask.golden mask.no-leak mask.no-leak-nonfinite "
            "mask.padding-is-absence mask.single-key numerics.convex shape.weights"
        ),
    ),
    "mask.golden": (
        "FirstQuerysMask",
        ANYWHERE
        | also(
            "equivariance.queries equivariance.tokens mask.empty-row mask.empty-row-isolated "
            "mask.no-leak mask.no-leak-nonfinite numerics.convex numerics.nan-shows "
            "shape.rejects-others shape.weights state.no-memory"
        ),
    ),
    "mask.no-leak": (
        "CentredOnIgnoredKeys",
        also(
            "cache.untouched-tail gradients.causal gradients.masked-zero mask.causal "
            "mask.causal-and-mask mask.no-leak-nonfinite"
        ),
    ),
    "mask.no-leak-nonfinite": (
        "InfinityAdded",
        also("gradients.causal gradients.empty-row-finite"),
    ),
    "mask.padding-is-absence": (
        "AveragedWithPadding",
        also(
            "equivariance.batch-independent mask.bias mask.bias-counts mask.causal-alignment "
            "mask.causal-combined mask.causal-first-key mask.empty-row-isolated mask.golden "
            "mask.per-item mask.single-key numerics.convex shape.weights"
        ),
    ),
    "mask.per-head": (
        "FirstHeadsMask",
        also(
            "groups.multi-query "
            "equivariance.heads equivariance.keys equivariance.tokens mask.bias mask.bias-counts "
            "mask.causal-and-mask mask.causal-combined mask.empty-row mask.empty-row-isolated "
            "mask.forms-agree mask.golden mask.no-leak mask.no-leak-nonfinite mask.per-item "
            "mask.strided numerics.convex shape.weights state.call-order"
        ),
    ),
    "mask.per-item": (
        "LengthsRepeatedWhole",
        also(
            "equivariance.batch equivariance.batch-independent equivariance.heads "
            "mask.causal-and-mask mask.empty-row mask.empty-row-isolated mask.golden "
            "mask.no-leak mask.no-leak-nonfinite shape.weights state.no-memory"
        ),
    ),
    "mask.single-key": ("FillMinusMillion", also("mask.causal-first-key mask.no-leak-nonfinite")),
}
