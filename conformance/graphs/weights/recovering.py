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
from .answers import Answers, ask
from .core import Core
from .probing import ROUNDINGS, AffineMap, affine_maps, spoken
from .projecting import Projected, output_projection
from .questions import Questions
from .scaling import measured_factor, snapped
from .storing import Projection, stored_above, stored_projection
from .wiring import UnreadableError, Wiring

Array = np.ndarray[Any, Any]
PARTS: Final = ("query", "key", "value")


def node_values(wiring: Wiring, core: Core) -> dict[str, Array]:
    """What a node adds or multiplies by itself, in parts: ``query bias`` and the like."""
    found: dict[str, Array] = {}
    for kind, name in (("bias", core.bias), ("matrix", core.matrix)):
        stored = wiring.constant(name) if name else None
        if name and stored is None:
            msg = f"{name}, the {kind} of the attention node, is no stored tensor"
            raise UnreadableError(msg)
        if stored is None:
            continue
        widths = core.widths or (stored.shape[-1] // len(PARTS),) * len(PARTS)
        pieces = np.split(stored, list(accumulate(widths))[:-1], axis=-1)
        found |= {f"{part} {kind}": piece for part, piece in zip(PARTS, pieces, strict=True)}
    return found


def with_bias(found: AffineMap, bias: Array | None) -> AffineMap:
    """A map with what the node adds to it behind."""
    if bias is None:
        return found
    added = bias.astype(np.float64).reshape(found.bias.shape)
    return replace(found, bias=found.bias + added)


def map_inside(part: str, core: Core, values: dict[str, Array]) -> AffineMap:
    """The map of a node that projects tokens itself: its matrix is ``[E, H·D]``."""
    matrix = values[f"{part} matrix"]
    heads = core.num_heads or 1
    rows = matrix.astype(np.float64).T.reshape(heads, -1, len(matrix))
    noise = ROUNDINGS * float(np.finfo(matrix.dtype).eps) * np.abs(rows)
    plain = AffineMap(matrix=rows, bias=np.zeros(rows.shape[:2]), noise=noise, order="items")
    return with_bias(plain, values.get(f"{part} bias"))


def role_behind(wiring: Wiring, questions: Questions, part: str, tensor: str) -> str:
    """The role of the tokens behind the heads of a part; raises UnreadableError for several."""
    wanted = questions.role_of(spoken(part))
    names = {role.name: found for found, role in questions.tokens.items()}
    reaching = {names[name] for name in wiring.reaching(tensor, frozenset(names))}
    if wanted in reaching:
        return wanted
    if len(reaching) != 1:
        msg = f"the {spoken(part)} heads are made of {len(reaching)} inputs"
        raise UnreadableError(msg)
    found = reaching.pop()
    if questions.shape(found)[-1] != questions.shape(wanted)[-1]:
        msg = f"the {spoken(part)} heads are made of {found}, which has another width than {wanted}"
        raise UnreadableError(msg)
    return found


def mixed_up(wiring: Wiring, questions: Questions, cores: Sequence[Core]) -> list[str]:
    """A sentence for each part that the graph makes of other tokens than it should."""
    found = []
    for part in PARTS:
        wanted = questions.role_of(part)
        roles = {
            role_behind(wiring, questions, part, getattr(core, part).name) for core in cores
        } - {wanted}
        if roles:
            found.append(f"the graph makes the {part} heads of the tokens of {roles.pop()}")
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Recovered:
    """The projections of a graph as it stores them.

    scale
        The factor between them and the logits, None where it was not found.
    layout
        What of the head layout only the graph itself says; "" where the file's rows say it.
    """

    weights: golden.ProjectionWeights
    num_heads: int
    num_kv_heads: int
    scale: float | None
    layout: str
    roundoff: float
    assumptions: tuple[str, ...] = ()


def stages_of(cores: Sequence[Core]) -> Stages:
    """The names of the core's tensors; those of one head of several are no stage."""
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


def recover(wiring: Wiring, questions: Questions, cores: Sequence[Core]) -> Recovered:
    """The stored projections around the cores, side by side; raises UnreadableError."""
    maps = _maps(wiring, questions, cores)
    order = _order(maps)
    inputs = {part: _projection(wiring, questions, cores, part, maps[part]) for part in PARTS}
    if inputs["value"].heads != inputs["key"].heads:
        msg = f"{inputs['key'].heads} key heads, but {inputs['value'].heads} value heads"
        raise UnreadableError(msg)
    counts = [len(found.matrix) for found in maps["query"]]
    answers = ask(questions, cores, counts, order)
    after = stored_above(wiring, questions, questions.reading.output.name)
    before = set[str]().union(*(wiring.above(core.heads) for core in cores))
    output = output_projection(
        answers, {name: value for name, value in after.items() if name not in before}
    )
    return Recovered(
        weights=_weights(inputs, output),
        num_heads=sum(counts),
        num_kv_heads=inputs["key"].heads,
        scale=_scale(cores, inputs, answers, maps["query"][0].matrix.shape[1]),
        layout="; ".join(filter(None, (found.layout for found in inputs.values()))),
        roundoff=answers.roundoff,
        assumptions=(*mixed_up(wiring, questions, cores), *_faults(inputs, output, answers)),
    )


def _maps(
    wiring: Wiring, questions: Questions, cores: Sequence[Core]
) -> dict[str, list[AffineMap]]:
    """Each part's maps, one a core, with what a node multiplies by and adds itself."""
    inside = [node_values(wiring, core) for core in cores]
    if cores[0].matrix:
        if cores[0].query.name not in {role.name for role in questions.tokens.values()}:
            msg = "the attention node is not given the graph's own input"
            raise UnreadableError(msg)
        return {part: [map_inside(part, cores[0], inside[0])] for part in PARTS}
    found = _probed(wiring, questions, cores)
    return {
        part: [
            with_bias(one, values.get(f"{part} bias"))
            for one, values in zip(found[part], inside, strict=True)
        ]
        for part in PARTS
    }


def _probed(
    wiring: Wiring, questions: Questions, cores: Sequence[Core]
) -> dict[str, list[AffineMap]]:
    operands = {
        f"{part} {number}": getattr(core, part)
        for number, core in enumerate(cores)
        for part in PARTS
    }
    counts = {
        f"{part} {number}": core.head_counts[part]
        for number, core in enumerate(cores)
        for part in PARTS
    }
    roles = {key: role_behind(wiring, questions, key, tap.name) for key, tap in operands.items()}
    found = affine_maps(questions, operands, counts, roles)
    return {part: [found[f"{part} {number}"] for number in range(len(cores))] for part in PARTS}


def _order(maps: Mapping[str, Sequence[AffineMap]]) -> str:
    """How items and heads lie in all tensors; raises UnreadableError where they differ."""
    orders = {found.order for part in maps.values() for found in part} - {""}
    if len(orders) > 1:
        msg = "items and heads lie in another order for query, key and value"
        raise UnreadableError(msg)
    return orders.pop() if orders else "items"


def _projection(
    wiring: Wiring,
    questions: Questions,
    cores: Sequence[Core],
    part: str,
    maps: Sequence[AffineMap],
) -> Projection:
    stored: dict[str, Array] = {}
    for core in cores:
        stored |= stored_above(wiring, questions, getattr(core, part).name)
        stored |= {
            name: value
            for name, value in node_values(wiring, core).items()
            if name.startswith(part)
        }
    whole = AffineMap(
        matrix=np.concatenate([found.matrix for found in maps]),
        bias=np.concatenate([found.bias for found in maps]),
        noise=np.concatenate([found.noise for found in maps]),
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
    found: dict[str, Any] = {"o": _tensor(output.matrix), "o_bias": _tensor(output.bias)}
    for part, projection in inputs.items():
        found[part[0]] = _tensor(projection.matrix)
        found[f"{part[0]}_bias"] = _tensor(projection.bias)
    return golden.ProjectionWeights(**found)


def _faults(inputs: Mapping[str, Projection], output: Projected, answers: Answers) -> list[str]:
    """What the graph does otherwise than the specification, so that its verdict is explained."""
    faults = [found.fault for found in inputs.values() if found.fault]
    if output.fault:
        faults.append(output.fault)
    factor = inputs["value"].factor * output.factor
    if abs(factor - 1) > ROUNDINGS * answers.roundoff + answers.step:
        faults.append(f"the graph multiplies values or answers by {factor:.4g}")
    return faults


def _tensor(array: Array | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(np.ascontiguousarray(array).copy())
