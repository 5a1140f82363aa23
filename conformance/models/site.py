"""One attention of a model: its place, its inputs and its heads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from ..graphs.weights.wiring import Node, UnreadableError
from .model_graph import ModelGraph
from .operands import Edge, MaskInput, edge_of

# A scale is called 1/sqrt(head size) within so many units in the last place of its format: the
# root of it on both operands, rounded twice, and products of such numbers.
_ROUNDINGS: Final = 16


@dataclass(frozen=True, kw_only=True)
class Sinks:
    """One more score for each head.

    tensor: the tensor beside the scores, ``[items, heads, queries, 1]``.
    stored: the numbers by head in the file.
    """

    tensor: str
    stored: str


@dataclass(frozen=True, kw_only=True)
class Step:
    """Integers of known steps between scores and answer.

    of_scores
        Scores become integers, before the softmax.
    size, least, most
        The step, and the limits of the represented numbers.
    factor
        The factor on the scores afterwards.
    """

    of_scores: bool
    size: float
    least: float
    most: float
    factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Uncut:
    """What looks like attention but cannot be judged alone: where, and why."""

    nodes: tuple[str, ...]
    scope: str
    reason: str

    @property
    def sentence(self) -> str:
        """``encoder.layer.1: its product has no heads``."""
        return f"{self.scope or self.nodes[0]}: {self.reason}"

    def as_json(self) -> dict[str, Any]:
        """Plain data for the record of identify."""
        return {"nodes": list(self.nodes), "scope": self.scope, "reason": self.reason}


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """One attention of a model.

    index: its place among the attentions of the model, in the order of execution.
    nodes: the names of the nodes that multiply, take the softmax and multiply again, or of the one.
    scope: the path of its module, "" where the exporter left none.
    inside: the nodes between the edges, in the order of execution.
    output, output_letters: its answer, one letter an axis as in :class:`Edge`.
    scale: the factor on the dot products, None where only a run shows it.
    scaled_above: the factor on query and key before they enter, if more than turns lies between.
    cap: the bound of the scaled scores, ``cap * tanh(score / cap)``; None without a cap.
    causal: a node hides later keys by itself.
    sinks: one more score for each head, beside those of the keys.
    cache: the keys and the values of earlier tokens that a node puts before its own, or ().
    capacity: the number of keys that its cache must have room for, 0 for any.
    assembly: the way query, key and value enter a node with a joint tensor.
    counted: the tensor of the last key's index by item, limiting a query's keys; "".
    options: the node attributes left out of the cut: rotary positions and window.
    steps: the places where scores or weights become integers between its products.
    opaque: query, key and value as attended exist only inside a node.
    graph: the written-out branch or body of a node the attention lies in, else None.
    """

    index: int
    nodes: tuple[str, ...]
    scope: str
    query: Edge
    key: Edge
    value: Edge
    inside: tuple[Node, ...]
    output: str
    output_letters: str
    masks: tuple[MaskInput, ...]
    heads: int | None
    kv_heads: int | None
    head_size: int | None
    scale: float | None
    scaled_above: float = 1.0
    cap: float | None = None
    causal: bool = False
    sinks: Sinks | None = None
    cache: tuple[str, ...] = ()
    capacity: int = 0
    assembly: str = ""
    counted: str = ""
    options: Mapping[str, int] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    opaque: bool = False
    graph: ModelGraph | None = None

    @property
    def edges(self) -> dict[str, Edge]:
        """Query, key and value by name."""
        return {"query": self.query, "key": self.key, "value": self.value}


def cache_shapes(sites: Iterable[Site]) -> dict[str, tuple[int | None, ...]]:
    """The shape ``[items, heads, past, features]`` of the past keys and values of attentions."""
    return {
        name: (None, site.kv_heads, site.capacity or None, site.head_size)
        for site in sites
        for name in site.cache
    }


def is_standard(scale: float, head_size: int) -> bool:
    """Whether a number is 1/sqrt(head size) but for roundings in float16 or better."""
    bound = _ROUNDINGS * float(np.finfo(np.float16).eps)
    return abs(scale * math.sqrt(head_size) - 1) <= bound


def shown(node: Node) -> str:
    """Return a node's name, else its operator and result."""
    return str(node.name or f"{node.op_type} {node.output[0]}")


def edges_of(graph: ModelGraph, operands: dict[str, tuple[str, str]]) -> dict[str, Edge]:
    """Return the edges of query, key and value; unequal groups keep their repeated heads."""

    def read(*, grouped: bool) -> dict[str, Edge]:
        return {
            part: edge_of(graph, *operand, grouped=grouped, scaled=part != "value")
            for part, operand in operands.items()
        }

    edges = read(grouped=True)
    differ = edges["query"].groups > 1 or edges["key"].groups != edges["value"].groups
    return read(grouped=False) if differ else edges


def completed(graph: ModelGraph, site: Site) -> Site:
    """Complete a site with the numbers and sizes of its heads stated in the file."""
    heads = _heads(graph, site.query)
    kv_heads = _heads(graph, site.key)
    if (groups := site.key.groups) > 1:
        heads = heads or (kv_heads * groups if kv_heads else None)
        kv_heads = kv_heads or (heads // groups if heads else None)
        if heads is None or kv_heads is None:
            msg = "its keys are repeated for groups of heads, whose number nobody can work out"
            raise UnreadableError(msg)
        if heads != kv_heads * groups:
            msg = f"{heads} query heads are no {groups} times {kv_heads} key heads"
            raise UnreadableError(msg)
    if why := unpaired(heads, kv_heads, site.value.size(graph, "H")):
        raise UnreadableError(why)
    size = _head_size(graph, site)
    width = site.query.size(graph, "M")
    heads = heads or (width // size if width and size else None)
    above = math.prod(_factor_above(graph, edge.name) for edge in (site.query, site.key))
    return replace(
        site, heads=heads, kv_heads=kv_heads or heads, head_size=size, scaled_above=above
    )


def unpaired(heads: int | None, key: int | None, value: int | None) -> str:
    """Return why the numbers of heads do not match, or ""; None or 0 is unknown.

    A single value head may belong to all heads, although every head has an own key.
    """
    if not key or ((not value or value in (key, 1)) and (heads or key) % key == 0):
        return ""
    counts = ", ".join(str(own or "unknown") for own in (heads, key, value))
    return f"query, key and value have {counts} heads: which belong together is not known"


# Nodes that move, select or average numbers: a factor passes through them.
_LAYS: Final = frozenset(
    "Cast DequantizeLinear Identity QuantizeLinear Reshape Transpose Split Slice Gather Squeeze "
    "Unsqueeze Expand ReduceMean".split()
)


def _factor_above(graph: ModelGraph, name: str) -> float:
    """Return the factor applied to a tensor before slicing and moving."""
    result = 1.0
    while (node := graph.wiring.producer.get(name)) is not None and node.input:
        numbers = [graph.scalar(own) for own in node.input]
        if node.op_type == "Mul" and None in numbers and numbers != [None, None]:
            at = numbers.index(None)
            result *= numbers[1 - at] or 0.0
            name = node.input[at]
        elif node.op_type == "Div" and numbers[0] is None and numbers[1]:
            result /= numbers[1]
            name = node.input[0]
        elif node.op_type in _LAYS:
            name = node.input[0]
        else:
            break
    return result


def _head_size(graph: ModelGraph, site: Site) -> int | None:
    for edge in (site.query, site.key):
        shape = graph.shape(edge.operand)
        at = edge.operand_letters.find("D")
        if at >= 0 and len(shape) == len(edge.operand_letters) and isinstance(shape[at], int):
            return int(shape[at])  # type: ignore[arg-type]  # as just checked
        if (size := edge.size(graph, "D")) is not None:
            return size
    return None


def _heads(graph: ModelGraph, edge: Edge) -> int | None:
    """Return the number of heads: by shape, else by the width they are cut out of."""
    size = edge.size(graph, "H")
    if size is not None:
        return size
    node = graph.wiring.producer.get(edge.name)
    steps = 0
    while node is not None and node.op_type in _NEAR_HEADS and steps < _NEAR:
        node = graph.wiring.producer.get(node.input[0])
        steps += 1
    if node is None or node.op_type != "Reshape":
        return None
    numbers = graph.numbers(node.input[1])
    above, below = graph.shape(node.input[0]), graph.shape(node.output[0])
    if numbers is not None and len(numbers) == len("BLHD"):
        size = None if math.isnan(numbers[2]) else int(numbers[2])
        if size is not None and size > 0:
            return size
    if above and below and isinstance(above[-1], int) and isinstance(below[-1], int):
        return above[-1] // below[-1] if len(below) > len(above) else None
    return None


# Turns and sums with positions between the heads and the width they are cut out of.
_NEAR: Final = 6
_NEAR_HEADS: Final = ("Add", "DequantizeLinear", "Mul", "QuantizeLinear", "Transpose")
