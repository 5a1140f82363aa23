"""The weights of a graph: from its source, a state dict, its own tensors, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from torch import Tensor

from ..opened import GraphProjections, Stages
from ..process import GraphProcess
from ..protocol import GraphRefused
from ..reading import GraphReading, Header
from ..sidecar import GraphDeclaration
from .attention_core import find_cores, is_coarse, read_wiring
from .matching import compare_projections
from .probing import FREE_SIZES, RunnableGraph
from .projecting import UNKNOWN, gauge_of, snapped
from .recovering import Recovered, recover, stages_of
from .state_dict import from_state_dict
from .wiring import UnreadableError, Wiring

# A stranger's graph may have axes and attributes that no walk expects: it is not read then, and the
# run goes on without weights.
_UNUSUAL: Final = (UnreadableError, ValueError, KeyError, IndexError, TypeError)


@dataclass(frozen=True, kw_only=True)
class _Structure:
    """What the nodes of a graph gave, and why not more."""

    stages: Stages = Stages()  # noqa: RUF009 (a frozen dataclass of texts)
    recovered: Recovered | None = None
    reason: str = ""


def find_weights(
    header: Header,
    process: GraphProcess,
    reading: GraphReading,
    declared: GraphDeclaration,
    *,
    state_dict: Mapping[str, Tensor] | None,
    source: GraphProjections | None,
) -> GraphProjections:
    """The projections of a layer's graph and where they come from; a core has none.

    ``source`` is what the module that was exported says, and wins; then the state dict, then what
    the graph itself stores. Raises UsageError for a state dict that says nothing of this graph,
    and GraphLost.
    """
    with read_wiring(header.path, process) as (wiring, runner, is_original):
        graph = RunnableGraph(header, runner, reading, declared.num_heads, is_coarse(wiring))
        structure = _structure(wiring, graph, core_only=reading.kind == "core")
        if not is_original:
            structure = replace(structure, stages=Stages())
        if reading.kind == "core":
            return GraphProjections(how="declared", stages=structure.stages)
        if source is not None and source.weights is not None:
            return _from_source(structure, source, coarse=graph.coarse)
        if state_dict is not None:
            result = from_state_dict(structure.recovered, state_dict, graph)
            if result is not None:
                return replace(result, stages=structure.stages)
        return _from_graph(structure, declared)


def _structure(wiring: Wiring, graph: RunnableGraph, *, core_only: bool) -> _Structure:
    """What the structure gives, and why not more; broken graphs are tried at other sizes, too."""
    try:
        tokens = frozenset(role.name for role in graph.tokens.values())
        cores = find_cores(wiring, tokens, graph.reading.output.name)
    except _UNUSUAL as error:
        return _Structure(reason=_said(error))
    stages = stages_of(cores)
    reason = ""
    for sizes in () if core_only else FREE_SIZES:
        try:
            recovered = recover(wiring, replace(graph, sizes=sizes), cores)
            return _Structure(stages=stages, recovered=recovered)
        except (*_UNUSUAL, GraphRefused) as error:
            reason = reason or _said(error)
    return _Structure(stages=stages, reason=reason)


def _said(error: Exception) -> str:
    """Why a graph could not be read, on one line."""
    if isinstance(error, UnreadableError | GraphRefused):
        return " ".join(str(error).split())
    return f"its structure is unusual ({type(error).__name__}: {' '.join(str(error).split())})"


def _from_graph(structure: _Structure, declared: GraphDeclaration) -> GraphProjections:
    recovered = structure.recovered
    if recovered is None:
        return GraphProjections(
            how="none",
            gauge=UNKNOWN,
            stages=structure.stages,
            num_heads=declared.num_heads,
            num_kv_heads=declared.num_kv_heads,
            assumptions=(f"the weights could not be read from the graph: {structure.reason}",),
        )
    gauge = gauge_of(recovered.scale, len(recovered.weights.q) // recovered.num_heads)
    return GraphProjections(
        weights=recovered.weights,
        num_heads=recovered.num_heads,
        num_kv_heads=recovered.num_kv_heads,
        how="graph",
        scale=recovered.scale,
        gauge="; ".join(filter(None, (gauge, recovered.layout))),
        stages=structure.stages,
        assumptions=recovered.assumptions,
    )


def _from_source(
    structure: _Structure, source: GraphProjections, *, coarse: bool
) -> GraphProjections:
    """The source's weights, with how far the graph's are from them.

    ``coarse``: those that the graph rounded to 8 bits are taken as they are there.
    """
    recovered = structure.recovered
    assert source.weights is not None  # noqa: S101 (the caller's condition)
    if recovered is None:
        note = f"the graph's own weights could not be read: {structure.reason}"
        return replace(
            source, how="source", stages=structure.stages, assumptions=(*source.assumptions, note)
        )
    reference = compare_projections(recovered.weights, source.weights, coarse=coarse)
    notes = list(recovered.assumptions) + list(reference.differences)
    if source.num_heads and recovered.num_heads != source.num_heads:
        notes.append(f"the graph has {recovered.num_heads} heads, the source {source.num_heads}")
    scale = recovered.scale
    if scale is not None:
        scale *= reference.factors["q"] * reference.factors["k"]
        size = len(source.weights.q) // (source.num_heads or recovered.num_heads)
        scale = snapped(scale, size, recovered.roundoff)
    return replace(
        source,
        how="source",
        weights=reference.weights,
        num_heads=source.num_heads or recovered.num_heads,
        num_kv_heads=source.num_kv_heads or recovered.num_kv_heads,
        scale=scale,
        stages=structure.stages,
        assumptions=(*source.assumptions, *notes),
    )
