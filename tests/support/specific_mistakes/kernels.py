"""What goes wrong with groups of heads, windows, softcaps and caches."""

from __future__ import annotations

from typing import Final

from .consequences import NOTHING_ELSE, Specific, also

# The golden clauses of other families ask with groups, windows, caps and caches where offered.
_OPTIONS: Final = (
    "gradients.causal gradients.golden gradients.options mask.bias mask.causal-combined "
    "mask.golden numerics.golden shape.weights"
)
_GROUPS: Final = (
    "gradients.empty-row-finite gradients.golden gradients.options groups.equals-repeated "
    "groups.multi-query groups.order mask.bias mask.causal-alignment mask.causal-combined "
    "mask.golden numerics.golden shape.weights state.unseen"
)
_NUMBERS: Final = (
    "numerics.accumulation numerics.large-logits numerics.near-ties numerics.odd-scale "
    "numerics.scale numerics.scale-error numerics.subnormal numerics.typical-error"
)
_WINDOWS: Final = (
    "softcap.golden window.alignment window.any-length window.causal window.edge window.golden "
    "window.unlimited"
)
_CAPS: Final = "softcap.after-scale softcap.golden softcap.large window.golden"
_CACHES: Final = (
    "cache.golden cache.no-memory cache.position-offset state.call-order state.inputs-unchanged "
    "window.golden"
)

KERNELS: Final[Specific] = {
    "groups.golden": (
        "MaskLostInGroups",
        also(
            f"{_GROUPS} gradients.masked-zero mask.causal-and-mask mask.empty-row "
            "mask.forms-agree mask.no-leak mask.no-leak-nonfinite mask.padding-is-absence "
            "mask.single-key numerics.convex shape.rejects-mismatch shape.rejects-others"
        ),
    ),
    "groups.equals-repeated": ("ScaledByGroup", also(f"{_GROUPS} {_NUMBERS}")),
    "groups.order": (
        "GroupsStartOneLate",
        also(
            f"{_GROUPS} {_NUMBERS} equivariance.heads mask.causal-first-key mask.per-head "
            "mask.single-key numerics.convex state.dropout"
        ),
    ),
    "groups.multi-query": ("MultiQueryUnscaled", also(f"{_GROUPS} {_NUMBERS}")),
    "window.golden": ("WindowNeedsCausal", also(f"{_OPTIONS} {_WINDOWS}")),
    "window.edge": ("WindowOneShortOnRight", also(f"{_OPTIONS} {_WINDOWS}")),
    "window.unlimited": ("UnlimitedWindowTakenForOne", also(f"{_OPTIONS} {_WINDOWS}")),
    "window.causal": ("CausalLostUnderWindow", also(f"{_OPTIONS} {_WINDOWS}")),
    "window.alignment": ("WindowOfFirstKeys", also(f"{_OPTIONS} {_WINDOWS}")),
    "window.any-length": ("WindowEndsAtTile", NOTHING_ELSE),
    "softcap.golden": ("SoftcapIgnored", also(f"{_OPTIONS} {_CAPS}")),
    "softcap.before-mask": ("SoftcapAfterMask", also(f"{_OPTIONS} {_CAPS}")),
    "softcap.large": ("SoftcapAtMostFifty", NOTHING_ELSE),
    "softcap.after-scale": ("SoftcapBeforeScale", also(f"{_OPTIONS} {_CAPS}")),
    "cache.golden": ("CacheReversed", also(f"{_OPTIONS} {_CACHES}")),
    "cache.position-offset": ("CausalFromFirstCached", also(f"{_OPTIONS} {_CACHES}")),
    "cache.untouched-tail": ("TailRead", also("cache.empty-past")),
    "cache.in-turn": ("OwnCacheOfTheClass", also("state.settings")),
    "mask.padded-queries": ("PaddedRowsAnswered", also("")),
    "cache.no-memory": ("CacheRememberedByShape", also("state.call-order")),
    "cache.empty-past": ("EmptyCacheRefused", NOTHING_ELSE),
    "cache.decode-equals-full": ("CacheMaskOfFirstItem", also(f"{_OPTIONS} {_CACHES}")),
}
