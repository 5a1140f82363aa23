"""``conformance.module``: a torch module, built or not, as a candidate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from .._golden import golden
from ..base.geometry import Geometry, read_pins
from ..base.texts import raised_text
from ..declare.candidate import Candidate
from ..declare.decorators import fixed_layer, layer
from ..errors import DeclarationError
from . import multihead
from .calling import AdaptedModule, Call, Calling
from .construct import duplicate, instance_of, put_in_dtype
from .finding import Finding
from .packing import Sizes
from .wish import (
    Wish,
    assuming,
    calling_of,
    check_number,
    check_promises,
    finished,
    loaded,
    understand,
    with_masks,
    without_biases,
)

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


def module(
    cls_or_instance: type[nn.Module] | nn.Module,
    *,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    construct: Construct | None = None,
    call: Call | None = None,
    projections: Mapping[str, str] | None = None,
    name: str | None = None,
    **promises: Any,
) -> Candidate:
    """Declare a ``torch.nn.Module`` that is multi-head attention: an instance or a class.

    Its four projections are found by name, and where names leave something open by agreement with
    the golden reference. Problems' weights are loaded into copies, never into the instance. What
    was assumed is in the declaration's ``assumptions``.

    num_heads, num_kv_heads
        Where no attribute such as ``num_heads`` says them.
    construct
        For a class: ``construct(geometry)`` makes a module of these sizes, so that sizes are drawn
        (``geometry=`` says which the class can have). Without it a class is constructed once.
    call
        A dict from our keywords to the module's, such as ``{"keep": "mask"}``, or a function
        ``call(module, query, key, value, **keywords)`` with the inputs that ``inputs=`` says.
    projections
        Names where the search finds none: ``{"q": "a", "k": "b", "v": "c", "o": "d"}``, or
        ``"qkv"`` and ``"kv"`` for fused ones.
    promises
        As for :func:`conformance.layer`.

    Raises DeclarationError (a ValueError) with one sentence saying what to pass.
    """
    shown = _shown(cls_or_instance, name)
    check_number("num_heads", num_heads)
    check_number("num_kv_heads", num_kv_heads)
    check_promises(promises)
    wish = Wish(
        shown=shown,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        call=call,
        projections=projections,
        promises=with_masks(promises, call),
    )
    if isinstance(cls_or_instance, nn.Module):
        if construct is not None:
            msg = (
                f"construct is given, but {shown} is an instance: give its class, or drop "
                "construct="
            )
            raise DeclarationError(msg)
        return _of_instance(cls_or_instance, wish)
    if construct is None and multihead.is_multihead(cls_or_instance) and "geometry" not in promises:
        wish = dataclasses.replace(wish, promises={**wish.promises, "geometry": multihead.nearest})
        construct = multihead.construct
    if construct is not None:
        return of_constructor(cls_or_instance, construct, wish)
    built, how = instance_of(cls_or_instance, num_heads)
    return assuming(_of_instance(built, wish), how)


def _shown(given: object, name: str | None) -> str:
    if isinstance(given, nn.Module):
        return name or type(given).__name__
    if isinstance(given, type) and issubclass(given, nn.Module):
        return name or given.__name__
    msg = f"conformance.module takes a torch.nn.Module class or instance, not {given!r}"
    raise DeclarationError(msg)


def _of_instance(built: nn.Module, wish: Wish) -> Candidate:
    if isinstance(built, torch.jit.ScriptModule):
        msg = f"{wish.shown} is scripted: give the module it was scripted from, or use fixed_layer"
        raise DeclarationError(msg)
    calling, finding, promises = understand(built, wish)
    sizes, recipe = finding.sizes, finding.recipe
    weights = recipe.read(built, sizes)
    told = promises.get("geometry") or {}
    if not isinstance(told, Mapping):
        msg = (
            f"geometry is {told!r}, but {wish.shown} is built already: give a dict of the "
            "lengths it can have"
        )
        raise DeclarationError(msg)
    promises["geometry"] = {**told, **_pins(weights, sizes)}
    promises["semantics"] = without_biases(promises.get("semantics"), recipe)
    if sizes.num_kv_heads != sizes.num_heads:
        promises["features"] = [*promises.get("features", ()), "gqa"]
    if recipe.has_output:
        candidate = layer(name=wish.shown, **promises)(_builder(built, calling, finding))
    else:
        kept = AdaptedModule(duplicate(built), calling)
        heads = sizes.num_heads
        candidate = fixed_layer(kept, weights, num_heads=heads, name=wish.shown, **promises)
        candidate = dataclasses.replace(candidate, function=_builder_of_one(kept))
    return finished(candidate, built, calling, finding.assumptions)


def _builder(
    built: nn.Module, calling: Calling, finding: Finding
) -> Callable[[Geometry, golden.ProjectionWeights], AdaptedModule]:
    def build(_geometry: Geometry, weights: golden.ProjectionWeights) -> AdaptedModule:
        return loaded(duplicate(built), calling, finding.recipe, finding.sizes, weights)

    return build


def _builder_of_one(
    kept: AdaptedModule,
) -> Callable[[Geometry, golden.ProjectionWeights], AdaptedModule]:
    """A builder that gives one module with its own weights, a copy for each dtype and device."""
    copies: dict[tuple[torch.dtype, torch.device], AdaptedModule] = {}

    def build(_geometry: Geometry, weights: golden.ProjectionWeights) -> AdaptedModule:
        place = weights.q.dtype, weights.q.device
        if place not in copies:
            copy = AdaptedModule(duplicate(kept.module), kept.calling).to(place[1])
            put_in_dtype(copy, place[0])
            copies[place] = copy
        return copies[place]

    return build


def _pins(weights: golden.ProjectionWeights, sizes: Sizes) -> dict[str, int]:
    merged = sizes.num_heads * sizes.value_head_size
    return {
        **dataclasses.asdict(sizes),
        "query_size": weights.q.shape[1],
        "key_size": weights.k.shape[1],
        "value_size": weights.v.shape[1],
        "output_size": merged if weights.o is None else weights.o.shape[0],
    }
