"""The derived tolerance: a bound on each element of a conforming answer's error.

A result passes if every element lies within a bound computed from the inputs and the declared
precision contract. Nothing here is fitted and no tolerance is picked by hand; the counts of
roundings are in ``model``, the derivation in docs/tolerance.md.

May import ``declare`` and the layers below it.
"""

from __future__ import annotations

from .attention_bound import core_bound, largest_size, least_core_bound, most_core_bound
from .contract import Contract, contract_for
from .fit import Fit, fit
from .gradient import (
    Gradient,
    GradientFit,
    GradientStatistics,
    add_gradients,
    gradient_fit,
    stack_gradients,
)
from .gradients import core_gradients
from .layer import layer_bound, least_layer_bound, most_layer_bound, projection_bound
from .layer_gradients import layer_gradients
from .statistical import Statistics, core_statistics, has_statistical_bound, layer_statistics

__all__ = [
    "Contract",
    "Fit",
    "Gradient",
    "GradientFit",
    "GradientStatistics",
    "Statistics",
    "add_gradients",
    "contract_for",
    "core_bound",
    "core_gradients",
    "core_statistics",
    "fit",
    "gradient_fit",
    "has_statistical_bound",
    "largest_size",
    "layer_bound",
    "layer_gradients",
    "layer_statistics",
    "least_core_bound",
    "least_layer_bound",
    "most_core_bound",
    "most_layer_bound",
    "projection_bound",
    "stack_gradients",
]
