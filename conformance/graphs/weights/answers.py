"""Answers to random tokens with the core's tensors, laid out alike: heads by item and query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .core import Core
from .probing import EIGHT_BITS
from .questions import Questions
from .wiring import UnreadableError

Array = np.ndarray[Any, Any]

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


def ask(questions: Questions, cores: Sequence[Core], counts: Sequence[int], order: str) -> Answers:
    """Answers for tokens of standard normal size; ``counts``: how many heads each core has."""
    shapes = {role: questions.shape(role) for role in questions.tokens}
    taps = [tap for core in cores for tap in (core.heads, core.product, core.scores) if tap]
    heads, outputs, products, scores = [], [], [], []
    roundoff = 0.0
    for call in range(CALLS):
        generator = np.random.default_rng(call)
        tokens = {role: generator.standard_normal(shape) for role, shape in shapes.items()}
        found = questions.ask(tokens, taps)
        outputs.append(questions.answer(found))
        sizes = shapes[questions.role_of("query")]
        heads.append(
            np.concatenate(
                [
                    _by_query(found[core.heads], core, (sizes[0], count, sizes[1]), order)
                    for core, count in zip(cores, counts, strict=True)
                ],
                axis=1,
            )
        )
        roundoff = float(np.finfo(found[cores[0].heads].dtype).eps)
        if all(core.product for core in cores):
            products.append(_row(found[core.product] for core in cores))
            scores.append(_row(found[core.scores] for core in cores))
    return Answers(
        heads=np.stack(heads),
        outputs=np.stack(outputs),
        products=tuple(products),
        scores=tuple(scores),
        roundoff=roundoff,
        step=2 / EIGHT_BITS if questions.coarse else 0.0,
    )


def _row(tensors: Any) -> Array:
    return np.concatenate([tensor.reshape(-1).astype(np.float64) for tensor in tensors])


def _by_query(heads: Array, core: Core, sizes: tuple[int, int, int], order: str) -> Array:
    """``[B, H, Lq, Dv]`` of the tensor of heads, whatever the order of its axes."""
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
