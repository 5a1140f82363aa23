"""The output projection: which stored matrix and bias carry the heads to the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .answers import Answers
from .matching import factor_of
from .probing import ROUNDINGS
from .unreadable import UnreadableError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Projected:
    """The output projection ``[Eo, H·Dv]``, its bias, and the factor between it and the answer.

    ``matrix`` None: the heads side by side are the answer.
    """

    matrix: Array | None
    bias: Array | None
    factor: float = 1.0
    source: str = ""


def output_projection(answers: Answers, stored: Mapping[str, Array]) -> Projected:
    """The one stored matrix that carries heads to answers; raises UnreadableError."""
    merged = answers.heads.reshape(len(answers.heads), -1)
    outputs = answers.outputs
    if merged.shape == outputs.shape and _close(outputs, merged, np.abs(merged), answers, 1):
        return Projected(matrix=None, bias=None)
    for name, tensor in stored.items():
        for matrix in _candidates(tensor, merged.shape[1], outputs.shape[1]):
            found = _with_bias(name, matrix, merged, answers, stored)
            if found is not None:
                return found
    msg = "the answer is no stored matrix times the heads side by side"
    raise UnreadableError(msg)


def _candidates(tensor: Array, width: int, out: int) -> Iterator[Array]:
    """A stored tensor as ``[out, width]``, once for each axis that may be its output's."""
    if tensor.size != width * out or tensor.dtype.kind != "f" or tensor.ndim < len("EO"):
        return
    for axis in range(tensor.ndim):
        if tensor.shape[axis] == out:
            yield np.moveaxis(tensor, axis, 0).reshape(out, width)


def _with_bias(
    name: str, matrix: Array, merged: Array, answers: Answers, stored: Mapping[str, Array]
) -> Projected | None:
    exact = matrix.astype(np.float64)
    plain = merged @ exact.T
    centred = plain - plain.mean(axis=0)
    factor = factor_of(answers.outputs - answers.outputs.mean(axis=0), centred)
    if factor <= 0:
        return None
    if abs(factor - 1) <= (merged.shape[1] + ROUNDINGS) * answers.roundoff:
        factor = 1.0
    bias = (answers.outputs - factor * plain).mean(axis=0)
    size = factor * np.abs(merged) @ np.abs(exact).T + np.abs(bias)
    if not _close(answers.outputs, factor * plain + bias, size, answers, merged.shape[1]):
        return None
    noise = (merged.shape[1] + ROUNDINGS) * answers.roundoff * size.max(axis=0)
    return Projected(
        matrix=matrix, bias=stored_bias(bias, noise, stored), factor=factor, source=name
    )


def stored_bias(bias: Array, noise: Array, stored: Mapping[str, Array]) -> Array | None:
    """The stored vector nearest to a bias within noise; None for one that is zero within it.

    Raises UnreadableError where a bias is there and none that is stored comes near.
    """
    near: list[tuple[float, Array]] = []
    for tensor in stored.values():
        if tensor.size == bias.size and max(tensor.shape, default=0) == bias.size:
            vector = tensor.reshape(-1)
            distance = np.abs(vector.astype(np.float64) - bias)
            if np.all(distance <= noise):
                near.append((float(distance.sum()), vector))
    if near:
        return min(near, key=lambda pair: pair[0])[1]
    if np.all(np.abs(bias) <= noise):
        return None
    msg = "the output's bias is none that the graph stores"
    raise UnreadableError(msg)


def _close(got: Array, expected: Array, size: Array, answers: Answers, terms: int) -> bool:
    bound = (terms + ROUNDINGS) * answers.roundoff * size
    return bool(np.all(np.abs(got - expected) <= bound + np.finfo(np.float32).tiny))
