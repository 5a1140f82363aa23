"""A graph ready to be judged: its process, its roles, and its projections."""

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

    weights: in float32 or the graph's dtype, laid out as in the public contract; None: unknown.
    how: ``declared``, ``state dict``, ``source``, ``graph`` or ``none``.
    scale: the graph's factor between raw projections and logits, None if unknown.
    gauge: what is not verified although the weights are known ("" if nothing): with weights from
        the graph itself and no factor in it, a folded scale cannot be told from none.
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
    """A graph with the means of its clauses and of the search for a faulty export step.

    forward: ``forward(setting)`` gives the candidate's forward under other settings of the runtime.
    file: keeps the file of a cut graph alive.
    source: the eager forward the graph was exported from, None if not named; ``exported`` the same
        of the exported program.
    lacking: the parameters the source needs, and no input of the graph gives.
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
