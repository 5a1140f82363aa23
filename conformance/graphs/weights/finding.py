"""The weights of a graph: from a state dict, its source, its own tensors, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx
from torch import Tensor

from ..._golden import golden
from ...errors import UsageError
from ..header import Header
from ..lost import GraphRefused
from ..process import GraphProcess
from ..reading import Reading
from ..told import Told
from ..weighing import Found, Stages
from .questions import Questions
from .recovering import Recovered, find_core, recover, stages_of
from .references import found_in
from .scaling import UNKNOWN, gauge_of
from .unreadable import UnreadableError
from .wiring import Wiring


def find_weights(
    header: Header,
    process: GraphProcess,
    reading: Reading,
    told: Told,
    *,
    state_dict: Mapping[str, Tensor] | None,
    source: Found | None,
) -> Found:
    """The projections of a layer's graph and how they were found; a core has none.

    ``source`` is what the module that was exported says, and wins; then the state dict, then what
    the graph itself stores. Raises UsageError for a state dict that cannot be this graph's, and
    GraphLost.
    """
    graph = onnx.load(header.path, load_external_data=False).graph
    wiring = Wiring(graph, header.path.parent)
    questions = Questions(header, process, reading, told.num_heads)
    stages, recovered, reason = _recovered(wiring, questions, core_only=reading.kind == "core")
    if reading.kind == "core":
        return Found(how="declared", stages=stages)
    if source is not None and source.weights is not None:
        return replace(source, stages=stages)
    if recovered is None:
        return Found(
            how="none",
            gauge=UNKNOWN,
            stages=stages,
            num_heads=told.num_heads,
            assumptions=(f"the weights could not be read from the graph: {reason}",),
        )
    found = _from_graph(recovered, stages)
    return _from_state_dict(found, recovered.weights, state_dict) if state_dict else found


def _from_graph(recovered: Recovered, stages: Stages) -> Found:
    head_size = len(recovered.weights.q) // recovered.num_heads
    return Found(
        weights=recovered.weights,
        num_heads=recovered.num_heads,
        num_kv_heads=recovered.num_kv_heads,
        how="graph",
        scale=recovered.scale,
        gauge=gauge_of(recovered.scale, head_size),
        stages=stages,
        assumptions=recovered.assumptions,
    )


def _from_state_dict(
    found: Found, weights: golden.ProjectionWeights, state_dict: Mapping[str, Tensor]
) -> Found:
    reference = found_in(weights, state_dict)
    if reference.missing:
        msg = (
            f"the state dict holds no {', '.join(reference.missing)} projection of the graph: give "
            "the one that the graph was exported with"
        )
        raise UsageError(msg)
    scale = found.scale
    if scale is not None:
        scale *= reference.factors["q"] * reference.factors["k"]
    return replace(found, weights=reference.weights, how="state dict", scale=scale, gauge="")


def _recovered(
    wiring: Wiring, questions: Questions, *, core_only: bool
) -> tuple[Stages, Recovered | None, str]:
    """What the structure gives, and why not more."""
    stages = Stages()
    try:
        core = find_core(wiring, questions)
        stages = stages_of(core)
        if core_only:
            return stages, None, ""
        return stages, recover(wiring, questions, core), ""
    except (UnreadableError, GraphRefused) as error:
        return stages, None, str(error)
