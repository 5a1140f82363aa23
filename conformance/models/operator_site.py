"""The attention that a node of the standard, or of onnxruntime, is by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ..graphs.weights.attention_core import Core, HeadTensor, node_reader, signature
from ..graphs.weights.wiring import Node, UnreadableError, attributes
from .model_graph import ModelGraph
from .operands import Edge, MaskInput, added, mask_input
from .site import Sinks, Site, completed, edges_of, shown

_BOOL: Final = 9  # onnx' number of the type


@dataclass(frozen=True, kw_only=True)
class _Places:
    """The input places of an operator.

    mask, padding, lengths, counted: the bias or condition of the scores; the existing keys of each
        item, read as a mask ``[items, keys]``; their number; the index of the last.
    cache: keys and values of earlier tokens.
    dropped: inputs of projections or positions, left out of a single attention.
    sinks: one more score for each head.
    refused: inputs a single attention cannot be given, with their names.
    """

    mask: int = -1
    padding: int = -1
    lengths: int = -1
    counted: int = -1
    cache: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    sinks: int = -1
    refused: Mapping[int, str] = field(default_factory=dict)


_PLACES: Final = {
    ("", "Attention"): _Places(mask=3, cache=(4, 5), lengths=6),
    ("com.microsoft", "Attention"): _Places(
        mask=5, padding=3, refused={4: "keys and values in one cache"}
    ),
    ("com.microsoft", "MultiHeadAttention"): _Places(
        mask=5,
        padding=4,
        cache=(6, 7),
        dropped=(3,),
        refused={8: "a cache of a fixed size", 9: "beams"},
    ),
    # Its lengths are those of its keys: they hide nothing before the last token.
    ("com.microsoft", "GroupQueryAttention"): _Places(
        cache=(3, 4),
        counted=5,
        dropped=(7, 8, 9),
        mask=10,
        sinks=11,
        refused={12: "numbers of 8 bits", 13: "numbers of 8 bits"},
    ),
}


def attention_node(node: Node) -> bool:
    """Whether a node is an attention by itself, or has its name."""
    return node_reader(node) is not None or "Attention" in node.op_type


def operator_core(node: Node) -> Core:
    """Read a node as a core with packed or separate parts; raises UnreadableError."""
    read = node_reader(node)
    if read is None:
        msg = f"nobody knows how to take the {node.op_type} node out of its model"
        raise UnreadableError(msg)
    if node.op_type != "GroupQueryAttention":
        return read(node)
    own = attributes(node)
    names = [_input(node, at) or node.input[0] for at in range(len(("query", "key", "value")))]
    query, key, value = (HeadTensor(name=name, feature=-1) for name in names)
    return Core(
        query=query,
        key=key,
        value=value,
        heads=node.output[0],
        num_heads=own.get("num_heads") or None,
        num_kv_heads=own.get("kv_num_heads") or None,
        scale=own.get("scale") or None,
    )


def operator_site(graph: ModelGraph, node: Node, core: Core, index: int) -> Site:
    """The site that an attention node is; raises UnreadableError for what cannot be taken out."""
    own, places = attributes(node), _PLACES[signature(node)]
    for place, what in places.refused.items():
        if _input(node, place):
            msg = f"the {node.op_type} node takes {what}, which an attention alone cannot be given"
            raise UnreadableError(msg)
    alone = _without(node, places.dropped)
    names = {part: str(getattr(core, part).name) for part in ("query", "key", "value")}
    assembly = _assembly(node, core)
    letters = "BHLD" if graph.rank(core.query.name) == len("BHLD") and not assembly else "BLM"
    if letters == "BHLD":
        edges = edges_of(graph, {part: (name, letters) for part, name in names.items()})
    else:
        edges = {part: _whole(name) for part, name in names.items()}
    if any(graph.rank(names[part]) == len("BHLD") for part in ("key", "value")) and (
        letters != "BHLD" and not assembly
    ):
        msg = f"the {node.op_type} node takes tokens for its query and heads for its keys"
        raise UnreadableError(msg)
    masks, before = _node_masks(graph, node, places)
    cache = tuple(name for place in places.cache if (name := _input(node, place)))
    sinks = _input(node, places.sinks)
    site = completed(
        graph,
        Site(
            index=index,
            nodes=(shown(node),),
            scope=graph.scope(node),
            query=edges["query"],
            key=edges["key"],
            value=edges["value"],
            inside=(*before, alone),
            output=node.output[0],
            output_letters=letters,
            masks=masks,
            heads=None,
            kv_heads=None,
            head_size=None,
            scale=None,
            cap=own.get("softcap") or None,
            causal=bool(own.get("is_causal") or own.get("unidirectional"))
            or node.op_type == "GroupQueryAttention",
            sinks=Sinks(tensor=sinks, stored=sinks) if sinks else None,
            cache=cache,
            capacity=own.get(WINDOW, 0) if own.get(_CACHED_WINDOW) else 0,
            assembly=assembly,
            counted=_input(node, places.counted),
            options={name: own.get(name, other) for name, other in _ABOVE.items() if assembly},
            opaque=bool(assembly) or alone != node,
        ),
    )
    site = _counted(graph, site, core, node)
    if assembly and not (site.heads and site.head_size):
        msg = f"the size of the heads that the {node.op_type} node makes is not known"
        raise UnreadableError(msg)
    scale = own.get("scale") or (1 / math.sqrt(site.head_size) if site.head_size else None)
    if own.get("smooth_softmax", 0) > 0:
        msg = f"the {node.op_type} node adds a score of 0 to those of the keys"
        raise UnreadableError(msg)
    factors = site.query.factor(graph) * site.key.factor(graph)
    return replace(site, scale=None if scale is None else scale * factors)


def _assembly(node: Node, core: Core) -> str:
    """Return how query, key and value enter a node in one tensor, "" if separate.

    ``projected``: the node projects one tensor with an own matrix; ``packed``: the parts lie side
    by side in one tensor; ``groups``: separate, with the number of keys of each item.
    """
    if core.matrix:
        return "projected"
    if node.op_type != "GroupQueryAttention":
        return ""
    return "groups" if _input(node, 1) else "packed"


def _whole(name: str) -> Edge:
    return Edge(name=name, letters="BLM", operand=name, operand_letters="BLM")


def _input(node: Node, place: int) -> str:
    return str(node.input[place]) if 0 <= place < len(node.input) else ""


# Attributes an attention alone does without, and their defaults.
ROTARY: Final = ("do_rotary", "rotary_interleaved")
WINDOW: Final = "local_window_size"
_ABOVE: Final = {**dict.fromkeys(ROTARY, 0), WINDOW: -1}
_CACHED_WINDOW: Final = "sliding_window_cache"  # means nothing without a window


def _without(node: Node, dropped: tuple[int, ...]) -> Node:
    """Return a node without the dropped inputs, their rotary positions, and its window."""
    result = Node()
    result.CopyFrom(node)
    for place in dropped:
        if place < len(node.input):
            result.input[place] = ""
    for own in [own for own in result.attribute if own.name in {*_ABOVE, _CACHED_WINDOW}]:
        result.attribute.remove(own)
    return result


def _node_masks(
    graph: ModelGraph, node: Node, places: _Places
) -> tuple[tuple[MaskInput, ...], tuple[Node, ...]]:
    masks: list[MaskInput] = []
    if padding := _input(node, places.padding):
        axes = {len("B"): "B", len("BK"): "BK", len("BQK"): "BQK"}.get(graph.rank(padding) or 0)
        if axes is None:
            msg = f"the {node.op_type} node takes a padding mask that is not [items, keys]"
            raise UnreadableError(msg)
        role = "lengths" if axes == "B" else "keep_int"
        masks.append(MaskInput(name=padding, role=role, axes=axes))
    if lengths := _input(node, places.lengths):
        masks.append(MaskInput(name=lengths, role="lengths", axes="B"))
    name = _input(node, places.mask)
    if not name:
        return tuple(masks), ()
    if graph.type(name) in (0, _BOOL):
        return (*masks, mask_input(graph, name, "keep", "BHQK")), ()
    result = added(graph, name, "BHQK")
    return (*masks, *result.masks), result.nodes


def _counted(graph: ModelGraph, site: Site, core: Core, node: Node) -> Site:
    if site.output_letters != "BLM":
        return site
    heads, kv_heads = core.num_heads, core.num_kv_heads or core.num_heads
    if heads is None or kv_heads is None:
        return replace(site, heads=heads, kv_heads=kv_heads, head_size=None)
    shape = graph.shape(site.query.name)
    width = shape[-1] if shape else None
    count = heads
    if site.assembly == "projected":
        columns = graph.shape(core.matrix)
        width = core.widths[0] if core.widths else None
        if width is None and columns and isinstance(columns[-1], int):
            width = columns[-1] // len(("query", "key", "value"))
        if core.widths and len(set(core.widths)) > 1:
            msg = f"the {node.op_type} node makes values of another size than keys"
            raise UnreadableError(msg)
    elif site.assembly == "packed":
        count = heads + 2 * kv_heads
    size = width // count if isinstance(width, int) else None
    return replace(site, heads=heads, kv_heads=kv_heads, head_size=size)
