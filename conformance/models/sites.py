"""Find every attention in a model's graph, or why a similar structure is not judged alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onnx import GraphProto, ModelProto

from ..graphs.weights.attention_core import (
    SOFTMAXES,
    UNUSUAL,
    Core,
    contraction_of,
    each_core,
    products_above,
    scores_of,
)
from ..graphs.weights.wiring import Node, UnreadableError, Wiring
from .cutting import cut
from .model_graph import ModelGraph, read_graph
from .operator_site import attention_node, operator_core, operator_site
from .site import Site, Uncut, shown
from .softmax_site import TO_PRODUCT, softmax_site

# Nodes holding graphs; an inner tensor has no name outside.
_BRANCHES: Final = frozenset({"If", "Loop", "Scan"})
_REDUCING: Final = frozenset({"ReduceMax", "ReduceSum"})
_ALONE: Final = "it lies inside a graph of a node, its products do not"
_ANSWERED: Final = "its weights are an answer of the model and meet no values"


@dataclass(frozen=True, kw_only=True, eq=False)
class Sites:
    """The attentions of a model: those that can be cut out, and the rest."""

    graph: ModelGraph
    sites: tuple[Site, ...]
    uncut: tuple[Uncut, ...]

    @property
    def inputs_of_masks_alone(self) -> frozenset[str]:
        """The inputs whose values reach masks and no head of the first attention."""
        wiring, inputs = self.graph.wiring, self.graph.inputs
        own = [site for site in self.sites if site.graph is None]
        masks = {mask.name for site in own for mask in site.masks}
        heads = {edge.name for site in own[:1] for edge in site.edges.values()}
        reaching, entering = (
            frozenset[str]().union(*(wiring.reaching(name, inputs) for name in names))
            for names in (masks, heads)
        )
        return reaching - entering


def find_sites(path: Path) -> Sites:
    """The attentions of the graph in a file; raises GraphRefused for what is no graph."""
    return sites_of(read_graph(path))


def sites_of(graph: ModelGraph) -> Sites:
    """Find the attentions of a graph in the order of execution, those inside branches last."""
    sites: list[Site] = []
    uncut: list[Uncut] = []
    for node, core in attention_cores(graph):
        site = _read(graph, node, core, len(sites))
        sites += [site] if isinstance(site, Site) else []
        uncut += [site] if isinstance(site, Uncut) else []
    for part, own in branches(graph):
        cores = {node.output[0]: core for node, core in attention_cores(part)}
        for node in part.wiring.ordered:
            if node.output[0] not in own or not (node.output[0] in cores or _attends(node)):
                continue
            core = cores.get(node.output[0], _ALONE)
            core = _ALONE if core == _ANSWERED else core  # by the branch alone
            site = _read(part, node, core, len(sites))
            if isinstance(site, Uncut):
                uncut.append(site)
            else:
                sites.append(dataclasses.replace(site, graph=part, opaque=True))
    return Sites(graph=graph, sites=tuple(sites), uncut=tuple(uncut))


def _read(graph: ModelGraph, node: Node, core: Core | str, index: int) -> Site | Uncut:
    """Return the attention around a node, or why it cannot be cut out."""
    if isinstance(core, str):
        return _uncut(graph, node, core)
    read = operator_site if attention_node(node) else softmax_site
    if core.heads not in graph.answered:
        weighs = node.output[0] in graph.answered
        return _uncut(graph, node, _ANSWERED if weighs else "it reaches no answer of the model")
    try:
        site = read(graph, node, core, index)
        cut(graph, site)  # one that cannot be is none
    except UnreadableError as error:
        return _uncut(graph, node, str(error))
    except UNUSUAL as error:
        return _uncut(graph, node, f"its structure is unusual ({error})")
    return site


Branch = tuple[ModelGraph, frozenset[str]]


def branches(graph: ModelGraph) -> Iterator[Branch]:
    """Yield each branch or body with an attention as a graph, and the results of inner nodes.

    The nodes before the holding node are part of the graph: inner nodes read their tensors.
    """
    for node in graph.wiring.ordered:
        for body in _bodies(node) if node.op_type in _BRANCHES else ():
            if any(_attends(inner) for inner in _inside(body)):
                part = _written_out(graph, node, body)
                made = frozenset(name for inner in body.node for name in inner.output)
                yield part, made
                yield from ((deeper, own) for deeper, own in branches(part) if own <= _made(body))


def _attends(node: Node) -> bool:
    return node.op_type in SOFTMAXES or attention_node(node)


def _bodies(node: Node) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.HasField("g") else attribute.graphs


def _inside(body: GraphProto) -> Iterator[Node]:
    for node in body.node:
        yield node
        for inner in _bodies(node):
            yield from _inside(inner)


def _made(body: GraphProto) -> set[str]:
    return {name for node in _inside(body) for name in node.output}


def _written_out(graph: ModelGraph, holder: Node, body: GraphProto) -> ModelGraph:
    """Return the graph up to a node, with the node replaced by the nodes of its body."""
    model = ModelProto()
    model.CopyFrom(graph.model)
    behind, before = set(holder.output), []
    for node in graph.wiring.ordered:
        if node == holder or behind & set(node.input):
            behind |= set(node.output)
        else:
            before.append(node)
    whole = model.graph
    for field, own in (("node", [*before, *body.node]), ("output", body.output)):
        whole.ClearField(field)
        getattr(whole, field).extend(own)
    for field in ("input", "initializer", "value_info"):
        getattr(whole, field).extend(getattr(body, field))
    return ModelGraph(graph.path, model, Wiring(whole, graph.path.parent))


def attention_cores(graph: ModelGraph) -> Iterator[tuple[Node, Core | str]]:
    """Yield each softmax and attention node with the surrounding core, or why there is none.

    In the order of execution; shapes are not inferred.
    """
    cores = each_core(
        graph.wiring,
        graph.inputs,
        lambda node: operator_core if attention_node(node) else None,
        direct=True,
        learned=lambda name: (graph.rank(name) or 0) >= len("BHLD"),
    )
    for node, core in cores:
        if isinstance(core, Core):
            yield node, core
        elif not isinstance(core, UnreadableError):
            yield node, f"its structure is unusual ({core})"
        elif _resembles(graph, node):
            yield node, str(core)
        elif _answers_weights(graph, node):
            yield node, _ANSWERED


def _resembles(graph: ModelGraph, node: Node) -> bool:
    """Tell whether an unreadable node resembles an attention: it weighs values in a product.

    A classifier's softmax weighs nothing, a router's weighs experts in a sum, and an exponential
    may be part of anything.
    """
    waiting, visited = [*node.output], set(node.output)
    while waiting and node.op_type != "Exp":
        for below in graph.wiring.consumers[waiting.pop()]:
            if contraction_of(below) is not None:
                return True
            if below.op_type in TO_PRODUCT - _REDUCING:
                fresh = set(below.output) - visited
                visited |= fresh
                waiting += sorted(fresh)
    return attention_node(node)


def _answers_weights(graph: ModelGraph, node: Node) -> bool:
    """Tell whether the model answers a softmax of queries and keys, with heads or items."""
    scores = scores_of(graph.wiring, node)
    first = products_above(graph.wiring, graph.inputs, scores)
    ranks = [graph.rank(each.output) or 0 for each in first]
    if node.op_type not in SOFTMAXES or len(first) != 1 or ranks[0] < len("FQK"):
        return False
    waiting, visited = [*node.output], set(node.output)
    while waiting:
        for below in graph.wiring.consumers[waiting.pop()]:
            if below.op_type in TO_PRODUCT - _REDUCING:
                fresh = set(below.output) - visited
                visited |= fresh
                waiting += sorted(fresh)
    return any(port.name in visited for port in graph.model.graph.output)


def _uncut(graph: ModelGraph, node: Node, reason: str) -> Uncut:
    return Uncut(nodes=(shown(node),), scope=graph.scope(node), reason=reason)
