"""What depends on the order of tokens, heads or items."""

from __future__ import annotations

from typing import Final

from .consequences import Specific, also

EQUIVARIANCE: Final[Specific] = {
    "equivariance.batch": (
        "FirstItemsKeys",
        also(
            "equivariance.batch-independent mask.bias mask.causal-alignment "
            "mask.causal-and-mask mask.causal-combined mask.causal-first-key mask.golden "
            "mask.no-leak mask.no-leak-nonfinite mask.per-item numerics.golden "
            "numerics.large-logits numerics.near-ties numerics.odd-scale numerics.scale "
            "numerics.typical-error numerics.value-linear shape.weights state.no-memory"
        ),
    ),
    "equivariance.batch-independent": (
        "BatchTakenForTokens",
        also(
            "numerics.golden numerics.large-logits numerics.nan-shows numerics.near-ties "
            "numerics.scale numerics.typical-error shape.weights shape.weights-aside "
            "state.inputs-unchanged"
        ),
    ),
    "equivariance.heads": (
        "FirstHeadsKeys",
        also(
            "groups.order "
            "mask.bias mask.causal-alignment mask.causal-combined mask.causal-first-key "
            "mask.golden mask.per-head numerics.golden numerics.large-logits numerics.near-ties "
            "numerics.odd-scale numerics.scale numerics.typical-error shape.weights"
        ),
    ),
    "equivariance.keys": (
        "AccumulatorNotRescaled",
        also(
            "equivariance.tokens mask.bias mask.bias-counts mask.causal-alignment "
            "mask.causal-combined mask.causal-first-key mask.golden numerics.golden "
            "numerics.large-logits numerics.near-ties numerics.odd-scale numerics.scale "
            "numerics.typical-error shape.weights"
        ),
    ),
    "equivariance.queries": (
        "PositionsInQueries",
        also(
            "equivariance.tokens mask.bias mask.causal-alignment mask.causal-combined "
            "mask.causal-first-key mask.golden numerics.golden numerics.large-logits "
            "numerics.near-ties numerics.odd-scale numerics.scale numerics.typical-error "
            "shape.weights state.no-memory"
        ),
    ),
    "equivariance.tokens": (
        "PositionsUndeclared",
        also(
            "mask.bias mask.causal-alignment mask.causal-combined mask.causal-first-key "
            "mask.empty-row mask.golden mask.single-key numerics.golden numerics.large-logits "
            "numerics.near-ties numerics.scale numerics.typical-error shape.weights "
            "state.no-memory"
        ),
    ),
}
