"""What the table of each family is made of."""

from __future__ import annotations

from typing import Final

Specific = dict[str, tuple[str, frozenset[str]]]

NOTHING_ELSE: Final[frozenset[str]] = frozenset()

# What a candidate remembers or draws at random may show in any clause.
ANYTHING: Final = frozenset({"*"})


# Clauses that compare with the golden, each at its own kind of call.
COMPARED: Final = frozenset(
    "mask.bias mask.causal-alignment mask.causal-combined mask.golden numerics.golden".split()
)
# These compare with it for any input of any length: they may fail where any of those fails.
ANYWHERE: Final = frozenset(
    "cache.decode-equals-full cache.untouched-tail gradients.any-length gradients.bias "
    "gradients.cache gradients.causal gradients.empty-row-finite gradients.golden "
    "gradients.masked-zero gradients.options gradients.sinks gradients.weights groups.golden "
    "mask.empty-row-options mixed.mask-dtype "
    "numerics.accumulation "
    "numerics.any-length numerics.long-sequence numerics.odd-scale numerics.options "
    "numerics.subnormal "
    "state.unseen".split()
)


# What the others ask, the first asks in another call, or of other numbers.
TOGETHER: Final = {
    "mask.empty-row": "mask.empty-row-weights mask.empty-row-options",
    "mask.empty-row-weights": "mask.empty-row-options",
    "mask.bias": "mask.bias-far-below mask.bias-lowest",
}


def also(slugs: str) -> frozenset[str]:
    """The other clauses that a mistake may fail too, as slugs between spaces."""
    named = frozenset(slugs.split())
    for slug, others in TOGETHER.items():
        named |= frozenset(others.split()) if slug in named else frozenset()
    return named | ANYWHERE if named & COMPARED else named
