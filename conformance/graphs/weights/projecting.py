"""The output projection: which stored matrix and bias carry the heads to the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..protocol import Array
from .attention_core import Core
from .matching import factor_of
from .probing import EIGHT_BITS, ROUNDINGS, RunnableGraph
from .wiring import UnreadableError

# Calls: several, since a graph may be fixed at one item of one token.
CALLS: Final = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """What the graph made of random tokens.

    heads
        ``[calls, B, H, Lq, Dv]``, the weighted means.
    outputs
        ``[calls, B, Lq, Eo]``, the answers; a broken graph's may have other rows.
    products, scores
        What the softmax is made of before and after scale and masks, all entries of a call in a
        row; empty where the core is a single node.
    roundoff
        The distance from 1 to the next number of the graph's dtype.
    step
        How far, relative to the largest of its tensor, an activation may be rounded.
    """

    heads: Array
    outputs: Array
    products: tuple[Array, ...]
    scores: tuple[Array, ...]
    roundoff: float
    step: float


def sample_answers(
    graph: RunnableGraph, cores: Sequence[Core], counts: Sequence[int], order: str
) -> Answers:
    """Return answers for standard normal tokens; ``counts``: the number of heads of each core."""
    shapes = {role: graph.shape(role) for role in graph.tokens}
    taps = [tap for core in cores for tap in (core.heads, core.product, core.scores) if tap]
    heads, outputs, products, scores = [], [], [], []
    roundoff = 0.0
    for call in range(CALLS):
        generator = np.random.default_rng(call)
        tokens = {role: generator.standard_normal(shape) for role, shape in shapes.items()}
        result = graph.run(tokens, taps)
        outputs.append(graph.answer(result))
        sizes = shapes[graph.role_of("query")]
        heads.append(
            np.concatenate(
                [
                    _by_query(result[core.heads], core, (sizes[0], count, sizes[1]), order)
                    for core, count in zip(cores, counts, strict=True)
                ],
                axis=1,
            )
        )
        roundoff = float(np.finfo(result[cores[0].heads].dtype).eps)
        if all(core.product for core in cores):
            products.append(_row(result[core.product] for core in cores))
            scores.append(_row(result[core.scores] for core in cores))
    return Answers(
        heads=np.stack(heads),
        outputs=np.stack(outputs),
        products=tuple(products),
        scores=tuple(scores),
        roundoff=roundoff,
        step=2 / EIGHT_BITS if graph.coarse else 0.0,
    )


def _row(tensors: Any) -> Array:
    return np.concatenate([tensor.reshape(-1).astype(np.float64) for tensor in tensors])


def _by_query(heads: Array, core: Core, sizes: tuple[int, int, int], order: str) -> Array:
    """Return the tensor of heads as ``[B, H, Lq, Dv]``, for any order of its axes."""
    batch, num_heads, length = sizes
    packed = heads.ndim == len("BLM") and core.num_heads is not None
    if heads.size % (batch * num_heads * length):
        msg = f"the heads have the shape {heads.shape}, not {num_heads} heads for each query"
        raise UnreadableError(msg)
    ordered = np.moveaxis(heads, (core.heads_length, core.heads_feature), (-2, -1))
    ordered = ordered.astype(np.float64)
    if packed:
        return ordered.reshape(batch, length, num_heads, -1).transpose(0, 2, 1, 3)
    if ordered.shape[-2] != length:
        msg = f"the heads have {ordered.shape[-2]} rows, there are {length} queries"
        raise UnreadableError(msg)
    if order == "heads":
        return ordered.reshape(num_heads, batch, length, -1).transpose(1, 0, 2, 3)
    return ordered.reshape(batch, num_heads, length, -1)


BELOW: Final = "the graph puts the heads below one another, along the tokens"


def merges(heads: Array, rows: int) -> Iterator[tuple[str, Array]]:
    """Yield ``[calls, B, H, L, Dv]`` as ``[calls · B · L, H · Dv]``, with the fault of the way.

    ``rows``: those of an answer. If they are ``H · L``, the heads lie below one another: ``[calls ·
    B · H · L, Dv]``.
    """
    calls, batch, count, length, size = heads.shape
    if rows == count * length != length:
        yield BELOW, heads.reshape(calls * batch * rows, size)
    if rows != length:
        return
    shape = (calls * batch * length, count * size)
    yield "", heads.transpose(0, 1, 3, 2, 4).reshape(shape)
    if count > 1 and size > 1:
        fault = "the graph puts the heads' features in turn instead of head by head"
        yield fault, heads.transpose(0, 1, 3, 4, 2).reshape(shape)
    if count > 1 and length > 1:
        yield (
            "the graph merges the heads without moving them behind the queries",
            heads.reshape(shape),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Projected:
    """The output projection ``[Eo, H·Dv]``, its bias, and its factor in the answer.

    ``matrix`` None: the concatenated heads are the answer. ``fault``: the mistake in concatenating
    heads, "" if none. ``missed``: the difference of the answers.
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
        result = [
            projected
            for tensor in stored.values()
            for matrix in _candidates(tensor, merged.shape[1], outputs.shape[1])
            if (projected := _fitted(matrix, merged, outputs, answers, stored)) is not None
        ]
        if result:
            best = min(result, key=lambda projected: projected.missed)
            matrix = best.matrix
            if matrix is not None and fault == BELOW:
                # Every head meets the same matrix: its block of the layer's.
                matrix = np.tile(matrix, (1, answers.heads.shape[2]))
            return Projected(matrix=matrix, bias=best.bias, factor=best.factor, fault=fault)
    msg = "the answer is no stored matrix times the heads side by side"
    raise UnreadableError(msg)


def _candidates(tensor: Array, width: int, out: int) -> Iterator[Array]:
    """Yield a stored tensor as ``[out, width]``, for each axis that may be its output's."""
    if tensor.size != width * out or tensor.dtype.kind != "f" or tensor.ndim < len("EO"):
        return
    for axis in range(tensor.ndim):
        if tensor.shape[axis] == out:
            yield np.moveaxis(tensor, axis, 0).reshape(out, width)


def _fitted(
    matrix: Array, merged: Array, outputs: Array, answers: Answers, stored: Mapping[str, Array]
) -> Projected | None:
    """Return a matrix with bias and factor, None if it does not map heads to answers."""
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
    """Return the stored vector nearest to a bias within noise; None for a bias of zero.

    Raises UnreadableError where no stored vector comes near a nonzero bias.
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


FOLDED: Final = (
    "no factor between the graph's own weights and its logits: a scale that was folded into the "
    "weights cannot be declared from one that is missing"
)
# The share of scores that must agree on a factor, 1 in this many: the part an always causal graph
# leaves with more keys than queries, while wrong factors agree by chance in 1 of 50.
FEWEST: Final = 8
UNKNOWN: Final = "attention up to gauge; scale and head layout not verified"


def measured_factor(answers: Answers) -> float | None:
    """What lies between the product of query and key and the softmax, as a factor.

    Entries that a mask fills agree on no factor; a bias that depends on no token cancels between
    two calls. None where no factor explains enough of the entries.
    """
    if not answers.products:
        return None
    return _voted(answers.scores[0], answers.products[0], answers) or _voted(
        answers.scores[0] - answers.scores[1], answers.products[0] - answers.products[1], answers
    )


def _voted(scores: Array, products: Array, answers: Answers) -> float | None:
    if scores.size != products.size:
        return None
    scores, products = scores.reshape(-1), products.reshape(-1)
    live = np.isfinite(scores) & (np.abs(products) > np.sqrt(answers.roundoff))
    if not live.any():
        return None
    ratios = np.sort(scores[live] / products[live])
    ratios = ratios[ratios > 0]
    upper = ratios * (1 + 2 * ROUNDINGS * answers.roundoff)
    votes = np.searchsorted(ratios, upper, side="right") - np.arange(len(ratios))
    if not len(votes) or votes.max() * FEWEST < live.sum():
        return None
    first = int(votes.argmax())
    return float(np.median(ratios[first : first + votes[first]]))


def snapped(factor: float, head_size: int, roundoff: float) -> float:
    """Round a measured factor to exactly 1 or ``1/sqrt(D)`` if within rounding errors."""
    for exact in (1 / math.sqrt(head_size), 1.0):
        if abs(factor - exact) <= 2 * ROUNDINGS * roundoff * exact:
            return exact
    return factor


def gauge_of(scale: float | None, head_size: int) -> str:
    """Describe what is not verified of the scale between the graph's weights and its logits."""
    if scale is None:
        return "the factor between projections and logits was not found: scale not verified"
    return FOLDED if scale == 1.0 and head_size > 1 else ""
