"""What goes wrong on the way back."""

from __future__ import annotations

from typing import Final

from .consequences import NOTHING_ELSE, Specific, also

_WRONG: Final = (
    "gradients.any-length gradients.bias gradients.cache gradients.empty-row-finite "
    "gradients.golden gradients.options gradients.strided"
)

# One step of autograd multiplies hidden values by weights of zero: what is NaN there shows.
_ONE_STEP: Final = also("mask.no-leak-nonfinite")

GRADIENTS: Final[Specific] = {
    "gradients.golden": ("GradientsHalved", also(_WRONG)),
    "gradients.options": ("DefaultScaleBackward", also(_WRONG)),
    "gradients.any-length": ("LargeTilesOverwrittenBackward", NOTHING_ELSE),
    "gradients.sinks": (
        "SinkForgottenBackward",
        also("gradients.golden gradients.options mask.no-leak-nonfinite"),
    ),
    "gradients.cache": (
        "CacheGradientsCutTheOtherWay",
        also("gradients.weights gradients.golden gradients.options"),
    ),
    "gradients.bias": ("BiasGradientOfTheFirstItem", NOTHING_ELSE),
    "gradients.masked-zero": ("MaskForgottenBackward", also(_WRONG)),
    "gradients.empty-row-finite": (
        "EmptyRowsPoisonGradients",
        also("gradients.causal mask.no-leak-nonfinite numerics.nan-shows"),
    ),
    "gradients.causal": ("CausalForgottenBackward", also(_WRONG)),
    "gradients.strided": ("OutputGradientTakenForContiguous", NOTHING_ELSE),
    "gradients.lse": ("LogSumExpIgnoredBackward", also("mask.no-leak-nonfinite")),
    "gradients.weights": ("ReturnedWeightsIgnoredBackward", _ONE_STEP),
    "gradients.dropout": ("DropoutDrawnAnewBackward", _ONE_STEP),
    "gradients.shared": ("KeyLostBesideItselfBackward", NOTHING_ELSE),
    "gradients.no-queries": ("GradientsUnwrittenWithoutQueries", NOTHING_ELSE),
    "gradients.alone": ("NeedsTheGradientOfTheQuery", NOTHING_ELSE),
    "gradients.interleaved": ("StateOfTheLastCall", NOTHING_ELSE),
    "gradients.repeated": ("BuffersOverwrittenBackward", also("gradients.inputs-unchanged")),
    "gradients.accumulate": ("GradientsOverwritten", NOTHING_ELSE),
    "gradients.inputs-unchanged": (
        "QueryScaledInPlaceBackward",
        also("gradients.accumulate gradients.options gradients.repeated gradients.strided"),
    ),
    "gradients.check": ("SlopesOfNothing", NOTHING_ELSE),
    "gradients.double-backward": ("SecondGradientsCut", NOTHING_ELSE),
}
