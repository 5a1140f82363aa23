"""The output projection: which stored matrix and bias carry the heads to the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .answers import Answers
from .matching import factor_of
from .probing import ROUNDINGS
from .wiring import UnreadableError

Array = np.ndarray[Any, Any]
BELOW: Final = "the graph puts the heads below one another, along the tokens"


def merges(heads: Array, rows: int) -> Iterator[tuple[str, Array]]:
    """``[calls, B, H, L, Dv]`` as ``[calls · B · L, H · Dv]``, and what is wrong with the way.

    ``rows``: those of an answer. Where they are ``H · L``, the heads lie below one another:
    ``[calls · B · H · L, Dv]``.
    """
    calls, batch, count, length, size = heads.shape
    if rows == count * length != length:
        yield BELOW, heads.reshape(calls * batch * rows, size)
    if rows != length:
        return
    shape = (calls * batch * length, count * size)
    yield "", heads.transpose(0, 1, 3, 2, 4).reshape(shape)
    if count > 1 and size > 1:
        fault = "the graph puts the heads' features in turn instead of head beside head"
        yield fault, heads.transpose(0, 1, 3, 4, 2).reshape(shape)
    if count > 1 and length > 1:
        yield (
            "the graph merges the heads without moving them behind the queries",
            heads.reshape(shape),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Projected:
    """The output projection ``[Eo, H·Dv]``, its bias, and the factor between it and the answer.

    ``matrix`` None: the heads side by side are the answer. ``fault``: what is wrong with how they
    were put side by side, "" where nothing is. ``missed``: by how much the answers differ.
    """

    matrix: Array | None
    bias: Array | None
    factor: float = 1.0
    fault: str = ""
    missed: float = 0.0


def output_projection(answers: Answers, stored: Mapping[str, Array]) -> Projected:
    """The stored matrix that carries heads to answers best; raises UnreadableError."""
    outputs = answers.outputs.reshape(-1, answers.outputs.shape[-1])
    for fault, merged in merges(answers.heads, answers.outputs.shape[2]):
        bare = merged.shape == outputs.shape and _close(outputs, merged, np.abs(merged), answers, 1)
        if bare:
            return Projected(matrix=None, bias=None, fault=fault)
        found = [
            projected
            for tensor in stored.values()
            for matrix in _candidates(tensor, merged.shape[1], outputs.shape[1])
            if (projected := _fitted(matrix, merged, outputs, answers, stored)) is not None
        ]
        if found:
            best = min(found, key=lambda projected: projected.missed)
            matrix = best.matrix
            if matrix is not None and fault == BELOW:
                # Every head meets the same matrix: its block of the layer's.
                matrix = np.tile(matrix, (1, answers.heads.shape[2]))
            return Projected(matrix=matrix, bias=best.bias, factor=best.factor, fault=fault)
    msg = "the answer is no stored matrix times the heads side by side"
    raise UnreadableError(msg)


def _candidates(tensor: Array, width: int, out: int) -> Iterator[Array]:
    """A stored tensor as ``[out, width]``, once for each axis that may be its output's."""
    if tensor.size != width * out or tensor.dtype.kind != "f" or tensor.ndim < len("EO"):
        return
    for axis in range(tensor.ndim):
        if tensor.shape[axis] == out:
            yield np.moveaxis(tensor, axis, 0).reshape(out, width)


def _fitted(
    matrix: Array, merged: Array, outputs: Array, answers: Answers, stored: Mapping[str, Array]
) -> Projected | None:
    """A matrix with its bias and factor, None where it does not carry heads to answers."""
    exact = matrix.astype(np.float64)
    plain = merged @ exact.T
    factor = factor_of(outputs - outputs.mean(axis=0), plain - plain.mean(axis=0))
    if factor <= 0:
        return None
    if abs(factor - 1) <= (merged.shape[1] + ROUNDINGS) * answers.roundoff + answers.step:
        factor = 1.0
    bias = (outputs - factor * plain).mean(axis=0)
    size = factor * np.abs(merged) @ np.abs(exact).T + np.abs(bias)
    if answers.step:
        size = size + np.abs(merged).max() * np.abs(exact).sum(axis=1) * factor
    if not _close(outputs, factor * plain + bias, size, answers, merged.shape[1]):
        return None
    noise = _bound(size.max(axis=0), answers, merged.shape[1])
    missed = float(np.linalg.norm(outputs - factor * plain - bias))
    try:
        vector = stored_bias(bias, noise, stored)
    except UnreadableError:
        return None
    return Projected(matrix=matrix, bias=vector, factor=factor, missed=missed)


def stored_bias(bias: Array, noise: Array, stored: Mapping[str, Array]) -> Array | None:
    """The stored vector nearest to a bias within noise; None for one that is zero within it.

    Raises UnreadableError where a bias is there and none that is stored comes near.
    """
    near: list[tuple[float, Array]] = []
    for tensor in stored.values():
        if tensor.size == bias.size:
            vector = tensor.reshape(-1)
            distance = np.abs(vector.astype(np.float64) - bias)
            if np.all(distance <= noise):
                near.append((float(distance.sum()), vector))
    if near:
        return min(near, key=lambda pair: pair[0])[1]
    if np.all(np.abs(bias) <= noise):
        return None
    msg = "a bias is none that the graph stores"
    raise UnreadableError(msg)


def _bound(size: Array, answers: Answers, terms: int) -> Array:
    bound: Array = ((terms + ROUNDINGS) * answers.roundoff + answers.step) * size
    return bound + np.finfo(np.float32).tiny


def _close(got: Array, expected: Array, size: Array, answers: Answers, terms: int) -> bool:
    return bool(np.all(np.abs(got - expected) <= _bound(size, answers, terms)))
