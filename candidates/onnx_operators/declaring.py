"""What every candidate of the standard operator promises, whoever runs it."""

from __future__ import annotations

from typing import Any, Final

import conformance
from conformance import Candidate, Geometry

from .standard import StandardAttention

OPSETS: Final = (23, 24, 25)
# Masks whose last two axes are complete, and those that broadcast over the queries.
FULL_MASKS: Final = ("BHQK", "B1QK", "1HQK", "11QK", "HQK", "1QK", "QK")
BROADCAST_MASKS: Final = ("B11K", "111K", "11K", "1K", "K")


def standard(name: str, function: StandardAttention, **promises: Any) -> Candidate:
    """Declare a form of the operator by its specification: rows without any key are zeros."""
    common: dict[str, Any] = {
        "name": name,
        "masks": ["keep", "bias"],
        "mask_shapes": FULL_MASKS,
        "causal": "top-left" if function.cache == "none" else "bottom-right",
        "empty_rows": "zeros",
        "features": ["gqa", "scale", "softcap", "weights"],
        "without": ["gradients"],
    }
    return conformance.core(**(common | promises))(function)


def no_fewer_keys(geometry: Geometry) -> Geometry:
    """As many keys as queries at least: the newest keys are the queries' own."""
    return geometry.replace(key_length=max(geometry.key_length, geometry.query_length))
