"""Problems in which every pair of a candidate's options is given together, and nothing else.

What forgets one option when another is given is found by no luck: two options at a time are few
enough to try them all, and enough for nearly every such mistake (Kuhn, Wallace & Gallo 2004).
"""

from __future__ import annotations

import itertools
from typing import Any, Final

from .caching import draws_cache, settle_past
from .candidate import Candidate
from .geometry import Geometry
from .problem import MaskPlan, Problem
from .settling import one_at_a_time, settle
from .space import Space

Changes = dict[str, Any]
# What each feature is given as: values that move the answer of nearly every problem.
GIVEN: Final[dict[str, tuple[Any, ...]]] = {
    "scale": (0.9, 0.3),
    "softcap": (1.5,),
    "window": ((2, 1), (1, -1), (-1, 1), (3, 0)),
}
# On their own, where nothing else could hide all keys of a row.
ALONE: Final[dict[str, tuple[Any, ...]]] = {
    "scale": (0.9, 1.0),
    "softcap": (1.5, 30.0),
    "window": ((0, 0), (2, 1), (-1, 0), (0, -1), (1, 2), (40, 40)),
}
# Where options are not paired, so many of these values are enough.
FEW: Final = 2
# How many keys are cached; at least one stays new.
PASTS: Final = (2, 1, 5)
# Lengths only hide keys at the end, where a narrow window would leave rows without any.
PATTERNS: Final = ("random", "dense", "padding", "mixed")


def option_problems(candidate: Candidate, space: Space, *, dtype: str) -> list[Problem]:
    """Every pair of options, all at once with each form of mask, and each shape of mask alone."""
    plain, masks = _options(candidate), _masks(candidate, space)
    given = [
        {name: value}
        for name, values in ALONE.items()
        if name in candidate.declaration.features
        for value in values
    ]
    given += [_merged(pair) for pair in itertools.combinations(plain, 2)]
    given += [{**mask, **option} for mask in masks for option in plain]
    given += [{**_merged(plain), **mask} for mask in masks or [{}]]
    # A mask that is read along the wrong axis raises, unless all axes have one size.
    given += [
        {"mask": MaskPlan(pattern="random", form=form, shape=shape), "geometry": _EQUAL}
        for form, shape in space.options(candidate)
    ]
    return [
        _problem(candidate, space, dtype, turn, _chosen(changes, turn))
        for turn, changes in enumerate(given)
    ]


def single_options(candidate: Candidate, space: Space, *, dtype: str) -> list[Problem]:
    """Each option alone, each form of mask alone, and all at once with each form of mask."""
    plain, masks = _options(candidate), _masks(candidate, space)
    given = [
        {name: value}
        for name, values in ALONE.items()
        if name in candidate.declaration.features
        for value in values[:FEW]
    ]
    given += [*plain, *masks, *({**_merged(plain), **mask} for mask in masks or [{}])]
    return [
        _problem(candidate, space, dtype, turn, _chosen(changes, turn))
        for turn, changes in enumerate(given)
    ]


def _chosen(changes: Changes, turn: int) -> Changes:
    """One of the values of each feature that is given in turn."""
    return {
        name: value[turn % len(value)] if isinstance(value, _Turns) else value
        for name, value in changes.items()
    }


class _Turns(tuple[Any, ...]):
    """Values of which each problem takes the next one."""

    __slots__ = ()


_DISTINCT: Final = Geometry(
    batch=2,
    num_heads=4,
    num_kv_heads=4,
    query_length=5,
    key_length=7,
    head_size=3,
    value_head_size=6,
    query_size=11,
    key_size=13,
    value_size=9,
    output_size=10,
)
# Square scores, and more queries than keys.
_TURNS: Final = (
    _DISTINCT,
    _DISTINCT.replace(query_length=6, key_length=6),
    _DISTINCT.replace(query_length=9, key_length=6, batch=1),
)
_EQUAL: Final = _DISTINCT.replace(
    batch=4, query_length=4, key_length=4, head_size=4, value_head_size=4
)


def _options(candidate: Candidate) -> list[Changes]:
    """Every option but the mask, each as the change to a problem that gives it."""
    declared = candidate.declaration
    found: list[Changes] = [
        {name: _Turns(values)} for name, values in GIVEN.items() if name in declared.features
    ]
    if declared.causal is not None:
        found.append({"causal": True})
    if "gqa" in declared.features:
        found.append({"groups": 2})
    if "sinks" in declared.features:
        found.append({"sinks": True})
    if draws_cache(candidate):
        found.append({"past": _Turns(PASTS)})
    return found


def _masks(candidate: Candidate, space: Space) -> list[Changes]:
    """Each form of mask in the first of its shapes that are richest, biases finite too."""
    options = space.options(candidate)
    found: list[Changes] = []
    for turn, form in enumerate(dict.fromkeys(form for form, _ in options)):
        shape = max((shape for name, shape in options if name == form), key=_axes)
        plan = MaskPlan(pattern=PATTERNS[turn % len(PATTERNS)], form=form, shape=shape)
        found.append({"mask": plan})
        if form == "bias" and space.finite_bias != "never":
            found.append({"mask": plan.replace(finite_bias=True)})
    return found


def _axes(shape: str) -> int:
    return len(set(shape) - {"1"})


def _merged(options: Any) -> Changes:
    return {name: value for option in options for name, value in option.items()}


def _problem(
    candidate: Candidate, space: Space, dtype: str, turn: int, changes: Changes
) -> Problem:
    given = {"geometry": _TURNS[turn % len(_TURNS)], **changes}
    geometry: Geometry = given["geometry"]
    kv_heads = geometry.num_kv_heads // given.pop("groups", 1)
    given["geometry"] = settle(geometry.replace(num_kv_heads=kv_heads), candidate, space)
    problem = Problem(dtype=dtype, seed=turn, values="normal", **given)
    problem = one_at_a_time(problem, candidate)
    return problem.replace(past=settle_past(problem, candidate))
