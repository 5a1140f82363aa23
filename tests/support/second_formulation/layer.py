"""The multi-head layer: each projected number, head and merged channel computed by its index."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .core import Answer, Problem, Sizes, attention, nested
from .numbers import Number, dot, number


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """``(out, in)`` matrices and biases as lists."""

    q: list[Any]
    k: list[Any]
    v: list[Any]
    o: list[Any] | None = None
    q_bias: list[Any] | None = None
    k_bias: list[Any] | None = None
    v_bias: list[Any] | None = None
    o_bias: list[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class LayerProblem:
    """``core`` holds the tokens ``[B][L][E]`` in place of heads, with masks and the rest."""

    core: Problem
    matrices: Matrices


@dataclass(frozen=True, kw_only=True)
class LayerAnswer:
    """The core's answer, the heads side by side, and the layer's output."""

    core: Answer
    merged: list[Any]
    output: list[Any]


def layer(problem: LayerProblem, point: Any) -> LayerAnswer:
    """Evaluate the layer at a point of ``Semantics``."""
    core_problem, matrices, sizes = problem.core, problem.matrices, problem.core.sizes
    query = _project(core_problem.query, matrices.q, matrices.q_bias if point.query_bias else None)
    key = _project(core_problem.key, matrices.k, matrices.k_bias if point.key_bias else None)
    value = _project(core_problem.value, matrices.v, matrices.v_bias if point.value_bias else None)
    kv_heads, queries, keys = sizes.num_kv_heads, sizes.query_length, sizes.key_length
    heads = dataclasses.replace(
        core_problem,
        query=_split(query, sizes.num_heads, queries, sizes.head_size, point),
        key=_split(key, kv_heads, keys, sizes.head_size, point),
        value=_split(value, kv_heads, keys, sizes.value_head_size, point),
    )
    core = attention(heads, point)
    merged = _merge(core.output, sizes, point)
    output = merged
    if matrices.o is not None:
        width = sizes.value_head_size * (1 if point.head_merge == "tokens" else sizes.num_heads)
        block = [row[:width] for row in matrices.o]
        output = _project(merged, block, matrices.o_bias if point.output_bias else None)
    return LayerAnswer(core=core, merged=merged, output=output)


def _project(tokens: list[Any], matrix: list[Any], bias: list[Any] | None) -> list[Any]:
    return [[[_channel(t, matrix, bias, n) for n in range(len(matrix))] for t in b] for b in tokens]


def _channel(token: list[Any], matrix: list[Any], bias: list[Any] | None, n: int) -> Number:
    product = dot([number(x) for x in token], [number(w) for w in matrix[n]])
    return product if bias is None else product + number(bias[n])


def _split(tokens: list[Any], heads: int, length: int, size: int, point: Any) -> list[Any]:
    def entry(b: int, h: int, t: int, d: int) -> Number:
        token, channel = t, h * size + d
        if point.head_split == "interleaved":
            channel = d * heads + h
        elif point.head_split == "reinterpret":
            token, channel = divmod((h * length + t) * size + d, heads * size)
        element: Number = tokens[b][token][channel]
        return element

    return nested((len(tokens), heads, length, size), entry)  # type: ignore[no-any-return]


def _merge(heads: list[Any], sizes: Sizes, point: Any) -> list[Any]:
    count, length, size = sizes.num_heads, sizes.query_length, sizes.value_head_size

    def entry(b: int, t: int, channel: int) -> Number:
        if point.head_merge == "tokens":
            h, token, c = t // length, t % length, channel
        elif point.head_merge == "interleaved":
            h, token, c = channel % count, t, channel // count
        elif point.head_merge == "reinterpret":
            flat = t * count * size + channel
            h, token, c = flat // (length * size), flat // size % length, flat % size
        else:
            h, token, c = channel // size, t, channel % size
        element: Number = heads[b][h][token][c]
        return element

    if point.head_merge == "tokens":
        return nested((sizes.batch, count * length, size), entry)  # type: ignore[no-any-return]
    return nested((sizes.batch, length, count * size), entry)  # type: ignore[no-any-return]
