"""Recovers the projections of a layer's graph: core, maps, stored values, output, factor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..._golden import golden
from ..weighing import Stages
from .answers import ask
from .constants import stored_above
from .core import Core, softmax_cores
from .matching import Match, match_rows
from .operators import node_cores
from .probing import ROUNDINGS, AffineMap, affine_maps
from .projecting import output_projection, stored_bias
from .questions import Questions
from .scaling import measured_factor, snapped
from .unreadable import UnreadableError
from .wiring import Wiring

Array = np.ndarray[Any, Any]
PARTS = ("query", "key", "value")


@dataclass(frozen=True, kw_only=True, eq=False)
class Recovered:
    """The projections of a graph as it stores them."""

    weights: golden.ProjectionWeights
    num_heads: int
    num_kv_heads: int
    scale: float | None
    assumptions: tuple[str, ...] = field(default=())


def find_core(wiring: Wiring, questions: Questions) -> Core:
    """The one attention of a graph; raises UnreadableError."""
    tokens = frozenset(role.name for role in questions.tokens.values())
    output = questions.reading.output.name
    cores = [*node_cores(wiring, tokens, output), *softmax_cores(wiring, tokens, output)]
    if not cores:
        msg = "no softmax and no attention node lies between the tokens and the answer"
        raise UnreadableError(msg)
    if len(cores) > 1:
        msg = f"{len(cores)} attentions follow one another or run side by side in the graph"
        raise UnreadableError(msg)
    return cores[0]


def stages_of(core: Core) -> Stages:
    """The names of a core's tensors."""
    return Stages(
        query=core.query.name,
        key=core.key.name,
        value=core.value.name,
        scores=core.scores,
        weights=core.weights,
        heads=core.heads,
    )


def recover(wiring: Wiring, questions: Questions, core: Core) -> Recovered:
    """The stored projections around a core; raises UnreadableError."""
    operands = {"query": core.query, "key": core.key, "value": core.value}
    maps = affine_maps(questions, operands, core.head_counts)
    if len({found.order for found in maps.values()}) > 1:
        msg = "items and heads lie in another order for query, key and value"
        raise UnreadableError(msg)
    projections = {
        part: _projection(part, maps[part], stored_above(wiring, questions, operands[part].name))
        for part in PARTS
    }
    num_heads, num_kv_heads = maps["query"].matrix.shape[0], projections["key"].heads
    if projections["value"].heads != num_kv_heads:
        msg = f"{num_kv_heads} key heads, but {projections['value'].heads} value heads"
        raise UnreadableError(msg)
    answers = ask(questions, core, num_heads, maps["query"].order)
    after = stored_above(wiring, questions, questions.reading.output.name)
    before = wiring.above(core.heads)
    output = output_projection(
        answers, {name: value for name, value in after.items() if name not in before}
    )
    head_size = maps["query"].matrix.shape[1]
    own = core.scale or 1 / math.sqrt(head_size)
    between = measured_factor(answers) if core.product else own
    scale = None
    if between is not None:
        total = between * projections["query"].factor * projections["key"].factor
        scale = snapped(total, head_size, answers.roundoff)
    weights = golden.ProjectionWeights(
        q=_tensor(projections["query"].matrix),
        k=_tensor(projections["key"].matrix),
        v=_tensor(projections["value"].matrix),
        o=None if output.matrix is None else _tensor(output.matrix),
        q_bias=_optional(projections["query"].bias),
        k_bias=_optional(projections["key"].bias),
        v_bias=_optional(projections["value"].bias),
        o_bias=_optional(output.bias),
    )
    return Recovered(weights=weights, num_heads=num_heads, num_kv_heads=num_kv_heads, scale=scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Projection:
    """A stored projection ``[heads · D, E]`` with what the graph multiplies it by."""

    matrix: Array
    bias: Array | None
    heads: int
    factor: float


def _projection(part: str, found: AffineMap, stored: Mapping[str, Array]) -> _Projection:
    for heads in _head_counts(found):
        step = len(found.matrix) // heads
        matrix, noise = found.matrix[::step], found.noise[::step]
        width = matrix.shape[-1]
        match = match_rows(matrix.reshape(-1, width), noise.reshape(-1, width), stored)
        if match is not None and np.all(np.diff(match.index) > 0):
            bias = _bias(found.bias[::step].reshape(-1), match, stored)
            return _Projection(matrix=match.rows, bias=bias, heads=heads, factor=match.factor)
    msg = f"the {part} projection is none that the graph stores"
    raise UnreadableError(msg)


def _head_counts(found: AffineMap) -> list[int]:
    """How many heads may be stored: all, or one for each run of equal ones."""
    count = len(found.matrix)
    groups = [size for size in range(1, count + 1) if count % size == 0]
    return [
        count // size
        for size in groups
        if size == 1
        or (
            np.array_equal(found.matrix, found.matrix[::size].repeat(size, axis=0))
            and np.array_equal(found.bias, found.bias[::size].repeat(size, axis=0))
        )
    ]


def _bias(bias: Array, match: Match, stored: Mapping[str, Array]) -> Array | None:
    raw = bias / match.factor
    noise = ROUNDINGS * float(np.finfo(match.rows.dtype).eps) * np.abs(raw)
    pieces: dict[str, Array] = {}
    for name, vector in stored.items():
        if vector.size == raw.size:
            pieces[name] = vector
        elif vector.size == match.stored and max(vector.shape, default=0) == vector.size:
            pieces[name] = vector.reshape(-1)[match.index]
        elif max(vector.shape, default=0) == vector.size > raw.size:
            for start in range(0, vector.size - raw.size + 1, raw.size):
                pieces[f"{name}[{start}]"] = vector.reshape(-1)[start : start + raw.size]
    return stored_bias(raw, noise, pieces)


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array).copy())


def _optional(array: Array | None) -> torch.Tensor | None:
    return None if array is None else _tensor(array)
