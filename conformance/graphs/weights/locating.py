"""Finds the attention of a graph: one core, or one for each head, side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import onnx
from onnx import inliner

from ..external import embedded
from ..parsing import all_tensors
from ..process import GraphProcess
from .core import Core, Operand, softmax_cores
from .wiring import Node, UnreadableError, Wiring, attributes

# These round activations to 8 bits while the graph runs.
_COARSE: Final = frozenset(
    {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "QuantizeLinear", "QAttention"}
)


@contextmanager
def read_wiring(path: Path, process: GraphProcess) -> Iterator[tuple[Wiring, GraphProcess, bool]]:
    """The wiring of a file, what runs it, and whether that is the file itself.

    Tensors inside local functions have no name that could be tapped: a graph that has such runs
    from a copy in which they are written out.
    """
    model = onnx.load(path, load_external_data=False)
    if not model.functions:
        yield Wiring(model.graph, path.parent), process, True
        return
    for tensor in all_tensors(model):
        tensor.CopyFrom(embedded(tensor, path.parent))
    whole = inliner.inline_local_functions(model)
    with tempfile.TemporaryDirectory() as folder:
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


def node_cores(wiring: Wiring, tokens: frozenset[str], output: str) -> list[Core]:
    """The core of each attention node that tokens flow through on the way to the output."""
    above = wiring.above(output)
    found = []
    for node in wiring.graph.node:
        read = _READERS.get((_domain(node), node.op_type))
        if read is None or node.output[0] not in above:
            continue
        if any(wiring.reaching(name, tokens) for name in node.input if name):
            found.append(read(node))
    return found


def _domain(node: Node) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def _standard(node: Node) -> Core:
    values = attributes(node)
    return _separate(node, values.get("q_num_heads"), values.get("kv_num_heads"))


def _grouped(node: Node) -> Core:
    values = attributes(node)
    return _separate(node, values["num_heads"], values.get("kv_num_heads"))


def _separate(node: Node, num_heads: int | None, num_kv_heads: int | None) -> Core:
    """A node that is given query, key and value."""
    values = attributes(node)
    if not all(node.input[:_FUSED_INPUTS]) or len(node.input) < _FUSED_INPUTS:
        msg = f"{node.op_type} is given query, key and value in one tensor"
        raise UnreadableError(msg)
    if values.get("do_rotary"):
        msg = f"{node.op_type} rotates query and key by their positions"
        raise UnreadableError(msg)
    query, key, value = (Operand(name=name, feature=-1) for name in node.input[:_FUSED_INPUTS])
    biased = node.op_type == "MultiHeadAttention" and len(node.input) > _BIAS
    return Core(
        query=query,
        key=key,
        value=value,
        heads=node.output[0],
        num_heads=num_heads or None,
        num_kv_heads=num_kv_heads or None,
        scale=values.get("scale") or None,
        bias=node.input[_BIAS] if biased else "",
    )


def _fused(node: Node) -> Core:
    """A node that projects tokens itself."""
    values = attributes(node)
    tokens = Operand(name=node.input[0], feature=-1)
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
    ("", "Attention"): _standard,
    (_CONTRIB, "MultiHeadAttention"): _grouped,
    (_CONTRIB, "GroupQueryAttention"): _grouped,
    (_CONTRIB, "Attention"): _fused,
}


def find_cores(wiring: Wiring, tokens: frozenset[str], output: str) -> list[Core]:
    """The cores of a graph's attention, in the order of their heads; raises UnreadableError."""
    cores = [*node_cores(wiring, tokens, output), *softmax_cores(wiring, tokens, output)]
    if not cores:
        msg = "no softmax between two products and no attention node lies between tokens and answer"
        raise UnreadableError(msg)
    if len(cores) == 1:
        return cores
    if _in_a_row(wiring, cores):
        msg = f"{len(cores)} attentions follow one another in the graph"
        raise UnreadableError(msg)
    return _ordered(wiring, cores)


def _in_a_row(wiring: Wiring, cores: Sequence[Core]) -> bool:
    """Whether one attention is computed from the answer of another."""
    heads = {core.heads for core in cores}
    return any(
        heads & wiring.above(operand.name)
        for core in cores
        for operand in (core.query, core.key, core.value)
    )


def _ordered(wiring: Wiring, cores: Sequence[Core]) -> list[Core]:
    """Cores in the order in which a node puts their heads side by side."""
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
