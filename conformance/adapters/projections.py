"""Which matrices of a module may be its four projections: by name, else all that fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from torch import nn

from ..base.parameter_names import role_of
from ..errors import DeclarationError
from .leaves import Leaf, leaves, plain_biases
from .packing import LAYOUTS, Holder, Recipe

_FUSED_COUNTS: Final[dict[int, tuple[str, ...]]] = {
    1: ("qkv",),
    2: ("qkv", "o"),
    3: ("q", "kv", "o"),
    4: ("q", "k", "v", "o"),
}
_ROLES: Final = "qkvo"
_MOST_LEAVES: Final = 7

Assignment = Mapping[str, Leaf]


@dataclass(frozen=True)
class Options:
    """The possible assignments of roles to matrices, and the biases kept on their own.

    ``named`` says that names decided, so that one assignment is left.
    """

    assignments: tuple[Assignment, ...]
    biases: tuple[Holder, ...]
    leaves: tuple[Leaf, ...]
    named: bool


def options(shown: str, module: nn.Module, projections: Mapping[str, str] | None) -> Options:
    """List the possible assignments; raises DeclarationError when there is none."""
    found = leaves(module)
    taken = {leaf.bias for leaf in found if leaf.bias}
    biases = tuple(plain_biases(module, taken))
    if projections is not None:
        assignments = [_as_told(shown, found, projections)]
    else:
        assignments = _by_name(found)
    if not assignments:
        titles = ", ".join(leaf.title for leaf in found) or "none at all"
        msg = (
            f"{shown} has no matrices that could be query, key and value projections (it has "
            f"{titles}): pass projections={{'q': …, 'k': …, 'v': …, 'o': …}} with the names of "
            "its layers, or use conformance.fixed_layer"
        )
        raise DeclarationError(msg)
    return Options(tuple(assignments), biases, tuple(found), len(assignments) == 1)


def recipes(assignment: Assignment, biases: tuple[Holder, ...]) -> Iterator[Recipe]:
    """Every way to read an assignment, likeliest first: orientation, order and layout."""
    variants = [list(_holders(roles, leaf)) for roles, leaf in assignment.items()]
    own = [leaf.bias for leaf in assignment.values()]
    for holders in itertools.product(*variants):
        attached = [
            replace(holder, path=bias, transposed=False)
            for holder, bias in zip(holders, own, strict=True)
            if bias
        ]
        covered = "".join(holder.roles for holder in attached)
        loose = [
            holder
            for holder in biases
            if not set(holder.roles) & set(covered) and set(holder.roles) <= _covered(holders)
        ]
        layouts = {holder.layout for holder in holders}
        fused = next(iter(layouts - {"blocks"}), "blocks")
        yield Recipe(
            matrices=tuple(holders),
            biases=(
                *attached,
                *(
                    replace(holder, layout=fused) if len(holder.roles) > 1 else holder
                    for holder in loose
                ),
            ),
        )


def _covered(holders: tuple[Holder, ...]) -> set[str]:
    return set("".join(holder.roles for holder in holders))


def _holders(roles: str, leaf: Leaf) -> Iterator[Holder]:
    if len(roles) == 1:
        for transposed in leaf.transposed:
            yield Holder(roles=roles, path=leaf.path, transposed=transposed)
        return
    orders = ["".join(order) for order in itertools.permutations(roles)]
    layouts: tuple[str, ...] = LAYOUTS
    if leaf.known_layout:
        orders, layouts = [roles], ("blocks",)
    for order, layout, transposed in itertools.product(orders, layouts, leaf.transposed):
        yield Holder(roles=order, path=leaf.path, transposed=transposed, layout=layout)


def _as_told(shown: str, found: list[Leaf], told: Mapping[str, str]) -> Assignment:
    by_title = {leaf.title: leaf for leaf in found} | {leaf.path: leaf for leaf in found}
    for roles, path in told.items():
        if not roles or not set(roles) <= set(_ROLES):
            msg = (
                f"projections has the key {roles!r}: use 'q', 'k', 'v', 'o', or 'qkv' and 'kv' "
                "for fused"
            )
            raise DeclarationError(msg)
        if path not in by_title:
            msg = (
                f"projections names {path!r}, but {shown} has "
                f"{', '.join(leaf.title for leaf in found)}"
            )
            raise DeclarationError(msg)
    given = "".join(told)
    if not {"q", "k", "v"} <= set(given) or len(set(given)) < len(given):
        msg = (
            f"projections gives {', '.join(told)}: it needs each of q, k and v once (o may be "
            "absent)"
        )
        raise DeclarationError(msg)
    return {roles: by_title[path] for roles, path in told.items()}


def _by_name(found: list[Leaf]) -> list[Assignment]:
    """The assignments that the names leave open."""
    named: dict[str, list[Leaf]] = {}
    vague: list[Leaf] = []
    for leaf in found:
        roles, clear = role_of(leaf.path)
        if clear:
            named.setdefault(roles, []).append(leaf)
        elif not leaf.plain or roles:
            vague.append(leaf)
    inner = _cover(named)
    if inner is None:
        return _search([leaf for leaf in found if not leaf.plain] or found)
    outputs: list[Leaf | None] = [*named.get("o", [])]
    if not outputs:
        outputs = [leaf for leaf in vague if role_of(leaf.path)[0] == "o"] or [*vague] or [None]
    assignments: list[Assignment] = []
    for *inputs, output in itertools.product(*(named[roles] for roles in inner), outputs):
        assignment = dict(zip(inner, inputs, strict=True)) | {"o": output}
        distinct = {id(leaf) for leaf in assignment.values()}
        if len(distinct) == len(assignment):
            assignments.append({role: leaf for role, leaf in assignment.items() if leaf})
    return assignments


def _cover(named: Mapping[str, list[Leaf]]) -> tuple[str, ...] | None:
    """The names that hold each of q, k and v once: separate ones before fused ones."""
    roles = sorted((name for name in named if name != "o"), key=len)
    for count in (3, 2, 1):
        for chosen in itertools.combinations(roles, count):
            if sorted("".join(chosen)) == sorted("qkv"):
                return tuple(sorted(chosen, key=lambda name: "qkv".index(name[0])))
    return None


def _search(found: list[Leaf]) -> list[Assignment]:
    """Every assignment of nameless matrices, in the order of definition first."""
    if len(found) > _MOST_LEAVES:
        return []
    count = min(len(found), len(_ROLES))
    if count == 0:
        return []
    assignments: list[Assignment] = []
    for chosen in itertools.permutations(found, count):
        assignments.append(dict(zip(_FUSED_COUNTS[count], chosen, strict=True)))
        if count == len("qkv"):
            assignments.append(dict(zip("qkv", chosen, strict=True)))
    return assignments
