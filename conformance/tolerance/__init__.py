"""The derived tolerance: how far each element of a conforming answer may be from the golden one.

A result passes if every element lies within a bound computed from the inputs and the declared
precision contract. Nothing here is fitted and nothing is a tolerance picked by hand; the counts of
roundings are in ``model``, the derivation in docs/tolerance.md.
"""

from __future__ import annotations

from .contract import Contract, contract_for
from .core import core_bound
from .layer import layer_bound
from .projection import projection_bound

__all__ = ["Contract", "contract_for", "core_bound", "layer_bound", "projection_bound"]
