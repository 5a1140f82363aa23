"""Answers to random tokens with the core's tensors, laid out alike: heads by item and query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .core import Core
from .questions import Questions
from .unreadable import UnreadableError

Array = np.ndarray[Any, Any]

# Calls: several, since a graph may be fixed at one item of one token.
CALLS: Final = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """What the graph made of random tokens.

    heads
        ``[N, H, Dv]``, the weighted means of every query that was asked.
    outputs
        ``[N, Eo]``, the answers to the same queries.
    products, scores
        The core's tensors before and after what happens between product and softmax, a call each;
        empty where the core is a single node.
    roundoff
        The distance from 1 to the next number of the graph's dtype.
    """

    heads: Array
    outputs: Array
    products: tuple[Array, ...]
    scores: tuple[Array, ...]
    roundoff: float


def ask(questions: Questions, core: Core, num_heads: int, order: str) -> Answers:
    """Answers for tokens of standard normal size."""
    shapes = {role: questions.shape(role) for role in questions.tokens}
    heads, outputs, products, scores = [], [], [], []
    inside = (core.product, core.scores) if core.product else ()
    roundoff = 0.0
    for call in range(CALLS):
        generator = np.random.default_rng(call)
        tokens = {role: generator.standard_normal(shape) for role, shape in shapes.items()}
        found = questions.ask(tokens, (core.heads, *inside))
        answer = questions.answer(found)
        batch, length, width = answer.shape
        outputs.append(answer.reshape(-1, width))
        heads.append(_by_query(found[core.heads], core, (batch, num_heads, length), order))
        roundoff = float(np.finfo(found[core.heads].dtype).eps)
        if inside:
            products.append(found[core.product].astype(np.float64))
            scores.append(found[core.scores].astype(np.float64))
    return Answers(
        heads=np.concatenate(heads),
        outputs=np.concatenate(outputs),
        products=tuple(products),
        scores=tuple(scores),
        roundoff=roundoff,
    )


def _by_query(heads: Array, core: Core, sizes: tuple[int, int, int], order: str) -> Array:
    """``[B · Lq, H, Dv]`` of the tensor of heads, whatever the order of its axes."""
    batch, num_heads, length = sizes
    length_axis, feature_axis = core.heads_length % heads.ndim, core.heads_feature % heads.ndim
    packed = heads.ndim == len("BLM") and core.num_heads is not None
    if heads.size % (batch * num_heads * length):
        msg = f"the heads have the shape {heads.shape}, not {num_heads} heads for each query"
        raise UnreadableError(msg)
    ordered = np.moveaxis(heads, (length_axis, feature_axis), (-2, -1)).astype(np.float64)
    if packed:
        return ordered.reshape(batch * length, num_heads, -1)
    if ordered.shape[-2] != length:
        msg = f"the heads have {ordered.shape[-2]} rows, the answer has {length}"
        raise UnreadableError(msg)
    if order == "heads":
        apart = ordered.reshape(num_heads, batch, length, -1).transpose(1, 2, 0, 3)
    else:
        apart = ordered.reshape(batch, num_heads, length, -1).transpose(0, 2, 1, 3)
    return apart.reshape(batch * length, num_heads, -1)
