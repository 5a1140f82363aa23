"""A graph that is ready to be judged: its process, its roles, and its projections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .._golden import golden
from .process import GraphProcess, Setting
from .reading import GraphReading, Header
from .sidecar import GraphDeclaration


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Names of tensors inside a graph: the stages of attention, "" where one was not found.

    query, key, value
        Projected heads, ``[B, H, L, D]`` or with items and heads folded ``[F, L, D]``.
    scores, weights
        Before and after the softmax, ``[B, H, Lq, Lk]`` or folded.
    heads
        What the output projection is given, ``[B, Lq, H·Dv]`` or with heads apart.
    """

    query: str = ""
    key: str = ""
    value: str = ""
    scores: str = ""
    weights: str = ""
    heads: str = ""


@dataclass(frozen=True, kw_only=True)
class GraphProjections:
    """The projections of a layer's graph.

    weights
        In float32 or the graph's dtype, laid out as in the public contract; None: nobody knows.
    how
        ``declared``, ``state dict``, ``source``, ``graph`` or ``none``.
    scale
        The factor that the graph applies between raw projections and logits, None where unknown.
    gauge
        What is not verified although the weights are known ("" when all is): with weights that
        the graph itself brings and no factor in it, nobody can tell a folded scale from none.
    """

    weights: golden.ProjectionWeights | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    how: str = "none"
    scale: float | None = None
    gauge: str = ""
    stages: Stages = field(default_factory=Stages)
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenedGraph:
    """A graph with what its clauses and the search for the faulty export step need.

    forward
        ``forward(setting)`` gives the candidate's forward under other settings of the runtime.
    file
        What keeps the file of a graph that was cut out, as long as this is used.
    source
        The eager forward that the graph was exported from, None where nobody named it;
        ``exported`` the same of the exported program.
    lacking
        The parameters that the source needs, and that no input of the graph gives.
    """

    header: Header
    declaration: GraphDeclaration
    process: GraphProcess
    reading: GraphReading
    projections: GraphProjections
    forward: Callable[[Setting], Callable[..., Any]]
    source: Callable[..., Any] | None = None
    exported: Callable[..., Any] | None = None
    lacking: tuple[str, ...] = ()
    file: object = None
