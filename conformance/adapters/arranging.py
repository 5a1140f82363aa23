"""Axes by letters: from the harness' own order of axes to a graph's, and back.

``B`` item, ``H`` head, ``L`` position (``Q`` and ``K`` in masks), ``E`` width, ``D`` head size and
``1`` an axis of size 1; ``M`` is heads and head size in one axis, ``F`` items and heads in one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor

_TOGETHER: Final = {"M": "HD", "F": "BH"}


def arrange(tensor: Tensor, own: str, theirs: str) -> Tensor:
    """A tensor with axes ``own`` in the order, and with the axes put together, of ``theirs``."""
    flat = _flat(theirs)
    letters = [letter for letter in flat if letter != "1"]
    tensor = tensor.permute([own.index(letter) for letter in letters])
    sizes = dict(zip(letters, tensor.shape, strict=True))
    return tensor.reshape([_size(letter, sizes) for letter in theirs])


def restore(tensor: Tensor, theirs: str, own: str, sizes: Mapping[str, int]) -> Tensor:
    """The inverse of ``arrange``; a tensor that cannot have these sizes comes back as it is.

    ``sizes`` are those of the letters that ``theirs`` puts together.
    """
    if tensor.dim() != len(theirs):
        return tensor
    shape: list[int] = []
    for letter, size in zip(theirs, tensor.shape, strict=True):
        parts = _TOGETHER.get(letter)
        if parts is None:
            shape += [] if letter == "1" and size == 1 else [size]
        elif sizes[parts[0]] * sizes[parts[1]] == size:
            shape += [sizes[parts[0]], sizes[parts[1]]]
        else:
            return tensor
    letters = _flat(theirs).replace("1", "")
    if len(shape) != len(letters):
        return tensor
    order = [letters.index(letter) for letter in own]
    return tensor.reshape(shape).permute(order)


def spelled(axes: str) -> str:
    """The letters of a mask's axes with items and heads apart, as a declaration writes them."""
    return _flat(axes)


def _flat(axes: str) -> str:
    return "".join(_TOGETHER.get(letter, letter) for letter in axes)


def _size(letter: str, sizes: Mapping[str, int]) -> int:
    if letter == "1":
        return 1
    size = 1
    for part in _TOGETHER.get(letter, letter):
        size *= sizes[part]
    return size
