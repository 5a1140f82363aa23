"""One problem: sizes, a value recipe, a mask plan and a seed. Small, frozen, comparable."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .geometry import Geometry


@dataclass(frozen=True, kw_only=True)
class MaskPlan:
    """How the mask of a problem is made and handed over.

    ``pattern`` names what it hides (see :mod:`conformance.mask_patterns`), ``form`` the keyword it
    arrives in, ``shape`` its axes in letters. ``finite_bias`` adds finite values to a ``bias``.
    """

    pattern: str
    form: str
    shape: str
    finite_bias: bool = False

    def replace(self, **changes: Any) -> MaskPlan:
        """The same plan with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Everything needed to rebuild the tensors of one example.

    Values are not drawn element by element: ``values`` names a recipe and ``seed`` feeds its
    generator, so a problem shrinks to tiny sizes and rebuilds anywhere.
    """

    geometry: Geometry
    dtype: str
    seed: int
    values: str = "normal"
    mask: MaskPlan | None = None
    causal: bool = False
    scale: float | None = None
    softcap: float | None = None
    window: tuple[int, int] | None = None
    biases: bool = True
    device: str = "cpu"

    def replace(self, **changes: Any) -> Problem:
        """The same problem with some fields changed."""
        return dataclasses.replace(self, **changes)

    def as_json(self) -> dict[str, Any]:
        """Plain data, enough to rebuild the problem."""
        return dataclasses.asdict(self)


def problem_from_json(data: dict[str, Any]) -> Problem:
    """The inverse of :meth:`Problem.as_json`; raises TypeError for missing or unknown fields."""
    mask, window = data.get("mask"), data.get("window")
    return Problem(
        **{
            **data,
            "geometry": Geometry(**data["geometry"]),
            "mask": None if mask is None else MaskPlan(**mask),
            "window": None if window is None else tuple(window),
        }
    )
