"""The attention around a softmax between two products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ..graphs.weights.attention_core import SOFTMAXES, Core, contraction_of
from ..graphs.weights.wiring import SHAPE_OPERATORS, Node, UnreadableError, attributes
from .model_graph import ModelGraph
from .operands import Added, Edge, MaskInput, added, marked, mask_input
from .site import Sinks, Site, Step, completed, edges_of, shown

_OPERAND_LETTERS: Final = {3: "FLD", 4: "BHLD"}


def softmax_site(graph: ModelGraph, softmax: Node, core: Core, index: int) -> Site:
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
    edges = edges_of(
        graph,
        {
            "query": (core.query.name, query),
            "key": (core.key.name, key),
            "value": (core.value.name, mean[1 - weighted]),
        },
    )
    inside, masks, sinks = _between(graph, core, before + "QK")
    scale, cap = _scale_and_cap(graph, core, edges, inside)
    site = completed(
        graph,
        Site(
            index=index,
            steps=_steps(graph, softmax, inside),
            nodes=(shown(first), shown(softmax), shown(second)),
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
            sinks=sinks,
        ),
    )
    if site.heads is None and any(node.op_type in _FOLDING for node in inside):
        msg = "its scores change their axes, and the number of its heads is not known"
        raise UnreadableError(msg)
    return site


def _axes_of(node: Node, before: str, scores: int) -> list[str]:
    """Return the axes of a product's operands and result, in the letters of :class:`Edge`.

    ``scores`` is the position of the tensor with axes of queries and of keys, behind ``before``.
    Raises UnreadableError for axes in another order.
    """
    product = contraction_of(node)
    letters: tuple[str, ...] = () if product is None else product.letters
    if all(len(axes) == len("QK") for axes in letters):  # the leading axes go without saying
        letters = tuple(before.lower() + axes for axes in letters)
    if not letters or len(letters[scores]) != len(before) + len("QK"):
        msg = f"the axes of its product {shown(node)} cannot be told"
        raise UnreadableError(msg)
    names = dict(zip(letters[scores], before + "LL", strict=True))
    result = ["".join(names.get(axis, "D") for axis in axes) for axes in letters]
    others = [axes for place, axes in enumerate(result) if place != scores]
    if any(set(axes) != {*before, "L", "D"} or len(axes) != len(before) + 2 for axes in others):
        msg = f"the axes of its product {shown(node)} are none of items, heads and positions"
        raise UnreadableError(msg)
    return result


def _mean_node(graph: ModelGraph, core: Core) -> Node:
    """Return the product of weights and values."""
    for node in graph.wiring.consumers[core.weights]:
        product = contraction_of(node)
        if product is not None and core.value.name in product.operands:
            return node
    msg = "no product of the softmax with values was found"
    raise UnreadableError(msg)


# Quantisation by known steps, and back: an attention alone does without.
QUANTISING: Final = frozenset({"QuantizeLinear", "DequantizeLinear"})
# Nodes between scores and weights, besides adding, choosing and multiplying ones.
_PLAIN: Final = QUANTISING | frozenset(
    "Cast Dropout Exp Identity IsNaN LogSoftmax Neg Not ReduceMax ReduceSum Softmax Clip".split()
)
_WITH_NUMBERS: Final = frozenset({"Mul", "Div", "Sub", "Max", "Min", "Pow"})
_AXES: Final = frozenset({"ReduceMax", "ReduceSum", "Clip", "Dropout"})
_FOLDING: Final = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
# After these come weights: a factor on weights is no scale.
_ENDS: Final = SOFTMAXES | {"Exp"}
_MOVING: Final = _FOLDING | {"Concat", "Slice"}
_ON_THE_WAY: Final = _PLAIN | _WITH_NUMBERS | _MOVING | {"Add", "Tanh", "Where"}
# Nodes allowed between weights and the product with values.
TO_PRODUCT: Final = _ON_THE_WAY | {"Expand", "Transpose"}
_SCORES: Final = {len("FQK"): "FQK", len("BHQK"): "BHQK"}
# With an axis of size 1, left by converters of equations.
_RANKS: Final = (*_SCORES, len("BHQK") + 1)


def _between(
    graph: ModelGraph, core: Core, letters: str
) -> tuple[tuple[Node, ...], tuple[MaskInput, ...], Sinks | None]:
    """Return the nodes from the first product to the answer in order, the masks, and the sinks."""
    nodes = _way(graph, core)
    made = {name for node in nodes for name in node.output}
    operands = {core.query.name, core.key.name, core.value.name}
    inside: list[Node] = []
    masks: list[MaskInput] = []
    sinks: Sinks | None = None
    for node in nodes:
        strangers = [
            name
            for name in node.input
            if name and name not in made | operands and graph.scalar(name) is None
        ]
        if node.op_type in _MOVING:
            sinks = _moved(graph, node, strangers, sinks)
        elif contraction_of(node) is None and strangers and node.op_type not in QUANTISING:
            own = _SCORES.get(graph.rank(node.output[0]) or 0, letters)
            entering = _entering(graph, node, strangers, own)
            inside += [each for each in entering.nodes if each not in inside]
            after = _factor_below(graph, node, nodes)
            scaled = [replace(mask, factor=after * mask.factor) for mask in entering.masks]
            masks += [mask for mask in scaled if mask not in masks]
        inside.append(node)
    return tuple(inside), tuple(masks), sinks


def _steps(graph: ModelGraph, softmax: Node, inside: Sequence[Node]) -> tuple[Step, ...]:
    """Return the quantisation steps of scores and weights; raises UnreadableError."""
    steps, before = [], {softmax.input[0]}
    for node in reversed(inside):  # in order: each comes behind what it reads
        before |= set(node.input) if before & set(node.output) else set()
    for node in inside:
        if node.op_type != "QuantizeLinear":
            continue
        known = graph.step_of(node)
        if known is None:
            msg = f"the QuantizeLinear node {shown(node)} has a step that only a run shows"
            raise UnreadableError(msg)
        scores = node.output[0] in before
        factor = _factor_below(graph, node, inside) if scores else 1.0
        size, least, most = known
        steps.append(Step(of_scores=scores, size=size, least=least, most=most, factor=factor))
    return tuple(steps)


def _factor_below(graph: ModelGraph, node: Node, nodes: Sequence[Node]) -> float:
    below = {name: each for each in nodes for name in each.input}
    result, name = 1.0, str(node.output[0])
    for _ in nodes:
        here = below.get(name)
        if here is None or here.op_type in _ENDS or contraction_of(here) is not None:
            break
        if here.op_type in ("Mul", "Div"):
            result = _times(graph, here, name, result)
        name = here.output[0]
    return result


def _moved(
    graph: ModelGraph, node: Node, strangers: Sequence[str], sinks: Sinks | None
) -> Sinks | None:
    """Return the sinks after a node that changes axes of scores; raises UnreadableError."""
    what = f"the {node.op_type} node {shown(node)}"
    if node.op_type in _FOLDING:
        ranks = {graph.rank(name) for name in (node.input[0], node.output[0])}
        if not ranks <= set(_RANKS):
            msg = f"{what} between its products gives its scores other axes than items and heads"
            raise UnreadableError(msg)
        return sinks
    if node.op_type == "Slice":
        if sinks is None:
            msg = f"{what} between its products takes some of its scores or weights alone"
            raise UnreadableError(msg)
        if not all(map(graph.is_known, strangers)):
            msg = f"{what} takes as many of its weights as the sizes of a call say"
            raise UnreadableError(msg)
        return sinks
    rank = graph.rank(node.output[0]) or len("BHQK")
    last = rank == len("BHQK") and attributes(node)["axis"] in (-1, rank - 1)
    stored = _each_head(graph, strangers[0]) if len(strangers) == 1 and last else ""
    if sinks is not None or not stored:
        msg = f"{what} puts more beside its scores than one stored number a head"
        raise UnreadableError(msg)
    return Sinks(tensor=strangers[0], stored=stored)


def _each_head(graph: ModelGraph, name: str) -> str:
    """Return the stored numbers by head repeated in ``[items, heads, queries, 1]``, or ""."""
    node = graph.wiring.producer.get(name)
    while node is not None and node.op_type in ("Expand", "Identity", "Reshape", "Unsqueeze"):
        name = node.input[0]
        node = graph.wiring.producer.get(name)
    value = graph.stored(name)
    heads = None if value is None else [size for size in value.shape if size > 1]
    return name if heads is not None and len(heads) <= 1 else ""


def _entering(graph: ModelGraph, node: Node, names: Sequence[str], letters: str) -> Added:
    """Read the mask entering by a node; raises UnreadableError if it is no mask."""
    if node.op_type == "Add" and len(names) == 1:
        return added(graph, names[0], letters)
    if node.op_type == "Mul" and len(names) == 1:
        marks = marked(graph, names[0], letters, hides=False)
        if marks is not None:
            return marks
    if node.op_type == "Sub" and names == [node.input[1]]:
        mask = mask_input(graph, names[0], "bias", letters)
        return Added(masks=(replace(mask, factor=-1.0),))
    if node.op_type == "Where" and names == [node.input[0]]:
        hides_true = graph.scalar(node.input[1]) is not None
        mask = mask_input(graph, names[0], "drop" if hides_true else "keep", letters)
        return Added(masks=(mask,))
    if node.op_type in _AXES and all(map(graph.is_known, names)):
        return Added()
    what = f"{node.op_type} node {shown(node)}"
    if node.op_type in _WITH_NUMBERS:
        msg = f"the {what} combines its scores or weights with the tensor {names[0]}"
    else:
        msg = f"the {what} between its products reads {names[0]} from outside"
    raise UnreadableError(msg)


def _way(graph: ModelGraph, core: Core) -> list[Node]:
    """Return the nodes between the first product and the answer, in order."""
    wiring = graph.wiring
    below = {core.product}
    waiting = [core.product]
    while waiting:
        for node in wiring.consumers[waiting.pop()]:
            if node.op_type in SHAPE_OPERATORS:
                continue
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
            msg = f"the {node.op_type} node {shown(node)} between its products is none of attention"
            raise UnreadableError(msg)
    return nodes


def _sorted(nodes: list[Node]) -> list[Node]:
    """Sort nodes topologically."""
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
    """Return the factor on the dot products before the softmax, and their cap.

    In ``c * tanh(scores / c)`` the scale includes the factors before and after the bend.
    """
    result = core.product_factor * edges["query"].factor(graph) * edges["key"].factor(graph)
    name, cap = core.product, None
    below = {node.input[at]: node for node in inside for at in range(len(node.input))}
    for _ in inside:
        node = below.get(name)
        if node is None or node.op_type in _ENDS or contraction_of(node) is not None:
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
