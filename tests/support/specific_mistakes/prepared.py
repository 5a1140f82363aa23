"""What goes wrong with distances, turned and normalised heads, modified scores and sinks."""

from __future__ import annotations

from typing import Final

from .consequences import ANYTHING, NOTHING_ELSE, Specific, also

# Whatever compares with the golden meets these points in every call.
_COMPARED: Final = (
    "mask.bias mask.causal-alignment mask.causal-combined mask.golden mask.no-leak-nonfinite "
    "numerics.accumulation numerics.golden numerics.large-logits numerics.near-ties "
    "numerics.odd-scale numerics.scale numerics.scale-error numerics.subnormal "
    "numerics.typical-error state.unseen"
)
_TURNED: Final = f"{_COMPARED} position.rotary position.rotary-shift"

PREPARED: Final[Specific] = {
    "bias.alibi": ("SlopesReversed", also(_COMPARED)),
    "position.rotary": (
        "ValuesTurnedToo",
        also(f"{_TURNED} mask.causal-first-key mask.single-key numerics.convex"),
    ),
    "position.rotary-shift": ("PlacesOverLength", also(f"{_TURNED} shape.empty-query")),
    "position.rotary-partial": ("AllChannelsTurned", also(_TURNED)),
    "position.scaling": ("ScalingForgotten", ANYTHING),
    "position.tables": ("RowsOneLater", ANYTHING),
    "lse.golden": ("SumOfLaterKeys", NOTHING_ELSE),
    "lse.aside": ("MaskLostWhenAsked", NOTHING_ELSE),
    "lse.empty-row": ("ZeroForNoKey", NOTHING_ELSE),
    "lse.merge": ("LargestLogitNotAdded", also("lse.golden")),
    "quantised.golden": ("KeyScaleForBoth", ANYTHING),
    "quantised.scales": ("ScalesRemembered", ANYTHING),
    "quantised.saturated": ("LowestCodeClipped", ANYTHING),
    "position.given": ("PositionsOfTheFirstItem", ANYTHING),
    "position.offset-invariant": ("PositionsClipped", ANYTHING),
    "position.left-padding": ("PaddingCounted", ANYTHING),
    "qk-norm.golden": ("NormWithoutTheMean", also(_COMPARED)),
    "sinks.null-key": ("OneBehindTheMaximum", ANYTHING),
    "learned.norm-weight": ("KeysByTheQueriesWeight", ANYTHING),
    "learned.temperature": ("TemperatureDivides", ANYTHING),
    "learned.slopes": ("SlopesOfTheFirstItem", ANYTHING),
    "gradients.learned": ("SlopesDetached", ANYTHING),
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
