"""Lengths that are read as something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ...problems.inputs import Inputs
from ._steps import rekept
from .named import NamedMistake, Question, mistakes


def _lengths(change: Callable[[Tensor, int], Tensor]) -> Question:
    """Other lengths ``[b, 1, q, 1]`` than those that are given."""

    def keep_of(_inputs: Inputs, keep: Tensor) -> Tensor:
        keys = keep.shape[-1]
        return torch.arange(keys) < change(keep.sum(dim=-1, keepdim=True), keys)

    return rekept(keep_of, forms=("lengths",))


LENGTHS: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "lengths-inclusive",
        "mask.forms-agree",
        "the key at the length itself is still attended",
        "compare with <, not with <=",
        {"question": _lengths(lambda lengths, _keys: lengths + 1)},
    ),
    *mistakes(
        "lengths-one-short",
        "mask.forms-agree",
        "the last key before the length is hidden",
        "keys 0 to length - 1 are attended",
        {"question": _lengths(lambda lengths, _keys: lengths - 1)},
    ),
    *mistakes(
        "lengths-rounded-up",
        "mask.forms-agree",
        "lengths are rounded up to a whole tile of 8, 16 or 32 keys",
        "mask the rest of the last tile, too",
        {"question": _lengths(lambda lengths, _keys: (lengths + 7) // 8 * 8)},
        {"question": _lengths(lambda lengths, _keys: (lengths + 15) // 16 * 16)},
        {"question": _lengths(lambda lengths, _keys: (lengths + 31) // 32 * 32)},
    ),
    *mistakes(
        "lengths-from-the-end",
        "mask.forms-agree",
        "lengths are counted from the last key, as if the padding came first",
        "keep the first keys",
        {"question": rekept(lambda _inputs, keep: keep.flip(-1), forms=("lengths",))},
    ),
    *mistakes(
        "lengths-of-the-longest",
        "mask.per-item",
        "the longest of the lengths is used for all",
        "compare each item with its own length",
        {"question": _lengths(lambda lengths, _keys: lengths.amax().expand_as(lengths))},
    ),
    *mistakes(
        "lengths-of-the-shortest",
        "mask.per-item",
        "the shortest of the lengths is used for all",
        "compare each item with its own length",
        {"question": _lengths(lambda lengths, _keys: lengths.amin().expand_as(lengths))},
    ),
)
