"""The attention core of a graph: two products with a softmax between them, or a single node."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx

from ...base.files import scratch
from ..parsing import all_tensors, embedded, inlined
from ..process import GraphProcess
from .wiring import Node, UnreadableError, Wiring, attributes

_WITH_TRANSPOSES: Final = frozenset({"FusedMatMul", "TransposeMatMul", "Gemm"})
_PRODUCTS: Final = _WITH_TRANSPOSES | {"MatMul", "MatMulInteger"}


@dataclass(frozen=True)
class Contraction:
    """A product of two tensors with lettered axes: ``...qd,...dk->...qk``.

    letters: of the two operands and of the output, without axes leading in all three.
    factor: the factor on the product.
    """

    operands: tuple[str, str]
    output: str
    letters: tuple[str, str, str]
    factor: float = 1.0

    def index_of(self, name: str) -> int:
        """The number of an operand."""
        return self.operands.index(name)

    def shared_axis(self, index: int) -> int:
        """The axis of an operand that is summed over."""
        own, other, output = self.letters[index], self.letters[1 - index], self.letters[2]
        return _only(own, [x for x in own if x in other and x not in output])

    def own_axis(self, index: int) -> int:
        """Return the axis of an operand absent from the other operand."""
        own, other = self.letters[index], self.letters[1 - index]
        return _only(own, [x for x in own if x not in other])

    def place(self, index: int) -> int:
        """Return the output axis, counted from the end, that is an operand's own axis."""
        own = self.letters[index][self.own_axis(index)]
        return self.letters[2].index(own) - len(self.letters[2])


def contraction_of(node: Node) -> Contraction | None:
    """Return a node as a contraction of its first two inputs, None for other nodes."""
    if node.op_type == "Einsum":
        return _einsum(node)
    if node.op_type not in _PRODUCTS:
        return None
    values = attributes(node)
    turns = node.op_type in _WITH_TRANSPOSES
    left = "dq" if turns and values.get("transA") else "qd"
    right = "kd" if turns and values.get("transB") else "dk"
    return Contraction(
        (node.input[0], node.input[1]),
        node.output[0],
        (left, right, "qk"),
        values.get("alpha", 1.0),
    )


def _einsum(node: Node) -> Contraction | None:
    equation = attributes(node)["equation"].replace(" ", "").replace("...", "")
    if len(node.input) != len(("left", "right")) or "->" not in equation:
        return None
    inputs, output = equation.split("->")
    left, right = inputs.split(",")
    return Contraction((node.input[0], node.input[1]), node.output[0], (left, right, output))


def _only(letters: str, result: list[str]) -> int:
    """Return the position of the single letter, from the end; an ellipsis may precede it."""
    if len(result) != 1:
        msg = f"{letters} has {len(result)} axes where one is needed"
        raise UnreadableError(msg)
    return letters.index(result[0]) - len(letters)


SOFTMAXES: Final = frozenset({"Softmax", "LogSoftmax"})
# The search for a product stops at these: behind them tokens are mixed differently.
_WALLS: Final = frozenset({"LayerNormalization", "SimplifiedLayerNormalization", "Conv"})
_GATHERS: Final = frozenset({"Gather", "GatherElements", "GatherND", "Pad"})


@dataclass(frozen=True, kw_only=True)
class HeadTensor:
    """A tensor of heads, and the axis of its features (counted from the end or the start)."""

    name: str
    feature: int


@dataclass(frozen=True, kw_only=True)
class Core:
    """The tensors of an attention in a graph.

    product, scores: the product of query and key, and the softmax's input; "" inside a node.
    product_factor: the factor of the product's node.
    heads, heads_feature, heads_length: the weighted mean, with its axes of features and queries.
    num_heads, num_kv_heads, scale: from a node's attributes, else None.
    bias: the tensor of the biases a node adds itself, query's, key's and value's in one.
    matrix, widths: the tensor of its projections, with the columns of each (none: thirds).
    """

    query: HeadTensor
    key: HeadTensor
    value: HeadTensor
    heads: str
    heads_feature: int = -1
    heads_length: int = -2
    product: str = ""
    product_factor: float = 1.0
    scores: str = ""
    weights: str = ""
    num_heads: int | None = None
    num_kv_heads: int | None = None
    scale: float | None = None
    bias: str = ""
    matrix: str = ""
    widths: tuple[int, ...] = ()

    @property
    def head_counts(self) -> dict[str, int | None]:
        """How many heads lie side by side in the last axis of each part's tensor."""
        shared = self.num_kv_heads or self.num_heads
        return {"query": self.num_heads, "key": shared, "value": shared}


# Errors of foreign structures, such as axes that an equation has not.
UNUSUAL: Final = (ValueError, KeyError, IndexError, TypeError, RecursionError)


def each_core(
    wiring: Wiring,
    tokens: frozenset[str],
    reader: Callable[[Node], Callable[[Node], Core] | None],
    **how: Any,
) -> Iterator[tuple[Node, Core | Exception]]:
    """Yield each attention node, and softmax that tokens reach, with its core, or why it has none.

    In the order of execution. reader: returns what reads an attention node as a core, None for
    other nodes; how: see :func:`core_around`.
    """
    products: set[str] = set()
    for node in wiring.ordered:
        read = reader(node)
        if read is None and not wiring.reaching(scores_of(wiring, node), tokens):
            continue
        try:
            core = read(node) if read else core_around(wiring, tokens, node, **how)
        except (UnreadableError, *UNUSUAL) as error:
            yield node, error
            continue
        # A softmax of a softmax has the same products around it.
        if not core.product or core.product not in products:
            yield node, core
        products.add(core.product)


def scores_of(wiring: Wiring, node: Node) -> str:
    """Return the input of a softmax, or of a written-out softmax's exponential; else ""."""
    if node.op_type in SOFTMAXES:
        return str(node.input[0])
    if node.op_type != "Exp":
        return ""
    source = wiring.producer.get(node.input[0])
    if source is not None and source.op_type in SOFTMAXES:
        return ""
    if source is not None and source.op_type == "Sub":
        maximum = wiring.producer.get(source.input[1])
        if maximum is not None and source.input[0] in maximum.input:
            return str(source.input[0])
    return str(node.input[0])


def core_around(
    wiring: Wiring,
    tokens: frozenset[str],
    softmax: Node,
    *,
    direct: bool = False,
    learned: Callable[[str], bool] | None = None,
) -> Core:
    """Return the core around a softmax, or around a written-out softmax's exponential.

    direct: of several products, the query-key product keeps entries in place; gathered products,
    for example scores of distances, are added to it. learned: whether a tensor that no token
    reaches may be heads of queries, as a detector's are, where no product has two of tokens.

    Raises UnreadableError if the softmax is not between two products reached by tokens.
    """
    scores = scores_of(wiring, softmax)
    found = products_above(wiring, tokens, scores, direct=direct)
    if not found and learned is not None:
        found = _up_to(wiring, tokens, scores, _WALLS, learned)
    if len(found) != 1:
        msg = f"the scores come from {len(found)} products of tokens instead of one"
        raise UnreadableError(msg)
    first = found[0]
    weights, second = _product_below(wiring, tokens, softmax.output[0])
    left, right = first.operands
    weighted = second.index_of(weights)
    heads = second.output
    return Core(
        query=HeadTensor(name=left, feature=first.shared_axis(0)),
        key=HeadTensor(name=right, feature=first.shared_axis(1)),
        value=HeadTensor(name=second.operands[1 - weighted], feature=second.own_axis(1 - weighted)),
        product=first.output,
        product_factor=first.factor,
        scores=scores,
        weights=weights,
        heads=_normalised(wiring, tokens, heads),
        heads_feature=second.place(1 - weighted),
        heads_length=second.place(weighted),
    )


def products_above(
    wiring: Wiring, tokens: frozenset[str], scores: str, *, direct: bool = True
) -> list[Contraction]:
    """Return the products of token-reached tensors in the scores; see :func:`core_around`."""
    found = _up_to(wiring, tokens, scores, _WALLS)
    return _up_to(wiring, tokens, scores, _WALLS | _GATHERS) if direct and len(found) > 1 else found


def _up_to(
    wiring: Wiring,
    tokens: frozenset[str],
    scores: str,
    walls: frozenset[str],
    learned: Callable[[str], bool] = lambda _name: False,
) -> list[Contraction]:
    result, visited, waiting = [], {scores}, [scores]
    while waiting:
        name = waiting.pop()
        node = wiring.producer.get(name)
        # A quantisation step says how large a tensor is, not its content.
        if node is None or (node.op_type in _COARSE and name != node.output[0]):
            continue
        contraction = contraction_of(node)
        if contraction is not None:
            if all(wiring.reaching(own, tokens) or learned(own) for own in contraction.operands):
                result.append(contraction)
            continue
        if node.op_type in walls:
            continue
        fresh = {name for name in node.input if wiring.reaching(name, tokens)} - visited
        visited |= fresh
        waiting += fresh
    return result


def _product_below(wiring: Wiring, tokens: frozenset[str], start: str) -> tuple[str, Contraction]:
    """Return the weights as read by the second product, and this product."""
    visited, waiting = {start}, [start]
    while waiting:
        name = waiting.pop(0)
        for node in wiring.consumers[name]:
            contraction = contraction_of(node)
            if contraction is not None and name in contraction.operands:
                other = contraction.operands[1 - contraction.index_of(name)]
                if wiring.reaching(other, tokens):
                    return name, contraction
                continue
            fresh = {made for made in node.output if made} - visited
            visited |= fresh
            waiting += sorted(fresh)
    msg = "no product of the softmax with values was found"
    raise UnreadableError(msg)


def _normalised(wiring: Wiring, tokens: frozenset[str], heads: str) -> str:
    """Return the heads after a division by the sum of weights, if it follows the mean."""
    for node in wiring.consumers[heads]:
        divides = node.op_type == "Div" and node.input[0] == heads
        if divides and wiring.reaching(node.input[1], tokens):
            return str(node.output[0])
    return heads


# Nodes that round activations to 8 bits during the run.
_COARSE: Final = frozenset(
    {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "QuantizeLinear", "QAttention"}
)


@contextmanager
def read_wiring(path: Path, process: GraphProcess) -> Iterator[tuple[Wiring, GraphProcess, bool]]:
    """Yield the wiring of a file, its process, and whether the process runs the file itself.

    Tensors inside local functions cannot be tapped: a graph with functions runs from an inlined
    copy.
    """
    model = onnx.load(path, load_external_data=False)
    if not model.functions:
        yield Wiring(model.graph, path.parent), process, True
        return
    for tensor in all_tensors(model):
        tensor.CopyFrom(embedded(tensor, path.parent))
    whole = inlined(model)
    with tempfile.TemporaryDirectory(prefix="conformance-inlined-", dir=scratch()) as folder:
        copy = Path(folder) / "inlined.onnx"
        onnx.save(whole, copy)
        with GraphProcess(copy, process.limits) as runner:
            yield Wiring(whole.graph, path.parent), runner, False


def is_coarse(wiring: Wiring) -> bool:
    """Whether a graph quantises activations while it runs."""
    return any(node.op_type in _COARSE for node in wiring.graph.node)


_CONTRIB: Final = "com.microsoft"
# The tokens of a fused node are its first input, its matrix and bias the next two.
_FUSED_INPUTS: Final = 3
_BIAS: Final = 3


def node_reader(node: Node) -> Callable[[Node], Core] | None:
    """What reads an attention of the standard, or of onnxruntime, as a core; else None."""
    return _READERS.get(signature(node))


def signature(node: Node) -> tuple[str, str]:
    """The domain of a node, "" for the standard's, and its operator."""
    return "" if node.domain == "ai.onnx" else node.domain, node.op_type


def _separate(node: Node) -> Core:
    """Return the core of a node with query, key and value as inputs."""
    values = attributes(node)
    if not all(node.input[:_FUSED_INPUTS]) or len(node.input) < _FUSED_INPUTS:
        msg = f"{node.op_type} has query, key and value in one tensor"
        raise UnreadableError(msg)
    if values.get("do_rotary"):
        msg = f"{node.op_type} rotates query and key by their positions"
        raise UnreadableError(msg)
    query, key, value = (HeadTensor(name=name, feature=-1) for name in node.input[:_FUSED_INPUTS])
    biased = node.op_type == "MultiHeadAttention" and len(node.input) > _BIAS
    return Core(
        query=query,
        key=key,
        value=value,
        heads=node.output[0],
        num_heads=values.get("num_heads") or values.get("q_num_heads") or None,
        num_kv_heads=values.get("kv_num_heads") or None,
        scale=values.get("scale") or None,
        bias=node.input[_BIAS] if biased else "",
    )


def _fused(node: Node) -> Core:
    """Return the core of a node that projects tokens itself."""
    values = attributes(node)
    tokens = HeadTensor(name=node.input[0], feature=-1)
    return Core(
        query=tokens,
        key=tokens,
        value=tokens,
        heads=node.output[0],
        num_heads=values["num_heads"],
        scale=values.get("scale") or None,
        matrix=node.input[1],
        bias=node.input[2] if len(node.input) > _FUSED_INPUTS - 1 else "",
        widths=tuple(values.get("qkv_hidden_sizes", ())),
    )


_READERS: Final[dict[tuple[str, str], Callable[[Node], Core]]] = {
    ("", "Attention"): _separate,
    (_CONTRIB, "MultiHeadAttention"): _separate,
    (_CONTRIB, "GroupQueryAttention"): _separate,
    (_CONTRIB, "Attention"): _fused,
}


def find_cores(wiring: Wiring, tokens: frozenset[str], output: str) -> list[Core]:
    """The cores of a graph's attention, in the order of their heads; raises UnreadableError."""
    above, cores = wiring.above(output), list[Core]()
    for node, core in each_core(wiring, tokens, node_reader):
        if node.output[0] not in above:
            continue
        if isinstance(core, Core):
            cores.append(core)
        elif node.op_type != "Exp":  # an exponential may be part of anything
            raise core
    if not cores:
        msg = "no softmax between two products and no attention node lies between tokens and answer"
        raise UnreadableError(msg)
    if len(cores) == 1:
        return cores
    heads = {core.heads for core in cores}
    if any(
        heads & wiring.above(operand.name)
        for core in cores
        for operand in (core.query, core.key, core.value)
    ):  # one attention is computed from the answer of another
        msg = f"{len(cores)} attentions follow one another in the graph"
        raise UnreadableError(msg)
    return _ordered(wiring, cores)


def _ordered(wiring: Wiring, cores: Sequence[Core]) -> list[Core]:
    """Return cores in the order in which a node concatenates their heads."""
    for node in wiring.graph.node:
        if node.op_type != "Concat" or len(node.input) < len(cores):
            continue
        above = [wiring.above(name) for name in node.input]
        places = [
            [number for number, names in enumerate(above) if core.heads in names] for core in cores
        ]
        if all(len(place) == 1 for place in places) and len({p[0] for p in places}) == len(cores):
            pairs = sorted(zip(places, cores, strict=True), key=lambda pair: pair[0])
            return [core for _, core in pairs]
    msg = f"{len(cores)} attentions run side by side, but are no heads of one"
    raise UnreadableError(msg)
