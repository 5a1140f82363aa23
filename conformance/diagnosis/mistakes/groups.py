"""Key/value heads dealt out to other query heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from .named import Asked, Heads, HeadsChange, NamedMistake, mistakes

_GOLDEN: Final = "numerics.golden"


def _regrouped(order: Callable[[int, int], Tensor]) -> HeadsChange:
    """Key/value heads that the query heads read, each by a number of its own."""

    def heads(asked: Asked, given: Heads) -> Heads | None:
        sizes = asked.inputs.geometry
        if sizes.num_heads == sizes.num_kv_heads:
            return None
        read = order(sizes.num_heads, sizes.num_kv_heads)
        return given[0], given[1][:, read], given[2][:, read]

    return heads


def _values_tiled(asked: Asked, given: Heads) -> Heads | None:
    sizes = asked.inputs.geometry
    if sizes.num_heads == sizes.num_kv_heads:
        return None
    group = sizes.num_heads // sizes.num_kv_heads
    return given[0], given[1].repeat_interleave(group, dim=1), given[2].repeat(1, group, 1, 1)


def _keys_tiled(asked: Asked, given: Heads) -> Heads | None:
    sizes = asked.inputs.geometry
    if sizes.num_heads == sizes.num_kv_heads:
        return None
    group = sizes.num_heads // sizes.num_kv_heads
    return given[0], given[1].repeat(1, group, 1, 1), given[2].repeat_interleave(group, dim=1)


GROUPS: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "groups-of-first-head",
        _GOLDEN,
        "all query heads read the first key/value head",
        "query head h reads key/value head h // group",
        {"heads": _regrouped(lambda heads, _kv_heads: torch.zeros(heads, dtype=torch.long))},
    ),
    *mistakes(
        "groups-clamped",
        _GOLDEN,
        "query head h reads key/value head h, and the last one where there is none",
        "query head h reads key/value head h // group",
        {"heads": _regrouped(lambda heads, kv: torch.arange(heads).clamp_max(kv - 1))},
    ),
    *mistakes(
        "groups-reversed",
        _GOLDEN,
        "the key/value heads are dealt out from the last to the first",
        "query head h reads key/value head h // group",
        {"heads": _regrouped(lambda heads, kv: kv - 1 - torch.arange(heads) // (heads // kv))},
    ),
    *mistakes(
        "groups-of-values-tiled",
        _GOLDEN,
        "query head h reads values of head h modulo their number, and keys of h // group",
        "repeat keys and values in the same order: repeat_interleave",
        {"heads": _values_tiled},
    ),
    *mistakes(
        "groups-of-keys-tiled",
        _GOLDEN,
        "query head h reads keys of head h modulo their number, and values of h // group",
        "repeat keys and values in the same order: repeat_interleave",
        {"heads": _keys_tiled},
    ),
)
