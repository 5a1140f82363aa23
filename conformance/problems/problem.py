"""One problem: sizes, a value recipe, a mask plan and a seed. Small, frozen, comparable."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ..base.geometry import Geometry


@dataclass(frozen=True, kw_only=True)
class MaskPlan:
    """How the mask of a problem is made and handed over.

    ``pattern`` names what it hides (see :mod:`conformance.problems.mask_patterns`), ``form`` the
    keyword it arrives in, ``shape`` its axes in letters. ``finite_bias`` adds finite values to a
    ``bias``. Where it is ``visible``, each query keeps a key that neither causal rule nor window
    hides.
    """

    pattern: str
    form: str
    shape: str
    finite_bias: bool = False
    visible: bool = False

    def replace(self, **changes: Any) -> MaskPlan:
        """The plan with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Values that replace drawn ones, in the problem of one seed.

    ``tensors`` are pairs of a name and its values in row-major order: ``query``, ``key``,
    ``value``, ``keep``, ``bias``, ``sinks``, or a role of the weights such as ``q`` or ``o_bias``.
    A tensor of another size stays as it is drawn: a clause may derive further problems from one.
    """

    seed: int
    tensors: tuple[tuple[str, tuple[float, ...]], ...] = ()

    def value(self, name: str) -> tuple[float, ...] | None:
        """The values of one tensor, None where it is as drawn."""
        return dict(self.tensors).get(name)

    def replace(self, name: str, values: tuple[float, ...]) -> Overrides:
        """The overrides with other values of one tensor."""
        changed = {**dict(self.tensors), name: values}
        return Overrides(seed=self.seed, tensors=tuple(changed.items()))


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Everything needed to rebuild the tensors of one example.

    Values are not drawn element by element: ``values`` names a recipe and ``seed`` feeds its
    generator, so a problem shrinks to tiny sizes and rebuilds anywhere. ``overrides`` are simpler
    values that a failing problem was reduced to. Of the keys, the first ``past`` are handed over as
    a cache; ``sinks`` gives each head the logit of a key without a value.

    ``layout`` and ``mask_layout`` say how tensors and mask lie in memory (see
    :mod:`conformance.problems.memory_layouts`; "expanded" items or heads are equal ones),
    ``shared`` which inputs are one tensor: "key-value", or "all". ``return_weights`` and
    ``dropout`` are options of the call.
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
    overrides: Overrides | None = None
    past: int = 0
    sinks: bool = False
    layout: str = "contiguous"
    mask_layout: str = "contiguous"
    shared: str = ""
    return_weights: bool = False
    dropout: float | None = None

    def replace(self, **changes: Any) -> Problem:
        """The problem with some fields changed."""
        return dataclasses.replace(self, **changes)

    def as_json(self) -> dict[str, Any]:
        """Plain data, enough to rebuild the problem."""
        return dataclasses.asdict(self)


def problem_from_json(data: dict[str, Any]) -> Problem:
    """The inverse of :meth:`Problem.as_json`; raises TypeError for missing or unknown fields."""
    mask, window, overrides = (data.get(name) for name in ("mask", "window", "overrides"))
    return Problem(
        **{
            **data,
            "geometry": Geometry(**data["geometry"]),
            "mask": None if mask is None else MaskPlan(**mask),
            "window": None if window is None else tuple(window),
            "overrides": None if overrides is None else _overrides_from_json(overrides),
        }
    )


def _overrides_from_json(data: dict[str, Any]) -> Overrides:
    tensors = [(name, tuple(float(value) for value in values)) for name, values in data["tensors"]]
    return Overrides(seed=data["seed"], tensors=tuple(tensors))
