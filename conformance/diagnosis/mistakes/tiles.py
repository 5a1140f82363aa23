"""Keys of the last tile, or at an end, that are lost or counted twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from ..._golden import golden
from ...problems.inputs import Inputs
from ._softmax import BLOCKS
from ._steps import weighing
from .named import Asked, CoreChange, NamedMistake, mistakes

_GOLDEN: Final = "numerics.golden"


def _padded_keys_counted(block: int) -> CoreChange:
    """Zeros fill the last block of keys up, and their logits of zero enter the sum."""

    def core(_asked: Asked, attention: golden.Attention) -> golden.Attention | None:
        padding = -attention.logits.shape[-1] % block
        if not padding:
            return None
        logits = functional.pad(attention.logits, (0, padding), value=0.0)
        weights = golden.softmax(logits)[..., : attention.logits.shape[-1]]
        return weighing(attention, weights)

    return core


def _keys_behind(block: int) -> Callable[[Asked], Inputs | None]:
    """Keys behind the last full block are never read."""

    def question(asked: Asked) -> Inputs | None:
        length = asked.inputs.geometry.key_length
        whole = length // block * block or length
        return hiding(asked.inputs, torch.arange(length) < whole) if whole < length else None

    return question


def hiding(inputs: Inputs, seen: Tensor) -> Inputs:
    """The same with further keys hidden."""
    keep = seen if inputs.keep is None else inputs.keep & seen
    return inputs.replace(keep=keep.reshape((1,) * (4 - keep.dim()) + keep.shape))


def _hides(place: int) -> Callable[[Asked], Inputs | None]:
    def question(asked: Asked) -> Inputs | None:
        length = asked.inputs.geometry.key_length
        if length <= 1:
            return None
        return hiding(asked.inputs, torch.arange(length) != place % length)

    return question


TILES: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "keys-behind-the-last-tile-lost",
        "numerics.any-length",
        "keys behind the last full tile are never read",
        "round the number of tiles up and mask the rest of the last one",
        *({"question": _keys_behind(block)} for block in BLOCKS[1:]),
    ),
    *mistakes(
        "padding-of-the-last-tile-counted",
        _GOLDEN,
        "the zeros that fill the last tile up enter the softmax as logits of zero",
        "set their logits to minus infinity",
        *({"core": _padded_keys_counted(block)} for block in BLOCKS[1:]),
    ),
    *mistakes(
        "last-key-lost",
        "equivariance.keys",
        "the last key is never attended",
        "let the loop over keys reach the last one",
        {"question": _hides(-1)},
    ),
    *mistakes(
        "first-key-lost",
        "equivariance.keys",
        "the first key is never attended",
        "let the loop over keys begin with the first one",
        {"question": _hides(0)},
    ),
)
