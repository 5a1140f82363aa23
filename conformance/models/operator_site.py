"""The attention that a node of the standard, or of onnxruntime, is by itself."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from ..graphs.weights.attention_core import Core
from ..graphs.weights.wiring import Node, UnreadableError, attributes
from .model_graph import ModelGraph
from .operands import Edge, MaskInput, added, mask_input
from .site import Site, completed, edges_of, shown

_BOOL: Final = 9  # onnx' number of the type
# The inputs of the attention nodes besides query, key and value: masks, what belongs to the
# projections, and what cannot be cut with them.
_NODE_MASK: Final = {"Attention": 3, "MultiHeadAttention": 5}
_PADDING: Final = {"MultiHeadAttention": 4}
_PROJECTED: Final = {"MultiHeadAttention": 3}
_NODE_REFUSED: Final[dict[str, dict[int, str]]] = {
    "Attention": {4: "a cache", 5: "a cache", 6: "numbers of keys"},
    "MultiHeadAttention": {6: "a cache", 7: "a cache"},
}


def operator_site(graph: ModelGraph, node: Node, core: Core, index: int) -> Site:
    """The site that an attention node is; raises UnreadableError for what cannot be cut yet."""
    own = attributes(node)
    if core.matrix:
        msg = f"the {node.op_type} node projects its tokens itself: it is a layer, no core"
        raise UnreadableError(msg)
    if node.op_type not in _NODE_MASK:
        msg = f"the {node.op_type} node takes a cache, which cannot be cut yet"
        raise UnreadableError(msg)
    for place, what in _NODE_REFUSED[node.op_type].items():
        if _input(node, place):
            msg = f"the {node.op_type} node takes {what}, which cannot be cut yet"
            raise UnreadableError(msg)
    if (place := _PROJECTED.get(node.op_type, -1)) >= 0 and _input(node, place):
        node = _without(node, place)
    letters = "BHLD" if graph.rank(core.query.name) == len("BHLD") else "BLM"
    names = {part: str(getattr(core, part).name) for part in ("query", "key", "value")}
    if letters == "BHLD":
        edges = edges_of(graph, {part: (name, letters) for part, name in names.items()})
    else:
        edges = {part: _whole(name) for part, name in names.items()}
    masks, before = _node_masks(graph, node)
    site = completed(
        graph,
        Site(
            index=index,
            nodes=(shown(node),),
            scope=graph.scope(node),
            query=edges["query"],
            key=edges["key"],
            value=edges["value"],
            inside=(*before, node),
            output=node.output[0],
            output_letters=letters,
            masks=masks,
            heads=None,
            kv_heads=None,
            head_size=None,
            scale=None,
            cap=own.get("softcap") or None,
            causal=bool(own.get("is_causal") or own.get("unidirectional")),
        ),
    )
    site = _counted(graph, site, core)
    scale = own.get("scale") or (1 / math.sqrt(site.head_size) if site.head_size else None)
    factors = site.query.factor(graph) * site.key.factor(graph)
    return replace(site, scale=None if scale is None else scale * factors)


def _whole(name: str) -> Edge:
    return Edge(name=name, letters="BLM", operand=name, operand_letters="BLM")


def _input(node: Node, place: int) -> str:
    """An input of a node, "" where it has none there."""
    return str(node.input[place]) if 0 <= place < len(node.input) else ""


def _without(node: Node, place: int) -> Node:
    """A node without one of its inputs."""
    result = Node()
    result.CopyFrom(node)
    result.input[place] = ""
    return result


def _node_masks(graph: ModelGraph, node: Node) -> tuple[tuple[MaskInput, ...], tuple[Node, ...]]:
    """The masks of an attention node, and the nodes that fill them."""
    masks: list[MaskInput] = []
    padding = _input(node, _PADDING.get(node.op_type, -1))
    if padding:
        if graph.rank(padding) != len("BK"):
            msg = f"the {node.op_type} node takes a padding mask that is not [items, keys]"
            raise UnreadableError(msg)
        masks.append(MaskInput(name=padding, role="keep_int", axes="BK"))
    name = _input(node, _NODE_MASK[node.op_type])
    if not name:
        return tuple(masks), ()
    if graph.type(name) in (0, _BOOL):
        return (*masks, mask_input(graph, name, "keep", "BHQK")), ()
    result = added(graph, name, "BHQK")
    return (*masks, *result.masks), result.nodes


def _counted(graph: ModelGraph, site: Site, core: Core) -> Site:
    """The site of a node with the numbers of heads that its attributes say."""
    if site.output_letters != "BLM":
        return site
    heads, kv_heads = core.num_heads, core.num_kv_heads or core.num_heads
    shape = graph.shape(site.query.name)
    width = shape[-1] if shape else None
    size = width // heads if heads and isinstance(width, int) else None
    return replace(site, heads=heads, kv_heads=kv_heads, head_size=size)
