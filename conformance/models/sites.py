"""Every attention in a whole model's graph, and why what looks like one cannot be judged alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..graphs.weights.attention_core import (
    SOFTMAXES,
    Core,
    contraction_of,
    core_around,
    scores_of,
)
from ..graphs.weights.wiring import Node, UnreadableError
from .model_graph import ModelGraph, read_graph
from .operator_site import attention_node, operator_core, operator_site
from .site import Site, shown
from .softmax_site import TO_PRODUCT, softmax_site

# What looks into graphs inside a graph; a tensor in there has no name outside.
_BRANCHES: Final = frozenset({"If", "Loop", "Scan"})
_UNUSUAL: Final = (ValueError, KeyError, IndexError, TypeError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class Uncut:
    """What looks like attention but cannot be judged alone: where, and why."""

    nodes: tuple[str, ...]
    scope: str
    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Sites:
    """The attentions of a model that can be cut out, and those that cannot."""

    graph: ModelGraph
    sites: tuple[Site, ...]
    uncut: tuple[Uncut, ...]


def find_sites(path: Path) -> Sites:
    """The attentions of the graph in a file; raises GraphRefused for what is no graph."""
    return sites_of(read_graph(path))


def sites_of(graph: ModelGraph) -> Sites:
    """The attentions of a graph, in the order of execution."""
    sites: list[Site] = []
    uncut: list[Uncut] = list(_in_branches(graph))
    for node, core in attention_cores(graph):
        if isinstance(core, str):
            uncut.append(_uncut(graph, node, core))
            continue
        read = operator_site if attention_node(node) else softmax_site
        try:
            sites.append(read(graph, node, core, len(sites)))
        except UnreadableError as error:
            uncut.append(_uncut(graph, node, str(error)))
        except _UNUSUAL as error:
            uncut.append(_uncut(graph, node, f"its structure is unusual ({error})"))
    return Sites(graph=graph, sites=tuple(sites), uncut=tuple(uncut))


def attention_cores(graph: ModelGraph) -> Iterator[tuple[Node, Core | str]]:
    """Each softmax and each attention node with the core around it, or why there is none.

    In the order of execution; nothing is inferred of shapes.
    """
    products: set[str] = set()
    for node in graph.wiring.ordered:
        if not attention_node(node) and not _is_softmax(graph, node):
            continue
        try:
            core = (
                operator_core(node)
                if attention_node(node)
                else core_around(graph.wiring, graph.inputs, node, direct=True)
            )
        except UnreadableError as error:
            if _resembles(graph, node):
                yield node, str(error)
        except _UNUSUAL as error:
            yield node, f"its structure is unusual ({error})"
        else:
            # A softmax of a softmax has the same products around it.
            if not core.product or core.product not in products:
                yield node, core
            products.add(core.product)


def _resembles(graph: ModelGraph, node: Node) -> bool:
    """Whether what is no attention looks like one: it weighs something in a product.

    The softmax of a classifier or of a router weighs nothing, and an exponential may be part of
    anything.
    """
    waiting, visited = [*node.output], set(node.output)
    while waiting and node.op_type != "Exp":
        for below in graph.wiring.consumers[waiting.pop()]:
            if contraction_of(below) is not None:
                return True
            if below.op_type in TO_PRODUCT:
                fresh = set(below.output) - visited
                visited |= fresh
                waiting += sorted(fresh)
    return attention_node(node)


def _is_softmax(graph: ModelGraph, node: Node) -> bool:
    scores = scores_of(graph.wiring, node)
    return bool(scores) and bool(graph.wiring.reaching(scores, graph.inputs))


def _uncut(graph: ModelGraph, node: Node, reason: str) -> Uncut:
    return Uncut(nodes=(shown(node),), scope=graph.scope(node), reason=reason)


def _in_branches(graph: ModelGraph) -> Iterator[Uncut]:
    """What attends inside the branches and bodies of other nodes."""
    for node in graph.wiring.graph.node:
        for inner in _inside(node) if node.op_type in _BRANCHES else ():
            if inner.op_type in SOFTMAXES or attention_node(inner):
                reason = f"it lies inside a graph of the {node.op_type} node {shown(node)}"
                yield Uncut(nodes=(shown(inner),), scope=graph.scope(inner), reason=reason)


def _inside(node: Node) -> Iterator[Node]:
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            for inner in graph.node:
                yield inner
                yield from _inside(inner)
