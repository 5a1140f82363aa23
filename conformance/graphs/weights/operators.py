"""Attention as one node: the standard operator and onnxruntime's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .core import Core, Operand
from .unreadable import UnreadableError
from .wiring import Node, Wiring, attributes

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
