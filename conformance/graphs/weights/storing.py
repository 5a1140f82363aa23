"""Which stored rows a probed projection is, which of its heads are copies, and its bias."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .matching import Match, match_rows
from .probing import ROUNDINGS, AffineMap
from .projecting import stored_bias
from .questions import Questions
from .wiring import Node, UnreadableError, Wiring

Array = np.ndarray[Any, Any]

# Inputs: the matrix, its zero point, and for fused nodes its scale before it.
_MATRIX: Final = 1
_ZERO_POINT: Final = 3
_FUSED_SCALE: Final = 2


def dequantised(wiring: Wiring, above: set[str]) -> dict[str, Array]:
    """The matrices of integer products above a tensor, in the dtype of their scales."""
    found: dict[str, Array] = {}
    for node in wiring.graph.node:
        if not any(name in above for name in node.output):
            continue
        scale = None
        if node.op_type == "MatMulInteger":
            scale = _scale_behind(wiring, node)
        elif node.op_type == "DynamicQuantizeMatMul":
            scale = wiring.constant(node.input[_FUSED_SCALE])
        stored = wiring.constant(node.input[_MATRIX]) if scale is not None else None
        if stored is None or scale is None:
            continue
        zero = _optional(wiring, node, _ZERO_POINT)
        exact = (stored.astype(np.int32) - zero.astype(np.int32)) * scale.astype(np.float64)
        found[node.input[_MATRIX]] = exact.astype(scale.dtype)
    return found


def _optional(wiring: Wiring, node: Node, place: int) -> Array:
    named = node.input[place] if len(node.input) > place else ""
    value = wiring.constant(named) if named else None
    return np.zeros((), dtype=np.int32) if value is None else value


def _scale_behind(wiring: Wiring, node: Node) -> Array | None:
    """The stored scale that the integer product is multiplied by in the end."""
    name = node.output[0]
    while len(users := wiring.consumers[name]) == 1 and users[0].op_type in ("Cast", "Mul"):
        user = users[0]
        for other in user.input:
            if other != name and (scale := _stored_factor(wiring, other)) is not None:
                return scale
        name = user.output[0]
    return None


def _stored_factor(wiring: Wiring, name: str) -> Array | None:
    """A stored number or vector, or the one that a product of scales is made of."""
    direct = wiring.constant(name)
    if direct is not None:
        return direct
    node = wiring.producer.get(name)
    if node is None or node.op_type != "Mul":
        return None
    values = [wiring.constant(factor) for factor in node.input]
    return next((value for value in values if value is not None), None)


# A vector that is shorter is a size or a number, never a weight.
_SMALLEST = 2


def stored_above(wiring: Wiring, questions: Questions, name: str) -> dict[str, Array]:
    """The float tensors that a tensor is computed from and no input reaches, by name.

    Those that the graph computes, a transposed matrix for one, are asked of it; those that it
    stores in 8 bits are dequantised.
    """
    above = wiring.above(name)
    found = dequantised(wiring, above)
    computed = []
    for inner in sorted(above):
        if wiring.reached.get(inner):
            continue
        value = wiring.constant(inner)
        if value is None and _is_read_by_tokens(wiring, inner, above):
            computed.append(inner)
        elif value is not None and value.dtype.kind == "f" and value.size >= _SMALLEST:
            found[inner] = value
    if computed:
        asked = questions.ask(
            {role: np.zeros(questions.shape(role)) for role in questions.tokens}, computed
        )
        found.update({inner: asked[inner] for inner in computed if asked[inner].dtype.kind == "f"})
    return found


def _is_read_by_tokens(wiring: Wiring, name: str, above: set[str]) -> bool:
    """Whether a tensor without inputs meets something with inputs: a weight where it is used."""
    if wiring.producer.get(name) is None:
        return False
    return any(
        any(wiring.reached.get(made) and made in above for made in user.output)
        for user in wiring.consumers[name]
        if user.op_type not in ("Reshape", "Expand", "Slice", "Tile", "Gather", "Squeeze")
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection:
    """A stored projection ``[heads · D, E]`` with what the graph multiplies it by.

    fault
        How the graph cuts heads otherwise than the specification, "" where it does not.
    layout
        Where heads are cut out of a fused matrix in an order that only the graph knows.
    """

    matrix: Array
    bias: Array | None
    heads: int
    factor: float
    fault: str = ""
    layout: str = ""


def stored_projection(part: str, found: AffineMap, stored: Mapping[str, Array]) -> Projection:
    """The stored rows that a map is made of; raises UnreadableError."""
    for chosen, copied in _head_choices(part, found):
        size, width = found.matrix.shape[1:]
        rows, noise = (array[chosen].reshape(-1, width) for array in (found.matrix, found.noise))
        match = match_rows(rows, noise, stored) or _by_head(rows, noise, size, stored)
        if match is None:
            continue
        order, layout, fault = np.arange(len(rows)), "", copied
        if np.any(np.diff(match.index) <= 0):
            if len(set(match.index.tolist())) < len(rows):
                continue
            if match.stored == len(rows):
                order = np.argsort(match.index)
                fault = f"the graph cuts the {part} heads out of the matrix in another order"
            else:
                layout = f"the order of the {part} rows in {match.source} is taken from the graph"
        raw = found.bias[chosen].reshape(-1) / match.factor
        bias = _bias(raw, match, stored)
        if not found.order:
            fault = f"the graph does not cut the {part} heads out of each token's own row"
        return Projection(
            matrix=match.rows[order],
            bias=None if bias is None else bias[order],
            heads=len(chosen),
            factor=match.factor,
            fault=fault,
            layout=layout,
        )
    msg = f"the {part} projection is none that the graph stores"
    raise UnreadableError(msg)


def _head_choices(part: str, found: AffineMap) -> list[tuple[Array, str]]:
    """The heads that may be stored: all, one of each run of copies, or one round of them."""
    count = len(found.matrix)
    choices = [(np.arange(count), "")]
    for group in range(2, count + 1):
        if count % group:
            continue
        heads = np.arange(count)
        if _are_copies(found, heads // group * group):
            choices.append((heads[::group], ""))
        elif _are_copies(found, heads % (count // group)):
            fault = f"the graph hands out the {part} heads in turn instead of in groups"
            choices.append((heads[: count // group], fault))
    return choices


def _are_copies(found: AffineMap, origin: Array) -> bool:
    return np.array_equal(found.matrix, found.matrix[origin]) and np.array_equal(
        found.bias, found.bias[origin]
    )


def _by_head(rows: Array, noise: Array, size: int, stored: Mapping[str, Array]) -> Match | None:
    """Each head found on its own, as where every head has a matrix of its own."""
    pieces = []
    for start in range(0, len(rows), size):
        piece = match_rows(rows[start : start + size], noise[start : start + size], stored)
        if piece is None:
            return None
        pieces.append(piece)
    factors = np.asarray([piece.factor for piece in pieces])
    spread = ROUNDINGS * float(np.finfo(pieces[0].rows.dtype).eps)
    if len(pieces) == 1 or np.ptp(factors) > spread * factors.max():
        return None
    return Match(
        source=pieces[0].source,
        rows=np.concatenate([piece.rows for piece in pieces]),
        index=np.arange(len(rows)),
        stored=len(rows),
        factor=float(factors.mean()),
        pieces=tuple(pieces),
    )


def _bias(raw: Array, match: Match, stored: Mapping[str, Array]) -> Array | None:
    if match.pieces:
        size = len(raw) // len(match.pieces)
        found = [
            _bias(raw[start : start + size], piece, stored)
            for start, piece in zip(range(0, len(raw), size), match.pieces, strict=True)
        ]
        if all(piece is None for piece in found):
            return None
        empty = np.zeros(size, dtype=match.rows.dtype)
        return np.concatenate([empty if piece is None else piece for piece in found])
    noise = ROUNDINGS * float(np.finfo(match.rows.dtype).eps) * np.abs(raw)
    candidates: dict[str, Array] = {}
    for name, vector in stored.items():
        if vector.size == raw.size:
            candidates[name] = vector
            if match.stored == raw.size:
                candidates[f"{name} in order"] = vector.reshape(-1)[match.index]
        elif max(vector.shape, default=0) == vector.size > raw.size:
            if vector.size == match.stored:
                candidates[name] = vector.reshape(-1)[match.index]
            for start in range(0, vector.size - raw.size + 1, raw.size):
                candidates[f"{name}[{start}]"] = vector.reshape(-1)[start : start + raw.size]
    return stored_bias(raw, noise, candidates)
