"""Recovers the projections of a layer's graph: core, maps, stored values, output, factor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch

from ..._golden import golden
from ..opened import Stages
from ..protocol import Array
from .attention_core import Core
from .matching import Match, match_rows
from .probing import ROUNDINGS, AffineMap, RunnableGraph, affine_maps, spoken
from .projecting import (
    Answers,
    Projected,
    measured_factor,
    output_projection,
    sample_answers,
    snapped,
    stored_bias,
)
from .wiring import Node, UnreadableError, Wiring

# Inputs: the matrix, its zero point, and for fused nodes its scale before it.
_MATRIX: Final = 1
_ZERO_POINT: Final = 3
_FUSED_SCALE: Final = 2


def dequantised(wiring: Wiring, above: set[str]) -> dict[str, Array]:
    """The matrices of integer products above a tensor, in the dtype of their scales."""
    result: dict[str, Array] = {}
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
        result[node.input[_MATRIX]] = exact.astype(scale.dtype)
    return result


def _optional(wiring: Wiring, node: Node, place: int) -> Array:
    named = node.input[place] if len(node.input) > place else ""
    value = wiring.constant(named) if named else None
    return np.zeros((), dtype=np.int32) if value is None else value


def _scale_behind(wiring: Wiring, node: Node) -> Array | None:
    """Return the stored scale that finally multiplies the integer product."""
    name = node.output[0]
    while len(users := wiring.consumers[name]) == 1 and users[0].op_type in ("Cast", "Mul"):
        user = users[0]
        for other in user.input:
            if other != name and (scale := _stored_factor(wiring, other)) is not None:
                return scale
        name = user.output[0]
    return None


def _stored_factor(wiring: Wiring, name: str) -> Array | None:
    """Return a stored number or vector, or the stored factor in a product of scales."""
    direct = wiring.constant(name)
    if direct is not None:
        return direct
    node = wiring.producer.get(name)
    if node is None or node.op_type != "Mul":
        return None
    values = [wiring.constant(factor) for factor in node.input]
    return next((value for value in values if value is not None), None)


# A shorter vector is a size or a number, never a weight.
_SMALLEST = 2


def stored_above(wiring: Wiring, graph: RunnableGraph, name: str) -> dict[str, Array]:
    """Return the float tensors above a tensor that no input reaches, by name.

    Tensors the graph computes, for example by transposing, come from a run; tensors stored in 8
    bits are dequantised.
    """
    above = wiring.above(name)
    result = dequantised(wiring, above)
    computed = []
    for inner in sorted(above):
        if wiring.reached.get(inner):
            continue
        value = wiring.constant(inner)
        if value is None and _is_read_by_tokens(wiring, inner, above):
            computed.append(inner)
        elif value is not None and value.dtype.kind == "f" and value.size >= _SMALLEST:
            result[inner] = value
    if computed:
        values = graph.run({role: np.zeros(graph.shape(role)) for role in graph.tokens}, computed)
        result.update(
            {inner: values[inner] for inner in computed if values[inner].dtype.kind == "f"}
        )
    return result


def _is_read_by_tokens(wiring: Wiring, name: str, above: set[str]) -> bool:
    """Tell whether an input-free tensor meets tensors with inputs: a weight where it is used."""
    if wiring.producer.get(name) is None:
        return False
    return any(
        any(wiring.reached.get(made) and made in above for made in user.output)
        for user in wiring.consumers[name]
        if user.op_type not in ("Reshape", "Expand", "Slice", "Tile", "Gather", "Squeeze")
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection:
    """A stored projection ``[heads · D, E]`` with the graph's factor on it.

    fault: how the graph cuts heads in contradiction to the specification, "" if it does not.
    layout: set where heads are cut out of a fused matrix in an order only the graph shows.
    """

    matrix: Array
    bias: Array | None
    heads: int
    factor: float
    fault: str = ""
    layout: str = ""


def stored_projection(part: str, result: AffineMap, stored: Mapping[str, Array]) -> Projection:
    """The stored rows that a map is made of; raises UnreadableError."""
    for chosen, copied in _head_choices(part, result):
        size, width = result.matrix.shape[1:]
        rows, noise = (array[chosen].reshape(-1, width) for array in (result.matrix, result.noise))
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
        raw = result.bias[chosen].reshape(-1) / match.factor
        bias = _bias(raw, match, stored)
        if not result.order:
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


def _head_choices(part: str, result: AffineMap) -> list[tuple[Array, str]]:
    """Return the heads that may be stored: all, one of each run of copies, or one round."""
    count = len(result.matrix)
    choices = [(np.arange(count), "")]
    for group in range(2, count + 1):
        if count % group:
            continue
        heads = np.arange(count)
        if _are_copies(result, heads // group * group):
            choices.append((heads[::group], ""))
        elif _are_copies(result, heads % (count // group)):
            fault = f"the graph hands out the {part} heads in turn instead of in groups"
            choices.append((heads[: count // group], fault))
    return choices


def _are_copies(result: AffineMap, origin: Array) -> bool:
    return np.array_equal(result.matrix, result.matrix[origin]) and np.array_equal(
        result.bias, result.bias[origin]
    )


def _by_head(rows: Array, noise: Array, size: int, stored: Mapping[str, Array]) -> Match | None:
    """Match each head separately: every head may have a matrix of its own."""
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
        result = [
            _bias(raw[start : start + size], piece, stored)
            for start, piece in zip(range(0, len(raw), size), match.pieces, strict=True)
        ]
        if all(piece is None for piece in result):
            return None
        empty = np.zeros(size, dtype=match.rows.dtype)
        return np.concatenate([empty if piece is None else piece for piece in result])
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


PARTS: Final = ("query", "key", "value")


def node_values(wiring: Wiring, core: Core) -> dict[str, Array]:
    """What a node adds or multiplies by itself, in parts: ``query bias`` and the like."""
    result: dict[str, Array] = {}
    for kind, name in (("bias", core.bias), ("matrix", core.matrix)):
        stored = wiring.constant(name) if name else None
        if name and stored is None:
            msg = f"{name}, the {kind} of the attention node, is no stored tensor"
            raise UnreadableError(msg)
        if stored is None:
            continue
        widths = core.widths or (stored.shape[-1] // len(PARTS),) * len(PARTS)
        pieces = np.split(stored, list(accumulate(widths))[:-1], axis=-1)
        result |= {f"{part} {kind}": piece for part, piece in zip(PARTS, pieces, strict=True)}
    return result


def with_bias(result: AffineMap, bias: Array | None) -> AffineMap:
    """Add a node's own bias to a map."""
    if bias is None:
        return result
    added = bias.astype(np.float64).reshape(result.bias.shape)
    return replace(result, bias=result.bias + added)


def map_inside(part: str, core: Core, values: dict[str, Array]) -> AffineMap:
    """Return the map of a node projecting tokens itself: its matrix is ``[E, H·D]``."""
    matrix = values[f"{part} matrix"]
    heads = core.num_heads or 1
    rows = matrix.astype(np.float64).T.reshape(heads, -1, len(matrix))
    noise = ROUNDINGS * float(np.finfo(matrix.dtype).eps) * np.abs(rows)
    plain = AffineMap(matrix=rows, bias=np.zeros(rows.shape[:2]), noise=noise, order="items")
    return with_bias(plain, values.get(f"{part} bias"))


def role_behind(wiring: Wiring, graph: RunnableGraph, part: str, tensor: str) -> str:
    """The role of the tokens behind the heads of a part; raises UnreadableError for several."""
    wanted = graph.role_of(spoken(part))
    names = {role.name: result for result, role in graph.tokens.items()}
    reaching = {names[name] for name in wiring.reaching(tensor, frozenset(names))}
    if wanted in reaching:
        return wanted
    if len(reaching) != 1:
        msg = f"the {spoken(part)} heads are made of {len(reaching)} inputs"
        raise UnreadableError(msg)
    result = reaching.pop()
    if graph.shape(result)[-1] != graph.shape(wanted)[-1]:
        msg = (
            f"the {spoken(part)} heads are made of {result}, which has another width than {wanted}"
        )
        raise UnreadableError(msg)
    return result


def mixed_up(wiring: Wiring, graph: RunnableGraph, cores: Sequence[Core]) -> list[str]:
    """Return a sentence for each part computed from the wrong tokens."""
    result = []
    for part in PARTS:
        wanted = graph.role_of(part)
        roles = {role_behind(wiring, graph, part, getattr(core, part).name) for core in cores} - {
            wanted
        }
        if roles:
            result.append(f"the graph makes the {part} heads of the tokens of {roles.pop()}")
    return result


@dataclass(frozen=True, kw_only=True, eq=False)
class Recovered:
    """The projections of a graph as stored.

    scale: the factor between them and the logits, None if unknown.
    layout: the part of the head layout only the graph shows; "" if the file's rows show it.
    """

    weights: golden.ProjectionWeights
    num_heads: int
    num_kv_heads: int
    scale: float | None
    layout: str
    roundoff: float
    assumptions: tuple[str, ...] = ()


def stages_of(cores: Sequence[Core]) -> Stages:
    """Return the names of a core's tensors; with one core for each head there are no stages."""
    if len(cores) != 1:
        return Stages()
    core = cores[0]
    return Stages(
        query=core.query.name,
        key=core.key.name,
        value=core.value.name,
        scores=core.scores,
        weights=core.weights,
        heads=core.heads,
    )


def recover(wiring: Wiring, graph: RunnableGraph, cores: Sequence[Core]) -> Recovered:
    """The stored projections around the cores, side by side; raises UnreadableError."""
    maps = _maps(wiring, graph, cores)
    order = _order(maps)
    inputs = {part: _projection(wiring, graph, cores, part, maps[part]) for part in PARTS}
    if inputs["value"].heads != inputs["key"].heads:
        msg = f"{inputs['key'].heads} key heads, but {inputs['value'].heads} value heads"
        raise UnreadableError(msg)
    counts = [len(result.matrix) for result in maps["query"]]
    answers = sample_answers(graph, cores, counts, order)
    after = stored_above(wiring, graph, graph.reading.output.name)
    before = set[str]().union(*(wiring.above(core.heads) for core in cores))
    output = output_projection(
        answers, {name: value for name, value in after.items() if name not in before}
    )
    return Recovered(
        weights=_weights(inputs, output),
        num_heads=sum(counts),
        num_kv_heads=inputs["key"].heads,
        scale=_scale(cores, inputs, answers, maps["query"][0].matrix.shape[1]),
        layout="; ".join(filter(None, (result.layout for result in inputs.values()))),
        roundoff=answers.roundoff,
        assumptions=(*mixed_up(wiring, graph, cores), *_faults(inputs, output, answers)),
    )


def _maps(
    wiring: Wiring, graph: RunnableGraph, cores: Sequence[Core]
) -> dict[str, list[AffineMap]]:
    """Return each part's maps, one a core, including a node's own factor and bias."""
    inside = [node_values(wiring, core) for core in cores]
    if cores[0].matrix:
        if cores[0].query.name not in {role.name for role in graph.tokens.values()}:
            msg = "the input of the attention node is not that of the graph"
            raise UnreadableError(msg)
        return {part: [map_inside(part, cores[0], inside[0])] for part in PARTS}
    pairs = [(part, number) for number in range(len(cores)) for part in PARTS]
    operands = {f"{part} {number}": getattr(cores[number], part) for part, number in pairs}
    heads = {f"{part} {number}": cores[number].head_counts[part] for part, number in pairs}
    roles = {key: role_behind(wiring, graph, key, tap.name) for key, tap in operands.items()}
    probed = affine_maps(graph, operands, heads, roles)
    return {
        part: [
            with_bias(probed[f"{part} {number}"], values.get(f"{part} bias"))
            for number, values in enumerate(inside)
        ]
        for part in PARTS
    }


def _order(maps: Mapping[str, Sequence[AffineMap]]) -> str:
    """Return the common order of items and heads; raises UnreadableError if orders differ."""
    orders = {result.order for part in maps.values() for result in part} - {""}
    if len(orders) > 1:
        msg = "items and heads lie in another order for query, key and value"
        raise UnreadableError(msg)
    return orders.pop() if orders else "items"


def _projection(
    wiring: Wiring,
    graph: RunnableGraph,
    cores: Sequence[Core],
    part: str,
    maps: Sequence[AffineMap],
) -> Projection:
    stored: dict[str, Array] = {}
    for core in cores:
        stored |= stored_above(wiring, graph, getattr(core, part).name)
        stored |= {
            name: value
            for name, value in node_values(wiring, core).items()
            if name.startswith(part)
        }
    whole = AffineMap(
        matrix=np.concatenate([result.matrix for result in maps]),
        bias=np.concatenate([result.bias for result in maps]),
        noise=np.concatenate([result.noise for result in maps]),
        order=maps[0].order,
    )
    return stored_projection(part, whole, stored)


def _scale(
    cores: Sequence[Core], inputs: Mapping[str, Projection], answers: Answers, head_size: int
) -> float | None:
    own = cores[0].scale or 1 / math.sqrt(head_size)
    between = measured_factor(answers) if cores[0].product else own
    if between is None:
        return None
    total = cores[0].product_factor * between * inputs["query"].factor * inputs["key"].factor
    return snapped(total, head_size, answers.roundoff)


def _weights(inputs: Mapping[str, Projection], output: Projected) -> golden.ProjectionWeights:
    result: dict[str, Any] = {"o": _tensor(output.matrix), "o_bias": _tensor(output.bias)}
    for part, projection in inputs.items():
        result[part[0]] = _tensor(projection.matrix)
        result[f"{part[0]}_bias"] = _tensor(projection.bias)
    return golden.ProjectionWeights(**result)


def _faults(inputs: Mapping[str, Projection], output: Projected, answers: Answers) -> list[str]:
    """Describe the graph's deviations from the specification, to explain its verdict."""
    faults = [result.fault for result in inputs.values() if result.fault]
    if output.fault:
        faults.append(output.fault)
    factor = inputs["value"].factor * output.factor
    if abs(factor - 1) > ROUNDINGS * answers.roundoff + answers.step:
        faults.append(f"the graph multiplies values or answers by {factor:.4g}")
    return faults


def _tensor(array: Array | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(np.ascontiguousarray(array).copy())
