"""What breaks in a whole model."""

from __future__ import annotations

from typing import Final

from .consequences import NOTHING_ELSE, Specific, also

MODELS: Final[Specific] = {
    "model.any-size": ("BakedBatch", NOTHING_ELSE),
    "model.batch-independence": ("NumberOfItem", NOTHING_ELSE),
    "model.cache-equals-full": ("PlacesNotShifted", NOTHING_ELSE),
    "model.cache-in-order": ("OrdersKeysAlone", NOTHING_ELSE),
    "model.causality": ("SecondPeeks", NOTHING_ELSE),
    "model.empty-item-finite": ("EmptyIsNan", NOTHING_ELSE),
    "model.empty-item-harmless": ("ZeroTimesBatch", also("model.empty-item-finite")),
    "model.heads-by-token": ("HeadsMixTokens", NOTHING_ELSE),
    "model.leaves-no-trace": ("AddsInPlace", NOTHING_ELSE),
    "model.left-padding": ("PlacesOfOneLayer", NOTHING_ELSE),
    "model.mask-reaches-all": ("SecondWithoutPadding", also("model.padding-contents")),
    "model.matches-source": ("AnotherLayer", NOTHING_ELSE),
    "model.optimisation-levels": ("WrongWhenOptimised", NOTHING_ELSE),
    "model.padding-contents": ("PrefixMask", NOTHING_ELSE),
    "model.padding-is-absence": ("DividedByLength", NOTHING_ELSE),
    "model.sites-in-place": ("SecondUnscaled", NOTHING_ELSE),
}
