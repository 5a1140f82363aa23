"""Every attention in a whole model's graph, and why what looks like one cannot be judged alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from ..graphs.weights.attention_core import (
    SOFTMAXES,
    Core,
    contraction_of,
    core_around,
    core_of_node,
    is_attention_node,
    scores_of,
)
from ..graphs.weights.wiring import Node, UnreadableError, attributes
from .model_graph import ModelGraph, read_graph
from .operands import Added, Edge, MaskInput, added, edge_of, mask_input

# A scale is called 1/sqrt(head size) within so many units in the last place of its format: the
# root of it on both operands, rounded twice, and products of such numbers.
_ROUNDINGS: Final = 16
# What looks into graphs inside a graph; a tensor in there has no name outside.
_BRANCHES: Final = frozenset({"If", "Loop", "Scan"})
_BOOL: Final = 9  # onnx' number of the type
_UNUSUAL: Final = (ValueError, KeyError, IndexError, TypeError)


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """One attention of a model.

    index
        Its place among the attentions of the model, in the order of execution.
    nodes
        The names of the nodes that multiply, take the softmax and multiply again, or of the one.
    scope
        The path of the module that it comes from, "" where the exporter left none.
    inside
        The nodes between the edges, in the order of execution.
    output, output_letters
        Its answer, one letter an axis as in :class:`Edge`.
    scale
        What the dot products are multiplied by, None where only a run shows it.
    cap
        The number that bounds the scaled scores, ``cap * tanh(score / cap)``; None without a cap.
    causal
        Whether a node hides later keys by itself.
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
    cap: float | None = None
    causal: bool = False

    @property
    def edges(self) -> dict[str, Edge]:
        """Query, key and value by name."""
        return {"query": self.query, "key": self.key, "value": self.value}


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
        read = _of_node if is_attention_node(node) else _of_softmax
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
        if not is_attention_node(node) and not _is_softmax(graph, node):
            continue
        try:
            core = (
                core_of_node(node)
                if is_attention_node(node)
                else core_around(graph.wiring, graph.inputs, node)
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
            if below.op_type in _TO_PRODUCT:
                fresh = set(below.output) - visited
                visited |= fresh
                waiting += sorted(fresh)
    return is_attention_node(node)


def _is_softmax(graph: ModelGraph, node: Node) -> bool:
    scores = scores_of(graph.wiring, node)
    return bool(scores) and bool(graph.wiring.reaching(scores, graph.inputs))


def _uncut(graph: ModelGraph, node: Node, reason: str) -> Uncut:
    return Uncut(nodes=(_shown(node),), scope=graph.scope(node), reason=reason)


def _shown(node: Node) -> str:
    return str(node.name or f"{node.op_type} {node.output[0]}")


def _in_branches(graph: ModelGraph) -> Iterator[Uncut]:
    """What attends inside the branches and bodies of other nodes."""
    for node in graph.wiring.graph.node:
        for inner in _inside(node) if node.op_type in _BRANCHES else ():
            if inner.op_type in SOFTMAXES or is_attention_node(inner):
                reason = f"it lies inside a graph of the {node.op_type} node {_shown(node)}"
                yield Uncut(nodes=(_shown(inner),), scope=graph.scope(inner), reason=reason)


def _inside(node: Node) -> Iterator[Node]:
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            for inner in graph.node:
                yield inner
                yield from _inside(inner)


_OPERAND_LETTERS: Final = {3: "FLD", 4: "BHLD"}


def _of_softmax(graph: ModelGraph, softmax: Node, core: Core, index: int) -> Site:
    """The site around a softmax between two products; raises UnreadableError."""
    rank = graph.rank(core.product) or graph.rank(core.query.name) or len("BHLD")
    if rank not in _OPERAND_LETTERS:
        msg = f"its product has {rank} axes: heads are expected in 3 or 4"
        raise UnreadableError(msg)
    before = "F" if rank == len("FLD") else "BH"
    first, second = graph.wiring.producer[core.product], _mean_node(graph, core)
    query, key, _ = _axes_of(first, before, 2)
    weighted = 1 if second.input[1] == core.weights else 0
    mean = _axes_of(second, before, weighted)
    edges = _edges(
        graph,
        {
            "query": (core.query.name, query),
            "key": (core.key.name, key),
            "value": (core.value.name, mean[1 - weighted]),
        },
    )
    inside, masks = _between(graph, core, before + "QK")
    scale, cap = _scale_and_cap(graph, core, edges, inside)
    return _site(
        graph,
        Site(
            index=index,
            nodes=(_shown(first), _shown(softmax), _shown(second)),
            scope=graph.scope(softmax) or graph.scope(first),
            query=edges["query"],
            key=edges["key"],
            value=edges["value"],
            inside=inside,
            output=core.heads,
            output_letters=mean[2],
            masks=masks,
            heads=None,
            kv_heads=None,
            head_size=None,
            scale=scale,
            cap=cap,
        ),
    )


def _edges(graph: ModelGraph, operands: dict[str, tuple[str, str]]) -> dict[str, Edge]:
    """The edges of query, key and value; repeated heads as they are where they differ."""

    def read(*, grouped: bool) -> dict[str, Edge]:
        return {
            part: edge_of(graph, *operand, grouped=grouped, scaled=part != "value")
            for part, operand in operands.items()
        }

    edges = read(grouped=True)
    differ = edges["query"].groups > 1 or edges["key"].groups != edges["value"].groups
    return read(grouped=False) if differ else edges


def _axes_of(node: Node, before: str, scores: int) -> list[str]:
    """The axes of both operands of a product and of its result, in the letters of :class:`Edge`.

    ``scores`` says which of the three has an axis of queries and one of keys, behind ``before``.
    Raises UnreadableError where its axes come in another order.
    """
    product = contraction_of(node)
    letters: tuple[str, ...] = () if product is None else product.letters
    if all(len(axes) == len("QK") for axes in letters):  # the leading axes go without saying
        letters = tuple(before.lower() + axes for axes in letters)
    if not letters or len(letters[scores]) != len(before) + len("QK"):
        msg = f"the axes of its product {_shown(node)} cannot be told"
        raise UnreadableError(msg)
    names = dict(zip(letters[scores], before + "LL", strict=True))
    result = ["".join(names.get(axis, "D") for axis in axes) for axes in letters]
    others = [axes for place, axes in enumerate(result) if place != scores]
    if any(set(axes) != {*before, "L", "D"} or len(axes) != len(before) + 2 for axes in others):
        msg = f"the axes of its product {_shown(node)} are none of items, heads and positions"
        raise UnreadableError(msg)
    return result


def _mean_node(graph: ModelGraph, core: Core) -> Node:
    """The second product."""
    for node in graph.wiring.consumers[core.weights]:
        product = contraction_of(node)
        if product is not None and core.value.name in product.operands:
            return node
    msg = "no product of the softmax with values was found"
    raise UnreadableError(msg)


def _site(graph: ModelGraph, site: Site) -> Site:
    """A site with the numbers and sizes of its heads, as far as the file says them."""
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
    size = _head_size(graph, site)
    width = site.query.size(graph, "M")
    heads = heads or (width // size if width and size else None)
    return replace(site, heads=heads, kv_heads=kv_heads or heads, head_size=size)


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
    """How many heads a tensor has: by its shape, else by the width that they are cut out of."""
    size = edge.size(graph, "H")
    if size is not None:
        return size
    node = graph.wiring.producer.get(edge.name)
    steps = 0
    while node is not None and node.op_type in ("Transpose", "Add", "Mul") and steps < _NEAR:
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


# Turns and sums with positions between the heads and where they are cut out of a width.
_NEAR: Final = 4


# Nodes on the way from scores to weights, besides those that add, choose or multiply.
_PLAIN: Final = frozenset(
    "Cast Dropout Exp Identity IsNaN LogSoftmax Neg Not ReduceMax ReduceSum Softmax Clip".split()
)
_WITH_NUMBERS: Final = frozenset({"Mul", "Div", "Sub", "Max", "Min", "Pow"})
_AXES: Final = frozenset({"ReduceMax", "ReduceSum", "Clip", "Dropout"})
_ON_THE_WAY: Final = _PLAIN | _WITH_NUMBERS | {"Add", "Tanh", "Where"}
_REASONS: Final = {
    "Concat": "puts sinks beside its scores, which cannot be cut yet",
}
# What may stand between weights and the product with values.
_TO_PRODUCT: Final = _ON_THE_WAY | {"Expand", "Reshape", "Slice", "Transpose", "Unsqueeze"}


def _between(
    graph: ModelGraph, core: Core, letters: str
) -> tuple[tuple[Node, ...], tuple[MaskInput, ...]]:
    """The nodes from the first product to the answer, in order, and the masks that enter there."""
    nodes = _way(graph, core)
    made = {name for node in nodes for name in node.output}
    operands = {core.query.name, core.key.name, core.value.name}
    inside: list[Node] = []
    masks: list[MaskInput] = []
    for node in nodes:
        strangers = [
            name
            for name in node.input
            if name and name not in made | operands and graph.scalar(name) is None
        ]
        if contraction_of(node) is None and strangers:
            entering = _entering(graph, node, strangers, letters)
            inside += [each for each in entering.nodes if each not in inside]
            masks += [mask for mask in entering.masks if mask not in masks]
        inside.append(node)
    return tuple(inside), tuple(masks)


def _entering(graph: ModelGraph, node: Node, names: Sequence[str], letters: str) -> Added:
    """What a node on the way brings in; raises UnreadableError where that is no mask."""
    if node.op_type == "Add" and len(names) == 1:
        return added(graph, names[0], letters)
    if node.op_type == "Where" and names == [node.input[0]]:
        hides_true = graph.scalar(node.input[1]) is not None
        mask = mask_input(graph, names[0], "drop" if hides_true else "keep", letters)
        return Added(masks=(mask,))
    if node.op_type in _AXES and all(graph.numbers(name) is not None for name in names):
        return Added()
    shown = f"{node.op_type} node {_shown(node)}"
    if node.op_type in _WITH_NUMBERS:
        msg = f"the {shown} combines its scores or weights with the tensor {names[0]}"
    else:
        msg = f"the {shown} between its products reads {names[0]} from outside"
    raise UnreadableError(msg)


def _way(graph: ModelGraph, core: Core) -> list[Node]:
    """The nodes that lie between the first product and the answer, in order."""
    wiring = graph.wiring
    below = {core.product}
    waiting = [core.product]
    while waiting:
        for node in wiring.consumers[waiting.pop()]:
            is_product = contraction_of(node) is not None and core.weights not in node.input
            if is_product or core.heads in below & set(node.input):
                continue
            fresh = {name for name in node.output if name} - below
            below |= fresh
            waiting += sorted(fresh - {core.heads})
    found: dict[str, Node] = {}
    back = [core.heads]
    while back:
        name = back.pop()
        maker = wiring.producer.get(name)
        if maker is None or name not in below or maker.output[0] in found:
            continue
        found[maker.output[0]] = maker
        if name != core.product:
            back += [entry for entry in maker.input if entry]
    nodes = _sorted(list(found.values()))
    for node in nodes:
        if contraction_of(node) is None and node.op_type not in _ON_THE_WAY:
            why = _REASONS.get(node.op_type, "lies between its products, which cannot be cut yet")
            msg = f"the {node.op_type} node {_shown(node)} {why}"
            raise UnreadableError(msg)
    return nodes


def _sorted(nodes: list[Node]) -> list[Node]:
    """Nodes, each behind those it reads from."""
    result: list[Node] = []
    unmade = {name for node in nodes for name in node.output}
    while nodes:
        ready = [node for node in nodes if unmade.isdisjoint(node.input)]
        if not ready:
            return [*result, *nodes]
        result += ready
        unmade -= {name for node in ready for name in node.output}
        nodes = [node for node in nodes if node not in ready]
    return result


def _scale_and_cap(
    graph: ModelGraph, core: Core, edges: dict[str, Edge], inside: Sequence[Node]
) -> tuple[float, float | None]:
    """What the dot products are multiplied by before the softmax, and where that is capped.

    ``c * tanh(scores / c)``: what stands before the bend and after it is the scale.
    """
    result = core.product_factor * edges["query"].factor(graph) * edges["key"].factor(graph)
    name, cap = core.product, None
    below = {node.input[at]: node for node in inside for at in range(len(node.input))}
    for _ in inside:
        node = below.get(name)
        if node is None or node.op_type in SOFTMAXES or contraction_of(node) is not None:
            break
        if node.op_type == "Tanh":
            cap = 1.0
        elif node.op_type in ("Mul", "Div"):
            before, result = result, _times(graph, node, name, result)
            cap = cap * result / before if cap and before else cap
        name = node.output[0]
    return result, cap


def _times(graph: ModelGraph, node: Node, name: str, result: float) -> float:
    other = next((entry for entry in node.input if entry != name), name)
    number = graph.scalar(other)
    if number is None:
        return result
    if node.op_type == "Mul":
        return result * number
    return result / number if number else result


def is_standard(scale: float, head_size: int) -> bool:
    """Whether a number is 1/sqrt(head size) but for roundings in float16 or better."""
    bound = _ROUNDINGS * float(np.finfo(np.float16).eps)
    return abs(scale * math.sqrt(head_size) - 1) <= bound


# The inputs of the attention nodes besides query, key and value: masks, what belongs to the
# projections, and what cannot be cut with them.
_NODE_MASK: Final = {"Attention": 3, "MultiHeadAttention": 5}
_PADDING: Final = {"MultiHeadAttention": 4}
_PROJECTED: Final = {"MultiHeadAttention": 3}
_NODE_REFUSED: Final[dict[str, dict[int, str]]] = {
    "Attention": {4: "a cache", 5: "a cache", 6: "numbers of keys"},
    "MultiHeadAttention": {6: "a cache", 7: "a cache"},
}


def _of_node(graph: ModelGraph, node: Node, core: Core, index: int) -> Site:
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
        edges = _edges(graph, {part: (name, letters) for part, name in names.items()})
    else:
        edges = {part: _whole(name) for part, name in names.items()}
    masks, before = _node_masks(graph, node)
    site = _site(
        graph,
        Site(
            index=index,
            nodes=(_shown(node),),
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
