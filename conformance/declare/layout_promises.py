"""What a declared ``layout`` decides beside the order of axes: sizes, masks, other promises."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from ..base.geometry import Geometry, Pins
from ..errors import DeclarationError
from .declaration import SEQUENCES

# Sizes that are one size because the tensors are one tensor: field by field it equals.
TIES: Final[dict[str, dict[str, str]]] = {
    "packed-qkv": {
        "num_kv_heads": "num_heads",
        "key_length": "query_length",
        "value_head_size": "head_size",
    },
    "packed-kv": {"value_head_size": "head_size"},
}
# What has no form in a layout, and why.
_IMPOSSIBLE: Final[dict[str, dict[str, str]]] = {
    "packed-qkv": {
        "gqa": "one tensor holds as many key heads as query heads",
        "kv_cache": "one tensor holds as many keys as queries",
    },
    "packed-kv": {"kv_cache": "keys and values of a cache are apart"},
    "varlen": {
        "kv_cache": "sequences of a batch lie one after another",
        "weights": "queries of different sequences have different numbers of keys",
    },
}


def forms_of_layout(layout: str, forms: tuple[str, ...]) -> tuple[str, ...]:
    """The forms of masks; sequences of different lengths are the only one of "varlen".

    Raises DeclarationError where others are declared beside it.
    """
    if layout != "varlen":
        return forms
    if forms:
        msg = (
            f"masks is {list(forms)} beside layout='varlen', whose cu_seqlens say which keys a "
            "query has: drop masks"
        )
        raise DeclarationError(msg)
    return (SEQUENCES,)


def check_company(layout: str, features: frozenset[str], empty_rows: str) -> None:
    """Refuse features and rules that a layout has no room for; raises DeclarationError."""
    for feature, why in _IMPOSSIBLE.get(layout, {}).items():
        if feature in features:
            msg = f"the feature {feature!r} cannot be had with layout={layout!r}: {why}; drop one"
            raise DeclarationError(msg)
    if layout == "varlen" and empty_rows == "mean-of-all":
        msg = (
            "empty_rows is 'mean-of-all' with layout='varlen', where no sequence has keys that are "
            "masked: write 'mean-of-valid'"
        )
        raise DeclarationError(msg)


def tied_by_layout(layout: str, pins: Pins) -> Pins:
    """The declared pins together with the sizes that a layout makes equal.

    Raises DeclarationError for pins that the layout contradicts.
    """
    ties = TIES.get(layout, {})
    for name, other in ties.items():
        _check_tie(layout, pins, name, other)
    if pins.build is not None:
        return dataclasses.replace(pins, build=_then_tied(pins.build, ties))
    return dataclasses.replace(pins, equal_to={**pins.equal_to, **ties})


def _check_tie(layout: str, pins: Pins, name: str, other: str) -> None:
    """Two sizes that are one may not be pinned apart."""
    one, two = pins.sizes.get(name), pins.sizes.get(other)
    if one is not None and two is not None and not set(one) & set(two):
        msg = (
            f"geometry pins {name} to {list(one)} and {other} to {list(two)}, but "
            f"layout={layout!r} makes them one size"
        )
        raise DeclarationError(msg)
    if pins.equal_to.get(name, other) != other:
        msg = (
            f"geometry makes {name} equal to {pins.equal_to[name]}, but layout={layout!r} makes it "
            f"equal to {other}"
        )
        raise DeclarationError(msg)


def _then_tied(
    build: Callable[[Geometry], Geometry], ties: dict[str, str]
) -> Callable[[Geometry], Geometry]:
    def tied(geometry: Geometry) -> Geometry:
        built = build(geometry)
        return built.replace(**{name: getattr(built, other) for name, other in ties.items()})

    return tied
