"""One problem: sizes, a value recipe, a mask plan and a seed. Small, frozen, comparable."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Final, get_args, get_type_hints

from ..base.geometry import Geometry, why_impossible
from ..base.profile import DTYPES
from ..base.results import Replaceable
from ..declare.declaration import MASK_FORMS, SEQUENCES, STRUCTURED_FORMS, is_mask_shape

_PLAIN: Final = (int, float, bool, str)
# A tensor of 2 GiB in float64: no clause asks for nearly as much.
_MOST_ELEMENTS: Final = 2**28
# Which inputs are one tensor.
_SHARED: Final = ("", "key-value", "all")
# Generators multiply a seed by a million, and take 64 bits.
_SEEDS: Final = 2**42


@dataclass(frozen=True, kw_only=True)
class MaskPlan(Replaceable):
    """How the mask of a problem is made and handed over.

    ``pattern`` names the hidden places (see :mod:`conformance.problems.mask_patterns`), ``form``
    the keyword of the mask, ``shape`` its axes in letters. ``finite_bias`` adds finite values to a
    ``bias``. With ``visible``, each query keeps a key hidden by neither causal rule nor window.
    """

    pattern: str
    form: str
    shape: str
    finite_bias: bool = False
    visible: bool = False


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Values that replace drawn values, in the problem of one seed.

    ``tensors`` are pairs of a name and its values in row-major order: ``query``, ``key``,
    ``value``, ``keep``, ``bias``, ``sinks``, or a role of the weights such as ``q`` or ``o_bias``.
    A tensor of another size keeps its drawn values: a clause may derive further problems.
    """

    seed: int
    tensors: tuple[tuple[str, tuple[float, ...]], ...] = ()

    def value(self, name: str) -> tuple[float, ...] | None:
        """The values of one tensor, None where they are drawn."""
        return dict(self.tensors).get(name)

    def replace(self, name: str, values: tuple[float, ...]) -> Overrides:
        """The overrides with other values of one tensor."""
        changed = {**dict(self.tensors), name: values}
        return Overrides(seed=self.seed, tensors=tuple(changed.items()))


@dataclass(frozen=True, kw_only=True)
class Problem(Replaceable):
    """Everything needed to rebuild the tensors of one example.

    Values are not drawn element by element: ``values`` names a recipe and ``seed`` feeds its
    generator, so a problem shrinks to tiny sizes and rebuilds anywhere. ``overrides`` are the
    simpler values of a reduced failing problem. The first ``past`` keys are handed over as
    a cache; ``sinks`` gives each head the logit of a key without a value.

    ``layout`` and ``mask_layout`` name the memory layout of tensors and mask (see
    :mod:`conformance.problems.memory_layouts`; "expanded" items or heads are equal), ``shared``
    the inputs that are one tensor: "key-value", or "all". ``return_weights`` and ``dropout`` are
    options of the call.
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

    def as_json(self) -> dict[str, Any]:
        """Plain data, enough to rebuild the problem."""
        parts = {"geometry": self.geometry, "mask": self.mask, "overrides": self.overrides}
        plain = {name: None if part is None else dict(vars(part)) for name, part in parts.items()}
        # A hundred times a failure: asdict would copy each value.
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | plain


def problem_from_json(data: dict[str, Any]) -> Problem:
    """The inverse of :meth:`Problem.as_json`.

    Raises TypeError for missing or unknown fields, ValueError for values that no problem has: a
    record may have been edited.
    """
    mask, window, overrides = (data.get(name) for name in ("mask", "window", "overrides"))
    problem = Problem(
        **{
            **data,
            "geometry": Geometry(**_there(data, "geometry")),
            "mask": None if mask is None else MaskPlan(**mask),
            "window": None if window is None else tuple(window),
            "overrides": None if overrides is None else _overrides_from_json(overrides),
        }
    )
    for part in (problem, problem.geometry, problem.mask):
        if part is not None:
            _check_kinds(part)
    _check_sizes(problem.geometry)
    _check_options(problem)
    if problem.mask is not None:
        _check_mask(problem.mask)
    return problem


def _overrides_from_json(data: dict[str, Any]) -> Overrides:
    pairs = _there(data, "tensors")
    tensors = [(name, tuple(float(value) for value in values)) for name, values in pairs]
    return Overrides(seed=_there(data, "seed"), tensors=tuple(tensors))


def _there(data: dict[str, Any], name: str) -> Any:
    if name not in data:
        msg = f"its {name} is missing"
        raise TypeError(msg)
    return data[name]


def _check_kinds(part: Problem | Geometry | MaskPlan) -> None:
    """Raise ValueError for a plain field with a value of a type other than declared."""
    for name, hint in get_type_hints(type(part)).items():
        value, kinds = getattr(part, name), get_args(hint) or (hint,)
        if float in kinds:
            kinds = (*kinds, int)
        is_plain = any(kind in _PLAIN for kind in kinds)
        if is_plain and type(value) not in kinds:
            msg = f"its {name} is {value!r:.60}"
            raise ValueError(msg)


def _check_sizes(geometry: Geometry) -> None:
    sizes = dataclasses.asdict(geometry)
    why = why_impossible(geometry)
    if why:
        raise ValueError(why)
    longest = max(geometry.query_length, geometry.key_length)
    widest = max(size for name, size in sizes.items() if name.endswith("_size"))
    elements = geometry.batch * geometry.num_heads * longest
    if elements * max(widest, min(geometry.query_length, geometry.key_length)) > _MOST_ELEMENTS:
        msg = f"its tensors would have more than {_MOST_ELEMENTS:,} elements"
        raise ValueError(msg)
    if widest**2 * geometry.num_heads > _MOST_ELEMENTS:
        msg = f"its weights would have more than {_MOST_ELEMENTS:,} elements"
        raise ValueError(msg)


def _check_mask(mask: MaskPlan) -> None:
    for name, holds in {
        "form": mask.form in (*MASK_FORMS, *STRUCTURED_FORMS, SEQUENCES),
        "shape": is_mask_shape(mask.shape),
    }.items():
        if not holds:
            msg = f"its mask's {name} is {getattr(mask, name)!r:.60}"
            raise ValueError(msg)


def _check_options(problem: Problem) -> None:
    window, overrides = problem.window, problem.overrides
    sides = () if window is None else window
    whole = all(type(side) is int and side >= -1 for side in sides)
    drawn = problem.seed if overrides is None else overrides.seed
    for name, holds in {
        "dtype": problem.dtype in DTYPES,
        "seed": all(type(s) is int and abs(s) < _SEEDS for s in (problem.seed, drawn)),
        "window": window is None or (len(window) == len(("left", "right")) and whole),
        "scale": problem.scale is None or math.isfinite(problem.scale),
        "softcap": problem.softcap is None or 0.0 < problem.softcap < math.inf,
        "dropout": problem.dropout is None or 0.0 <= problem.dropout < 1.0,
        "past": problem.past >= 0,
        "shared": problem.shared in _SHARED,
    }.items():
        if not holds:
            msg = f"its {name} is {getattr(problem, name)!r:.60}"
            raise ValueError(msg)
