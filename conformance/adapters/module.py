"""``conformance.module``: a torch module, built or not, as a candidate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from .._golden import golden
from ..base.geometry import Geometry
from ..declare.candidate import Candidate
from ..declare.decorators import fixed_layer, layer
from ..errors import DeclarationError
from . import multihead
from .calling import AdaptedModule, Call, Calling
from .construct import instance_of
from .constructed import Construct, of_constructor
from .copying import duplicate, put_in_dtype
from .finding import Finding
from .packing import Sizes
from .understanding import understand
from .wish import (
    Wish,
    assuming,
    check_number,
    check_promises,
    finished,
    loaded,
    with_masks,
    without_biases,
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
