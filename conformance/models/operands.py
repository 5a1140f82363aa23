"""The inputs of an attention: the heads behind each operand of its products, and its masks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import onnx

from ..graphs.reading import Axis
from ..graphs.weights.wiring import Node, UnreadableError, attributes
from .model_graph import ModelGraph

# A factor of a tensor: operator, and name of the multiplying or dividing number.
Factor = tuple[str, str]
_HEADS: Final = frozenset("BHLD")


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A tensor of heads where it enters an attention.

    name, letters: the tensor in the graph and its axes: ``B`` item, ``H`` head, ``L`` position,
        ``D`` feature, ``F`` items and heads in one, ``M`` heads and features in one.
    operand, operand_letters: the tensor the product or node reads instead, and its axes.
    factors: multiplications and divisions on the way, the first one last.
    groups: the number of query heads sharing one of its heads.
    tiled: with groups: query head ``h`` reads head ``h % heads`` in place of ``h // groups``.
    """

    name: str
    letters: str
    operand: str
    operand_letters: str
    factors: tuple[Factor, ...] = ()
    groups: int = 1
    tiled: bool = False

    def size(self, graph: ModelGraph, letter: str) -> int | None:
        """The size of an axis, where the file says it."""
        shape = graph.shape(self.name)
        if letter not in self.letters or len(shape) != len(self.letters):
            return None
        size = shape[self.letters.index(letter)]
        return size if isinstance(size, int) else None

    def factor(self, graph: ModelGraph) -> float:
        """Return the product of the edge's factors."""
        result = 1.0
        for operator, name in self.factors:
            number = graph.scalar(name) or 0.0
            result = result * number if operator == "Mul" else result / (number or math.inf)
        return result


def edge_of(
    graph: ModelGraph, operand: str, letters: str, *, grouped: bool = True, scaled: bool = True
) -> Edge:
    """Find the heads behind an operand: above all turns of its axes.

    grouped
        Also above a repetition for query heads sharing them.
    scaled
        Also above factors: these are the scale of query and key, but no part of attention on
        values.

    Raises UnreadableError for a factor nobody can work out.
    """
    here = Edge(name=operand, letters=letters, operand=operand, operand_letters=letters)
    best = here
    while True:
        node = graph.wiring.producer.get(here.name)
        above = None if node is None else _above(graph, node, here)
        if above is None or (above.groups > 1 and not grouped):
            return best
        if above.factors and not scaled:
            return best
        here = above
        packed = "M" in here.letters and here.factors != best.factors
        if packed or set(here.letters) in (_HEADS, set("FLD")):
            best = here


def _above(graph: ModelGraph, node: Node, here: Edge) -> Edge | None:
    """Return the edge above a node that only moves, repeats or scales; else None."""
    step = _STEPS.get(node.op_type)
    return None if step is None or node.domain not in ("", "ai.onnx") else step(graph, node, here)


def _same(_graph: ModelGraph, node: Node, here: Edge) -> Edge:
    return replace(here, name=node.input[0])


def _added_to(graph: ModelGraph, node: Node, here: Edge) -> Edge | None:
    """Return the edge above a sum with zero, left behind a factor by some converters."""
    places = [at for at, name in enumerate(node.input) if graph.scalar(name) == 0]
    return replace(here, name=node.input[1 - places[0]]) if len(places) == 1 else None


def _multiplied(graph: ModelGraph, node: Node, here: Edge) -> Edge | None:
    places = [at for at, name in enumerate(node.input) if graph.scalar(name) is not None]
    unknown = [name for name in node.input if graph.shape(name) == (1,) or graph.rank(name) == 0]
    # Factors on whole projections belong to these, such as the scale of integers.
    if not places and unknown and "M" not in here.letters and not _of_integers(graph, node):
        msg = f"it is multiplied by {unknown[0]}, a number that is computed elsewhere"
        raise UnreadableError(msg)
    if len(places) != 1 or (node.op_type == "Div" and places != [1]):
        return None
    factor = (node.op_type, node.input[places[0]])
    return replace(here, name=node.input[1 - places[0]], factors=(*here.factors, factor))


def _of_integers(graph: ModelGraph, node: Node) -> bool:
    """Tell whether a node multiplies integers by their quantisation step."""
    makers = [graph.wiring.producer.get(name) for name in node.input]
    return any(
        each is not None and each.op_type == "Cast" and graph.type(each.input[0]) in _INTEGERS
        for each in makers
    )


def _turned(_graph: ModelGraph, node: Node, here: Edge) -> Edge | None:
    order = attributes(node).get("perm")
    if order is None or len(order) != len(here.letters) or "M" in here.letters:
        return None
    letters = [""] * len(order)
    for at, source in enumerate(order):
        letters[source] = here.letters[at]
    return replace(here, name=node.input[0], letters="".join(letters))


def _reshaped(graph: ModelGraph, node: Node, here: Edge) -> Edge | None:
    """Return the edge above a ``Reshape``, including one without effect."""
    if _keeps_shape(graph, node):
        return _same(graph, node, here)
    return _refolded(graph, node, here)


def _refolded(graph: ModelGraph, node: Node, here: Edge) -> Edge | None:
    """Return the edge above a ``Reshape`` that joins or splits items, heads and features."""
    above = node.input[0]
    rank, letters = graph.rank(above), here.letters
    # A fold of items and heads keeps the last two axes.
    kept = list(zip(graph.shape(above)[::-1], graph.shape(here.name)[::-1], strict=False))[:2]
    keeps = not any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in kept)
    if rank == len("BHLD") and letters.startswith("F") and keeps:
        return replace(here, name=above, letters="BH" + letters[1:])
    if rank == len("FLD") and letters.startswith("BH") and keeps:
        return replace(here, name=above, letters="F" + letters[2:])
    if rank == len("BLM") and letters in ("BLHD", "LBHD"):
        return replace(here, name=above, letters=letters[:2] + "M")
    if rank == len("BHLD") + 1 and letters == "BHLD":
        return _repeated(graph, above, here)
    if rank == len("BHLD") + 1 and letters.startswith("F"):  # with an axis of one
        ones = [at for at, size in enumerate(graph.shape(above)) if size == 1 and at > 1]
        if len(ones) == 1:
            apart = list("BH" + letters[1:])
            apart.insert(ones[0], "1")
            return replace(here, name=above, letters="".join(apart))
    return None


def _keeps_shape(graph: ModelGraph, node: Node) -> bool:
    above, below = graph.shape(node.input[0]), graph.shape(node.output[0])
    unlike = [(a, b) for a, b in zip(above, below, strict=False) if a != b or a is None]
    if above and len(above) == len(below) and len(unlike) <= 1:
        return not any(isinstance(a, int) and isinstance(b, int) for a, b in unlike)
    goal = graph.wiring.producer.get(node.input[1])
    if goal is None or goal.op_type != "Shape" or attributes(goal):
        return False
    own, other = (_elementwise_root(graph, each.input[0]) for each in (node, goal))
    return own == other


def _elementwise_root(graph: ModelGraph, name: str) -> str:
    """Follow elementwise operations with numbers up to their tensor."""
    while (node := graph.wiring.producer.get(name)) is not None:
        tensors = [own for own in node.input if own and graph.scalar(own) is None]
        if node.op_type not in ("Add", "Cast", "Div", "Identity", "Mul", "Neg", "Sub"):
            break
        if len(tensors) != 1:
            break
        (name,) = tensors
    return name


def _with_one(graph: ModelGraph, node: Node, here: Edge) -> Edge | None:
    """Return the edge above an ``Unsqueeze`` that added an axis of size 1."""
    axes = _axes_of(graph, node)
    if len(axes) != 1 or here.letters[axes[0] : axes[0] + 1] != "1":
        return None
    letters = here.letters[: axes[0]] + here.letters[axes[0] + 1 :]
    return replace(here, name=node.input[0], letters=letters)


def _repeated(graph: ModelGraph, name: str, here: Edge) -> Edge | None:
    """Return the edge above ``Unsqueeze`` and ``Expand`` repeating heads for their group."""
    expand = graph.wiring.producer.get(name)
    if expand is None or expand.op_type != "Expand" or here.groups != 1:
        return None
    inner = graph.wiring.producer.get(expand.input[0])
    if inner is None or inner.op_type not in ("Unsqueeze", "Reshape"):
        return None
    one = graph.shape(expand.input[0])
    places = [at for at in (1, 2) if len(one) > at and one[at] == 1]
    if inner.op_type == "Unsqueeze":
        places = _axes_of(graph, inner)
    if graph.rank(inner.input[0]) != len("BHLD") or len(places) != 1 or places[0] not in (1, 2):
        return None
    at = places[0]
    numbers = graph.numbers(expand.input[1])
    groups: Axis = graph.shape(name)[at] if graph.shape(name) else None
    if not isinstance(groups, int) and numbers is not None and not math.isnan(numbers[at]):
        groups = int(numbers[at])
    if not isinstance(groups, int) or groups < 1:
        return None
    return replace(here, name=inner.input[0], groups=groups, tiled=at == 1)


def _axes_of(graph: ModelGraph, node: Node) -> list[int]:
    """Return the axes added by an ``Unsqueeze``, before opset 13 an attribute."""
    numbers = graph.numbers(node.input[1]) if len(node.input) > 1 else None
    # torch's exporter writes a single axis as a number.
    axes = attributes(node).get("axes", ()) if numbers is None else numbers.reshape(-1)
    return [int(axis) for axis in axes]


def _tiled(graph: ModelGraph, node: Node, here: Edge) -> Edge | None:
    """Return the edge above a ``Tile`` along the heads."""
    numbers = graph.numbers(node.input[1])
    at = here.letters.find("H")
    if numbers is None or at < 0 or here.groups != 1 or len(numbers) != len(here.letters):
        return None
    others = [number for place, number in enumerate(numbers) if place != at]
    if any(number != 1 for number in others) or math.isnan(numbers[at]):
        return None
    return replace(here, name=node.input[0], groups=int(numbers[at]), tiled=True)


_STEPS: Final = {
    "Add": _added_to,
    "Div": _multiplied,
    "Dropout": _same,
    "Identity": _same,
    "Mul": _multiplied,
    "Reshape": _reshaped,
    "Tile": _tiled,
    "Transpose": _turned,
    "Unsqueeze": _with_one,
}


@dataclass(frozen=True, kw_only=True)
class MaskInput:
    """A tensor that says which keys may be attended.

    role: ``keep``: True attends; ``drop``: True hides; ``bias``: added to the scores; ``lengths``:
        the number of attended keys of each item.
    axes: one letter an axis: ``B``, ``H``, ``Q``, ``K``, ``F``, and ``1`` for an axis of size 1.
    factor: the factor on a bias after its addition, shared with the scores: their scale, or -1.
    """

    name: str
    role: str
    axes: str
    factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Added:
    """A tensor added to the scores: its masks, and the nodes that combine them."""

    masks: tuple[MaskInput, ...] = ()
    nodes: tuple[Node, ...] = ()


def added(graph: ModelGraph, name: str, letters: str) -> Added:
    """Read a tensor added to scores with axes ``letters``, including its fills.

    ``Where`` with numbers and sums belong to the attention; their conditions are its masks. Raises
    UnreadableError for a tensor of integers.
    """
    node = graph.wiring.producer.get(name)
    if node is not None and node.op_type in ("Expand", "Identity"):  # the sum broadcasts, too
        passed = onnx.helper.make_node("Identity", [node.input[0]], [name])
        if graph.scalar(node.input[0]) is not None:  # one number for every score
            return Added(nodes=(passed,))
        inner = added(graph, node.input[0], letters)
        if not inner.nodes:
            return Added(masks=(mask_input(graph, name, "bias", letters),))
        return replace(inner, nodes=(*inner.nodes, passed))
    if node is not None and node.op_type in ("Where", "Mul"):
        fills = _choice if node.op_type == "Where" else _filled
        filled = fills(graph, node, letters)
        if filled is not None:
            return filled
    if node is not None and node.op_type == "Add":
        parts = [added(graph, part, letters) for part in node.input if graph.scalar(part) is None]
        if len(parts) > 1:
            masks = tuple(dict.fromkeys(mask for part in parts for mask in part.masks))
            return Added(masks=masks, nodes=(*parts[0].nodes, *parts[1].nodes, node))
    return Added(masks=(mask_input(graph, name, "bias", letters),))


def _choice(graph: ModelGraph, node: Node, letters: str) -> Added | None:
    """Read a ``Where`` that replaces hidden scores by a number."""
    condition, if_true, if_false = node.input
    numbers = [graph.scalar(if_true), graph.scalar(if_false)]
    lowest = min((number for number in numbers if number is not None), default=0.0)
    if lowest >= 0 or numbers[0] == numbers[1]:
        return None
    hides_true = numbers[0] == lowest
    mask = mask_input(graph, condition, "drop" if hides_true else "keep", letters)
    other = if_false if hides_true else if_true
    if graph.scalar(other) is not None:
        return Added(masks=(mask,), nodes=(node,))
    inner = added(graph, other, letters)
    return Added(masks=(mask, *inner.masks), nodes=(*inner.nodes, node))


def _filled(graph: ModelGraph, node: Node, letters: str) -> Added | None:
    """Read a negative number times a mask that is 1 where it hides."""
    numbers = [graph.scalar(name) for name in node.input]
    known = [number for number in numbers if number is not None]
    if len(known) != 1 or known[0] >= 0:
        return None
    marks = marked(graph, node.input[numbers.index(None)], letters, hides=True)
    return None if marks is None else replace(marks, nodes=(*marks.nodes, node))


def marked(graph: ModelGraph, name: str, letters: str, *, hides: bool) -> Added | None:
    """Read a mask as numbers, 1 where it keeps or hides; None for any other tensor."""
    node = graph.wiring.producer.get(name)
    if node is None or node.op_type != "Cast" or graph.type(node.input[0]) != _BOOL:
        return None
    inner = _chosen(graph, node.input[0], letters, hides=hides)
    return replace(inner, nodes=(*inner.nodes, node))


def _chosen(graph: ModelGraph, name: str, letters: str, *, hides: bool) -> Added:
    """Read the mask behind negations, and behind ``And`` with a constant True."""
    node = graph.wiring.producer.get(name)
    if node is not None and node.op_type == "Not":
        inner = _chosen(graph, node.input[0], letters, hides=not hides)
        return replace(inner, nodes=(*inner.nodes, node))
    if node is not None and node.op_type == "And":
        others = [part for part in node.input if not _always_true(graph, part)]
        if len(others) == 1:
            inner = _chosen(graph, others[0], letters, hides=hides)
            passed = onnx.helper.make_node("Identity", others, [name])
            return replace(inner, nodes=(*inner.nodes, passed))
    return Added(masks=(mask_input(graph, name, "drop" if hides else "keep", letters),))


def _always_true(graph: ModelGraph, name: str) -> bool:
    node = graph.wiring.producer.get(name)
    return node is not None and node.op_type == "Expand" and graph.scalar(node.input[0]) == 1


_BOOL: Final = 9
# The numbers in onnx of the types of floats.
FLOATS: Final = (1, 10, 11, 16)
_INTEGERS: Final = (2, 3, 6)


def mask_input(graph: ModelGraph, name: str, role: str, letters: str) -> MaskInput:
    """Return a mask of a role on scores with these axes; raises UnreadableError for integers."""
    kind = graph.type(name)
    if role == "bias" and kind not in (0, *FLOATS):
        msg = f"what is added to its scores ({name}) is no tensor of floats"
        raise UnreadableError(msg)
    if role != "bias" and kind not in (0, _BOOL):
        msg = f"what its scores are chosen by ({name}) is no boolean tensor"
        raise UnreadableError(msg)
    rank = graph.rank(name)
    if rank == 0:
        msg = f"a number that is computed elsewhere ({name}) is added to its scores"
        raise UnreadableError(msg)
    if rank is None or rank > len(letters):
        rank = len(letters)
    shape = graph.shape(name)
    own = letters[len(letters) - rank :]
    return MaskInput(name=name, role=role, axes=_axes(own, shape))


def _axes(letters: str, shape: tuple[Axis, ...]) -> str:
    """Return the letters of a mask, ``1`` for axes of size 1 and for heads of unknown number.

    The axis of items keeps its letter: the sum broadcasts.
    """
    if len(shape) != len(letters):
        return letters.replace("H", "1")
    result = ""
    for letter, size in zip(letters, shape, strict=True):
        open_heads = letter == "H" and not isinstance(size, int)
        result += "1" if open_heads or (size == 1 and letter not in "BF") else letter
    return result
