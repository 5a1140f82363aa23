"""For each clause the mistake that only it, or as few others as can be, should see.

A gross mistake breaks nearly everything; these are the ones that tell the clauses apart. The second
entry lists every other clause that the mistake may fail too: its direct consequences.
"""

from __future__ import annotations

from typing import Final

# What a candidate remembers or draws at random may show in any clause.
ANYTHING: Final = frozenset({"*"})

SPECIFIC: Final[dict[str, tuple[str, frozenset[str]]]] = {
    "equivariance.batch": (
        "FirstItemsKeys",
        frozenset(
            (
                "equivariance.batch-independent",
                "mask.bias",
                "mask.causal-alignment",
                "mask.causal-and-mask",
                "mask.causal-combined",
                "mask.causal-first-key",
                "mask.golden",
                "mask.no-leak",
                "mask.no-leak-nonfinite",
                "mask.per-item",
                "numerics.golden",
                "numerics.large-logits",
                "numerics.odd-scale",
                "numerics.scale",
                "numerics.value-linear",
                "shape.weights",
                "state.no-memory",
            )
        ),
    ),
    "equivariance.batch-independent": (
        "BatchTakenForTokens",
        frozenset(
            (
                "numerics.golden",
                "numerics.large-logits",
                "numerics.scale",
                "shape.weights",
                "state.inputs-unchanged",
            )
        ),
    ),
    "equivariance.heads": (
        "FirstHeadsKeys",
        frozenset(
            (
                "mask.bias",
                "mask.causal-alignment",
                "mask.causal-combined",
                "mask.causal-first-key",
                "mask.golden",
                "mask.per-head",
                "numerics.golden",
                "numerics.large-logits",
                "numerics.odd-scale",
                "numerics.scale",
                "shape.weights",
            )
        ),
    ),
    "equivariance.keys": (
        "AccumulatorNotRescaled",
        frozenset(
            (
                "equivariance.tokens",
                "mask.bias",
                "mask.bias-counts",
                "mask.causal-alignment",
                "mask.causal-combined",
                "mask.causal-first-key",
                "mask.golden",
                "numerics.golden",
                "numerics.large-logits",
                "numerics.odd-scale",
                "numerics.scale",
                "shape.weights",
            )
        ),
    ),
    "equivariance.queries": (
        "PositionsInQueries",
        frozenset(
            (
                "equivariance.tokens",
                "mask.bias",
                "mask.causal-alignment",
                "mask.causal-combined",
                "mask.causal-first-key",
                "mask.golden",
                "numerics.golden",
                "numerics.large-logits",
                "numerics.odd-scale",
                "numerics.scale",
                "shape.weights",
                "state.no-memory",
            )
        ),
    ),
    "equivariance.tokens": (
        "PositionsUndeclared",
        frozenset(
            (
                "mask.bias",
                "mask.causal-alignment",
                "mask.causal-combined",
                "mask.causal-first-key",
                "mask.empty-row",
                "mask.golden",
                "mask.single-key",
                "numerics.golden",
                "numerics.large-logits",
                "numerics.scale",
                "shape.weights",
                "state.no-memory",
            )
        ),
    ),
    "mask.all-keep": (
        "UnscaledUnderMask",
        frozenset(
            (
                "mask.bias",
                "mask.causal-combined",
                "mask.golden",
                "mask.padding-is-absence",
                "shape.weights",
            )
        ),
    ),
    "mask.bias": (
        "BiasIgnored",
        frozenset(
            (
                "mask.bias-counts",
                "mask.causal-combined",
            )
        ),
    ),
    "mask.bias-counts": (
        "BiasClamped",
        frozenset(
            (
                "mask.bias",
                "mask.causal-combined",
            )
        ),
    ),
    "mask.broadcast": (
        "PaddingHidesQueriesToo",
        frozenset(
            (
                "equivariance.keys",
                "mask.bias",
                "mask.bias-counts",
                "mask.causal-combined",
                "mask.golden",
                "mask.padding-is-absence",
                "mask.single-key",
            )
        ),
    ),
    "mask.causal": (
        "CausalNeedsMask",
        frozenset(
            (
                "mask.causal-alignment",
                "mask.causal-combined",
                "mask.causal-first-key",
                "shape.weights",
            )
        ),
    ),
    "mask.causal-alignment": (
        "BottomRightForTopLeft",
        frozenset(
            (
                "mask.empty-row",
                "shape.weights",
            )
        ),
    ),
    "mask.causal-and-mask": (
        "CausalLostUnderMask",
        frozenset(
            (
                "mask.causal-combined",
                "mask.empty-row",
                "shape.weights",
            )
        ),
    ),
    "mask.causal-combined": ("WindowLostUnderCausal", frozenset()),
    "mask.causal-first-key": ("CausalFillMinusTenThousand", frozenset()),
    "mask.empty-row": ("EmptyRowIsInfinite", frozenset()),
    "mask.empty-row-isolated": (
        "EmptyRowEmptiesItsHead",
        frozenset(
            (
                "mask.causal-alignment",
                "mask.causal-combined",
                "mask.causal-first-key",
                "shape.weights",
            )
        ),
    ),
    "mask.forms-agree": (
        "LengthsFromTheEnd",
        frozenset(
            (
                "mask.causal-and-mask",
                "mask.golden",
                "mask.no-leak",
                "mask.no-leak-nonfinite",
                "mask.padding-is-absence",
                "mask.single-key",
                "numerics.convex",
                "shape.weights",
            )
        ),
    ),
    "mask.golden": (
        "FirstQuerysMask",
        frozenset(
            (
                "equivariance.queries",
                "equivariance.tokens",
                "mask.empty-row",
                "mask.empty-row-isolated",
                "mask.no-leak",
                "mask.no-leak-nonfinite",
                "numerics.convex",
                "shape.weights",
                "state.no-memory",
            )
        ),
    ),
    "mask.no-leak": (
        "CentredOnIgnoredKeys",
        frozenset(
            (
                "mask.causal",
                "mask.causal-and-mask",
                "mask.no-leak-nonfinite",
            )
        ),
    ),
    "mask.no-leak-nonfinite": ("InfinityAdded", frozenset()),
    "mask.padding-is-absence": (
        "AveragedWithPadding",
        frozenset(
            (
                "equivariance.batch-independent",
                "mask.bias",
                "mask.bias-counts",
                "mask.causal-alignment",
                "mask.causal-combined",
                "mask.causal-first-key",
                "mask.empty-row-isolated",
                "mask.golden",
                "mask.per-item",
                "mask.single-key",
                "numerics.convex",
                "shape.weights",
            )
        ),
    ),
    "mask.per-head": (
        "FirstHeadsMask",
        frozenset(
            (
                "equivariance.heads",
                "mask.bias",
                "mask.bias-counts",
                "mask.causal-and-mask",
                "mask.causal-combined",
                "mask.empty-row",
                "mask.empty-row-isolated",
                "mask.forms-agree",
                "mask.golden",
                "mask.no-leak",
                "mask.no-leak-nonfinite",
                "mask.per-item",
                "numerics.convex",
                "shape.weights",
            )
        ),
    ),
    "mask.per-item": (
        "LengthsRepeatedWhole",
        frozenset(
            (
                "equivariance.batch",
                "equivariance.batch-independent",
                "equivariance.heads",
                "mask.causal-and-mask",
                "mask.empty-row",
                "mask.empty-row-isolated",
                "mask.golden",
                "mask.no-leak",
                "mask.no-leak-nonfinite",
                "shape.weights",
                "state.no-memory",
            )
        ),
    ),
    "mask.single-key": (
        "FillMinusMillion",
        frozenset(
            (
                "mask.causal-first-key",
                "mask.no-leak-nonfinite",
            )
        ),
    ),
    "numerics.constant-value": (
        "DividedByCount",
        frozenset(
            (
                "mask.bias",
                "mask.bias-counts",
                "mask.causal-alignment",
                "mask.causal-combined",
                "mask.causal-first-key",
                "mask.golden",
                "mask.padding-is-absence",
                "mask.single-key",
                "numerics.convex",
                "numerics.golden",
                "numerics.large-logits",
                "numerics.odd-scale",
                "numerics.scale",
                "shape.weights",
            )
        ),
    ),
    "numerics.convex": (
        "OutputTimesSqrtKeys",
        frozenset(
            (
                "mask.bias",
                "mask.bias-counts",
                "mask.causal-alignment",
                "mask.causal-combined",
                "mask.causal-first-key",
                "mask.golden",
                "mask.padding-is-absence",
                "mask.single-key",
                "numerics.constant-value",
                "numerics.golden",
                "numerics.large-logits",
                "numerics.odd-scale",
                "numerics.scale",
                "state.dropout",
            )
        ),
    ),
    "numerics.golden": (
        "HeadSizeAndCountSwapped",
        frozenset(
            (
                "mask.bias",
                "mask.causal-alignment",
                "mask.causal-combined",
                "mask.causal-first-key",
                "mask.empty-row",
                "mask.golden",
                "numerics.large-logits",
                "numerics.scale",
                "shape.weights",
            )
        ),
    ),
    "numerics.key-shift": (
        "CosineScores",
        frozenset(
            (
                "mask.bias",
                "mask.causal-alignment",
                "mask.causal-combined",
                "mask.causal-first-key",
                "mask.golden",
                "numerics.golden",
                "numerics.large-logits",
                "numerics.odd-scale",
                "numerics.scale",
                "shape.weights",
            )
        ),
    ),
    "numerics.large-logits": (
        "LogitsClamped",
        frozenset(
            (
                "mask.bias",
                "mask.causal-alignment",
                "mask.causal-combined",
                "mask.causal-first-key",
                "mask.golden",
                "numerics.golden",
                "numerics.scale",
                "shape.weights",
            )
        ),
    ),
    "numerics.odd-scale": ("ScaleZeroTakenForUnset", frozenset()),
    "numerics.scale": (
        "DividedByHeadSize",
        frozenset(
            (
                "mask.bias",
                "mask.causal-alignment",
                "mask.causal-combined",
                "mask.causal-first-key",
                "mask.golden",
                "numerics.golden",
                "numerics.large-logits",
                "shape.weights",
            )
        ),
    ),
    "numerics.value-linear": (
        "OutputRectified",
        frozenset(
            (
                "mask.bias",
                "mask.causal-alignment",
                "mask.causal-combined",
                "mask.causal-first-key",
                "mask.golden",
                "mask.single-key",
                "numerics.convex",
                "numerics.golden",
                "numerics.large-logits",
                "numerics.odd-scale",
                "numerics.scale",
                "state.dropout",
            )
        ),
    ),
    "position.breaks-equivariance": ("PositionsForgotten", frozenset()),
    "position.formula": ("PositionsFromOne", frozenset()),
    "position.relative-shift": ("PositionsOverLength", frozenset(("position.formula",))),
    "shape.dtype": ("AnswersInFloat64", frozenset()),
    "shape.empty-batch": ("EmptyBatchRaises", frozenset()),
    "shape.empty-query": ("EmptyQueryRaises", frozenset()),
    "shape.expanded": ("ExpandedInputsRefused", frozenset()),
    "shape.output": (
        "HeadsAlongTokens",
        frozenset(
            (
                "equivariance.batch",
                "equivariance.batch-independent",
                "equivariance.heads",
                "equivariance.keys",
                "equivariance.queries",
                "equivariance.tokens",
                "mask.all-keep",
                "mask.bias",
                "mask.bias-counts",
                "mask.broadcast",
                "mask.causal",
                "mask.causal-alignment",
                "mask.causal-and-mask",
                "mask.causal-combined",
                "mask.causal-first-key",
                "mask.empty-row",
                "mask.empty-row-isolated",
                "mask.forms-agree",
                "mask.golden",
                "mask.no-leak",
                "mask.no-leak-nonfinite",
                "mask.padding-is-absence",
                "mask.per-head",
                "mask.per-item",
                "mask.single-key",
                "numerics.constant-value",
                "numerics.golden",
                "numerics.key-shift",
                "numerics.large-logits",
                "numerics.scale",
                "numerics.value-linear",
                "shape.dtype",
                "shape.empty-batch",
                "shape.expanded",
                "shape.strided",
                "shape.weights",
                "state.answer-kept",
                "state.bitwise-repeatable",
                "state.inputs-unchanged",
                "state.no-memory",
                "state.repeatable",
            )
        ),
    ),
    "shape.rejects-mismatch": ("HeadSizesCutToFit", frozenset()),
    "shape.rejects-width": ("WidthCutToFit", frozenset()),
    "shape.strided": ("LastStrideAssumedOne", frozenset()),
    "shape.weights": ("AnotherOutputWithWeights", frozenset()),
    "state.answer-kept": ("AnswerBufferReused", frozenset()),
    "state.bitwise-repeatable": ("SummedInRandomOrder", frozenset()),
    "state.dropout": ("DropoutIgnored", frozenset()),
    "state.eval-deterministic": ("NoiseInEval", ANYTHING),
    "state.follows-to": ("ScaleLeftBehind", frozenset()),
    "state.inputs-unchanged": ("BiasFilledInPlace", frozenset()),
    "state.no-memory": ("AnswersCachedByAddress", ANYTHING),
    "state.repeatable": ("ScaleDrifts", ANYTHING),
    "state.state-dict": ("BiasesNotLoaded", frozenset()),
}
