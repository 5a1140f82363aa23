"""The clauses of which a picture says something: whose counterfactual moves some of it, not all."""

from __future__ import annotations

from typing import Final

PICTURED: Final = frozenset(
    """
mask.golden mask.padding-is-absence mask.broadcast mask.per-item mask.per-head mask.forms-agree
mask.single-key mask.no-leak mask.empty-row mask.bias mask.bias-counts mask.causal
mask.causal-alignment mask.causal-combined mask.causal-first-key mask.causal-and-mask
equivariance.tokens equivariance.queries equivariance.keys equivariance.batch equivariance.heads
equivariance.batch-independent groups.golden groups.equals-repeated groups.order window.golden
window.edge window.unlimited window.causal window.alignment softcap.before-mask cache.golden
cache.position-offset cache.untouched-tail cache.decode-equals-full numerics.subnormal
""".split()
)
