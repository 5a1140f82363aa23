"""What goes wrong with distances, turned and normalised heads, modified scores and sinks."""

from __future__ import annotations

from typing import Final

from .consequences import Specific, also

# Whatever compares with the golden meets these points in every call.
_COMPARED: Final = (
    "mask.bias mask.causal-alignment mask.causal-combined mask.golden mask.no-leak-nonfinite "
    "numerics.accumulation numerics.golden numerics.large-logits numerics.near-ties "
    "numerics.odd-scale numerics.scale numerics.scale-error numerics.subnormal "
    "numerics.typical-error state.unseen"
)
_CAPPED: Final = "softcap.after-scale softcap.golden softcap.large"
# By positions of their own, in every call with the option.
_PLACED: Final = (
    f"{_COMPARED} {_CAPPED} cache.golden cache.position-offset position.rotary sinks.golden "
    "sinks.large window.any-length window.golden"
)
# By codes and scales, in every call.
_CODES: Final = (
    f"{_COMPARED} cache.decode-equals-full equivariance.keys equivariance.tokens groups.golden "
    "mask.single-key numerics.any-length numerics.convex numerics.long-sequence numerics.options"
)
_LEARNED: Final = f"{_COMPARED} {_CAPPED} gradients.learned"
_BY_ITEM: Final = "equivariance.batch equivariance.batch-independent mask.per-item"
_TURNED: Final = f"{_COMPARED} position.rotary position.rotary-shift"

PREPARED: Final[Specific] = {
    "bias.alibi": ("SlopesReversed", also(_COMPARED)),
    "position.rotary": (
        "ValuesTurnedToo",
        also(f"{_TURNED} mask.causal-first-key mask.single-key numerics.convex"),
    ),
    "position.rotary-shift": ("PlacesOverLength", also(f"{_TURNED} shape.empty-query")),
    "position.rotary-partial": ("AllChannelsTurned", also(_TURNED)),
    "position.scaling": ("ScalingForgotten", also(f"{_COMPARED} position.rotary")),
    "position.tables": (
        "RowsOneLater",
        also(
            f"{_TURNED} cache.golden cache.position-offset mask.padding-is-absence "
            "mixed.undeclared-inputs"
        ),
    ),
    "lse.golden": ("SumOfLaterKeys", also("mask.no-leak-nonfinite")),
    "lse.aside": ("MaskLostWhenAsked", also("mask.no-leak-nonfinite")),
    "lse.empty-row": ("ZeroForNoKey", also("mask.no-leak-nonfinite")),
    "lse.merge": (
        "LargestLogitNotAdded",
        also("lse.golden gradients.lse mask.no-leak-nonfinite"),
    ),
    "quantised.golden": (
        "KeyScaleForBoth",
        also(f"{_CODES} quantised.scales quantised.saturated mask.padding-is-absence"),
    ),
    "quantised.scales": (
        "ScalesRemembered",
        also(f"{_CODES} quantised.golden quantised.saturated"),
    ),
    "quantised.saturated": ("LowestCodeClipped", also(f"{_CODES} quantised.golden")),
    "position.given": ("PositionsOfTheFirstItem", also(f"{_PLACED} {_BY_ITEM}")),
    "position.offset-invariant": ("PositionsClipped", also(f"{_PLACED} position.given")),
    "position.left-padding": (
        "PaddingCounted",
        also(f"{_PLACED} position.given position.offset-invariant"),
    ),
    "position.ring": ("RingReadInOrder", also(f"{_PLACED} {_BY_ITEM} position.given")),
    "position.evicted": (
        "GapsClosed",
        also(f"{_PLACED} {_BY_ITEM} position.given position.offset-invariant position.ring"),
    ),
    "qk-norm.golden": ("NormWithoutTheMean", also(_COMPARED)),
    "sinks.null-key": (
        "OneBehindTheMaximum",
        also(f"{_COMPARED} mask.bias-counts mask.single-key"),
    ),
    "learned.norm-weight": ("KeysByTheQueriesWeight", also(f"{_LEARNED} qk-norm.golden")),
    "learned.temperature": ("TemperatureDivides", also(_LEARNED)),
    "learned.slopes": ("SlopesOfTheFirstItem", also(f"{_LEARNED} {_BY_ITEM} shape.empty-batch")),
    "learned.relative-table": ("ColumnsReversed", also(_LEARNED)),
    "learned.memory": (
        "MemoryWithoutValue",
        also(f"{_LEARNED} mask.empty-row-isolated mask.single-key mixed.undeclared-inputs"),
    ),
    "gradients.learned": (
        "SlopesDetached",
        also("gradients.golden gradients.options gradients.any-length gradients.empty-row-finite"),
    ),
    "score-mod.golden": ("NothingModified", also(_COMPARED)),
    "sinks.golden": ("SinkOfTheFirstHead", also(f"{_COMPARED} sinks.large")),
    "sinks.large": (
        "SinkBesideTheMaximum",
        also(
            f"{_COMPARED} groups.equals-repeated groups.multi-query sinks.golden "
            "state.call-order state.grad-mode"
        ),
    ),
    "sinks.empty-row": (
        "EmptyRowsDivideBySinks",
        also("mask.no-leak-nonfinite mask.empty-row-options"),
    ),
}
