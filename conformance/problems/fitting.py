"""Fits sizes and causality to what a candidate can be called with and what a clause needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from ..base.geometry import FIELDS, LENGTHS, Geometry, nearest_size
from ..declare.candidate import Candidate
from ..declare.declaration import GIVEN_POSITIONS, Declaration
from .problem import Problem
from .space import WIDTHS, Space, allowed_sizes, least_size, tied_fields, wanted_size

# The number of times a geometry function is applied before its result is taken as it is.
BUILDS = 2
# The sizes where each new size is compiled, in the order of Geometry's fields; combinations have
# the first and the third, too.
_FEW: Final = (
    (2, 4, 4, 5, 7, 3, 6, 11, 13, 9, 10),  # every axis of another size
    (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),  # nothing but ones
    (2, 4, 2, 4, 4, 3, 6, 11, 13, 9, 10),  # square scores, grouped heads
    (3, 3, 3, 3, 3, 3, 3, 9, 9, 9, 9),  # every axis of one size
    (4, 2, 1, 9, 4, 8, 8, 16, 16, 16, 16),  # more queries than keys; heads share one
    (1, 2, 2, 2, 33, 59, 20, 6, 4, 5, 3),  # a key past a tile edge; heads past the edges of vectors
    (1, 2, 1, 17, 3, 7, 1, 5, 3, 4, 2),  # a query past a tile edge
)


def fitted_geometry(geometry: Geometry, candidate: Candidate, space: Space) -> Geometry:
    """The nearest geometry that the space and the candidate's declaration allow.

    What the candidate's own geometry function makes stands, even outside the space.
    """
    build = candidate.declaration.pins.build
    geometry = _settle_sizes(geometry, candidate, space)
    if build is None:
        return geometry
    built = build(geometry)
    for _ in range(BUILDS):
        geometry = _settle_sizes(built, candidate, space)
        if geometry == built:
            break
        built = build(geometry)
    return built


def draft_geometry(geometry: Geometry, candidate: Candidate, space: Space) -> Geometry:
    """Fit a draft's sizes; to one of few geometries where each new size is compiled.

    Then the nearest is chosen, if possible among geometries that the space leaves unchanged.
    """
    if candidate.declaration.compiles_sizes:
        few = [Geometry(**dict(zip(FIELDS, sizes, strict=True))) for sizes in _FEW]
        usual = [fitted_geometry(one, candidate, Space()) for one in few]
        left = [one for one in usual if fitted_geometry(one, candidate, space) == one]
        geometry = min(left or usual, key=lambda one: _distance(one, geometry))
    return fitted_geometry(geometry, candidate, space)


def _distance(first: Geometry, second: Geometry) -> float:
    """The sum of the absolute logarithms of the quotients of two geometries' sizes."""
    return sum(abs(math.log(getattr(first, name) / getattr(second, name))) for name in FIELDS)


def causal_flag(candidate: Candidate, *, flagged: bool, masked: bool = False) -> bool:
    """Whether a problem is causal: where the flag is offered and set, or always in force.

    ``masked``: the problem has a mask that excludes the flag, see ``either_or``.
    """
    declared = candidate.declaration
    return declared.always_causal or (flagged and declared.causal is not None and not masked)


def one_at_a_time(problem: Problem, candidate: Candidate) -> Problem:
    """Drop the causal flag of a problem whose mask excludes the flag."""
    alone = problem.mask is not None and either_or(candidate)
    causal = causal_flag(candidate, flagged=problem.causal, masked=alone)
    return problem if causal == problem.causal else problem.replace(causal=causal)


def either_or(candidate: Candidate) -> bool:
    """Whether flag and mask come one at a time: where not both count.

    ``mask.causal-and-mask`` alone combines them.
    """
    return candidate.declaration.semantics.causal_combination != "both"


def shared_inputs(problem: Problem, candidate: Candidate) -> str:
    """The name of the inputs to hand over as one tensor, as far as shapes allow."""
    sizes = problem.geometry
    if candidate.kind == "core":
        values = sizes.head_size == sizes.value_head_size
        queries = sizes.num_heads == sizes.num_kv_heads
    else:
        values = sizes.key_size == sizes.value_size
        queries = sizes.query_size == sizes.key_size
    if not problem.shared or not values:
        return ""
    whole = queries and sizes.query_length == sizes.key_length and not problem.past
    return problem.shared if whole else "key-value"


def counts_from_first_key(candidate: Candidate) -> bool:
    """Whether queries are never drawn where they would stand before the first key."""
    point = candidate.declaration.semantics
    counted = point.rotary != "none" and point.causal_alignment == "bottom-right"
    counted = counted and GIVEN_POSITIONS not in candidate.declaration.features
    return counted and not set(LENGTHS) & set(candidate.declaration.pins.sizes)


@dataclass(frozen=True)
class _Rules:
    """The groups of equal fields with their leading field, allowed sizes and wanted size.

    They follow from a declaration and a space. The latest are kept, as problems of one declaration
    and space are fitted in a row.
    """

    declaration: Declaration
    space: Space
    groups: tuple[tuple[tuple[str, ...], str, Sequence[int] | None, int], ...]
    latest: ClassVar[_Rules | None] = None

    @classmethod
    def of(cls, candidate: Candidate, space: Space) -> _Rules:
        """Those of a candidate and a space."""
        known, declared = cls.latest, candidate.declaration
        if known is not None and known.declaration is declared and space == known.space:
            return known
        groups = (
            (
                group,
                declared.pins.lead(group),
                allowed_sizes(group, candidate),
                wanted_size(group, space),
            )
            for group in tied_fields(candidate, space)
        )
        rules = cls.latest = cls(declared, space, tuple(groups))
        return rules  # another thread may have kept others by now


def _settle_sizes(geometry: Geometry, candidate: Candidate, space: Space) -> Geometry:
    """Make sizes allowed, equal where they must be, and large enough where they can be."""
    sizes = dict(vars(geometry))
    rules = _Rules.of(candidate, space)
    for group, lead, allowed, wanted in rules.groups:
        sizes |= dict.fromkeys(group, nearest_size(sizes[lead], allowed, wanted))
    if space.square == "never" and sizes["query_length"] == sizes["key_length"]:
        sizes |= _other_length(sizes["key_length"], rules)
    sizes |= _behind_no_key(sizes, candidate, space)
    shared = sizes["num_heads"] > sizes["num_kv_heads"] or not space.grouped
    if sizes["num_heads"] % sizes["num_kv_heads"] or not shared:
        sizes |= _whole_groups(sizes, candidate, space)
    if candidate.kind == "core":
        sizes |= dict.fromkeys(WIDTHS, 1)
    if candidate.kind == "positions":
        sizes |= dict.fromkeys(("num_heads", "num_kv_heads", "head_size", "value_head_size"), 1)
        sizes |= dict.fromkeys(WIDTHS, sizes["key_size"] + sizes["key_size"] % 2)
    return Geometry(**sizes)


def _other_length(length: int, rules: _Rules) -> dict[str, int]:
    """A different length for the keys or the queries, preferably for an unpinned one."""
    ways: list[tuple[bool, bool, dict[str, int]]] = []
    for name in ("key_length", "query_length"):
        group, _, allowed, least = next(rule for rule in rules.groups if name in rule[0])
        others = None if allowed is None else _without(allowed, length)
        if others is None or others:
            size = nearest_size(length + 2, others, least)
            ways.append((allowed is not None, size < least, dict.fromkeys(group, size)))
    return min(ways, key=lambda way: way[:2])[2] if ways else {}


def _without(allowed: Sequence[int], length: int) -> Sequence[int]:
    """All allowed sizes but ``length``.

    A range that goes beyond the length stays whole: ``length + 2`` is nearest to a size beyond it.
    """
    if isinstance(allowed, range):
        return range(1, length) if allowed[-1] == length else allowed
    return [size for size in allowed if size != length]


def _behind_no_key(sizes: dict[str, int], candidate: Candidate, space: Space) -> dict[str, int]:
    """Exchange the lengths where the first queries would stand before the first key.

    No table of sines has a row for a place before zero.
    """
    queries, keys = (sizes[name] for name in LENGTHS)
    fewer = max(keys, wanted_size(("query_length",), space))
    if not counts_from_first_key(candidate) or queries <= keys or fewer > queries:
        return {}
    return {"query_length": fewer, "key_length": queries}


def _whole_groups(sizes: dict[str, int], candidate: Candidate, space: Space) -> dict[str, int]:
    pinned = candidate.declaration.pins.sizes
    heads, kv_heads = sizes["num_heads"], sizes["num_kv_heads"]
    most = 2 * heads + kv_heads + 1 if space.grouped else heads + kv_heads
    many = pinned.get("num_heads", range(1, most))
    few = pinned.get("num_kv_heads", range(1, max(many) + 1))
    least, least_kv = (least_size((name,), space) for name in ("num_heads", "num_kv_heads"))
    pairs = [(n, k) for n in many for k in few if n % k == 0 and n >= least and k >= least_kv]
    if space.grouped:
        pairs = [(n, k) for n, k in pairs if n > k]
    if not pairs:
        return {"num_kv_heads": 1}
    best = min(pairs, key=lambda pair: abs(pair[0] - heads) + abs(pair[1] - kv_heads))
    return {"num_heads": best[0], "num_kv_heads": best[1]}
