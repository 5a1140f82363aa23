"""A class whose modules are constructed for every drawn geometry."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import nn

from .._golden import golden
from ..base.geometry import Geometry, read_pins
from ..base.raised import raised_text
from ..declare.candidate import Candidate
from ..declare.decorators import layer
from ..errors import DeclarationError
from . import multihead
from .calling import AdaptedModule
from .packing import Sizes
from .understanding import calling_of, understand
from .wish import Wish, finished, loaded, without_biases

Construct = Callable[[Geometry], nn.Module]

# Sizes that all differ, so that a class which cannot have them is noticed at once.
_PROBES = (
    Geometry(
        batch=2,
        num_heads=3,
        num_kv_heads=3,
        query_length=5,
        key_length=7,
        head_size=4,
        value_head_size=6,
        query_size=10,
        key_size=14,
        value_size=11,
        output_size=9,
    ),
    Geometry(
        batch=1,
        num_heads=2,
        num_kv_heads=2,
        query_length=3,
        key_length=4,
        head_size=6,
        value_head_size=5,
        query_size=7,
        key_size=9,
        value_size=13,
        output_size=8,
    ),
)


def of_constructor(kind: type[nn.Module], construct: Construct, wish: Wish) -> Candidate:
    """A candidate whose ``construct(geometry)`` is called for each problem.

    Projections are found once, on a probe. Raises DeclarationError when the modules do not have the
    sizes of their geometries.
    """
    if wish.num_heads is not None or wish.num_kv_heads is not None:
        msg = (
            "num_heads is given beside construct=, which gets it from each geometry: pin "
            "geometry= instead"
        )
        raise DeclarationError(msg)
    first, second = (_probe(geometry, kind, wish) for geometry in _PROBES)
    built = _construct(construct, first, wish.shown)
    told = dataclasses.replace(wish, num_heads=first.num_heads, num_kv_heads=first.num_kv_heads)
    calling, finding, promises = understand(built, told)
    if not finding.recipe.has_output:
        msg = (
            f"{wish.shown} has no output projection: give an instance, whose own weights are "
            "then kept"
        )
        raise DeclarationError(msg)
    promises["semantics"] = without_biases(promises.get("semantics"), finding.recipe)

    def build(geometry: Geometry, weights: golden.ProjectionWeights) -> AdaptedModule:
        fresh = _construct(construct, geometry, wish.shown)
        recipe = finding.recipe
        if multihead.is_multihead(fresh):  # fused or separate, by its widths
            recipe = multihead.recipe(fresh)  # type: ignore[arg-type]  # an instance, as seen
        return loaded(fresh, calling, recipe, _sizes(geometry), weights)

    for geometry in (first, second):
        build(geometry, _blank_weights(geometry))
    candidate = layer(name=wish.shown, **promises)(build)
    return finished(candidate, built, calling, finding.assumptions)


def _construct(construct: Construct, geometry: Geometry, shown: str) -> nn.Module:
    try:
        built = construct(geometry)
    except Exception as error:  # a user's function may raise anything
        msg = (
            f"construct {raised_text(error)} (for {geometry}): pin the sizes "
            f"that {shown} cannot have with geometry="
        )
        raise DeclarationError(msg) from error
    if not isinstance(built, nn.Module):
        msg = f"construct returned {built!r}: return a torch.nn.Module"
        raise DeclarationError(msg)
    return built


def _probe(geometry: Geometry, kind: type[nn.Module], wish: Wish) -> Geometry:
    """A probe that obeys what is declared."""
    if "gqa" in wish.promises.get("features", ()):
        geometry = geometry.replace(num_heads=2 * geometry.num_kv_heads)
    pinned = read_pins(wish.promises.get("geometry")).apply(geometry)
    inputs = calling_of(kind, wish).inputs
    if inputs == "self":
        pinned = pinned.replace(key_size=pinned.query_size, value_size=pinned.query_size)
    if inputs == "memory":
        pinned = pinned.replace(value_size=pinned.key_size)
    return pinned


def _sizes(geometry: Geometry) -> Sizes:
    return Sizes(
        num_heads=geometry.num_heads,
        num_kv_heads=geometry.num_kv_heads,
        head_size=geometry.head_size,
        value_head_size=geometry.value_head_size,
    )


def _blank_weights(geometry: Geometry) -> golden.ProjectionWeights:
    sizes = _sizes(geometry)
    return golden.ProjectionWeights(
        q=torch.zeros(sizes.rows("q"), geometry.query_size),
        k=torch.zeros(sizes.rows("k"), geometry.key_size),
        v=torch.zeros(sizes.rows("v"), geometry.value_size),
        o=torch.zeros(geometry.output_size, sizes.num_heads * sizes.value_head_size),
    )
