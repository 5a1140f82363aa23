"""Attention as one node: the standard operator and onnxruntime's own."""

from __future__ import annotations

from typing import Final

from .core import Core, Operand
from .wiring import Node, Wiring, attributes

_STANDARD: Final = ""
_CONTRIB: Final = "com.microsoft"


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
    return Core(
        query=Operand(name=node.input[0], feature=-1),
        key=Operand(name=node.input[1], feature=-1),
        value=Operand(name=node.input[2], feature=-1),
        heads=node.output[0],
        num_heads=values.get("q_num_heads") or None,
        num_kv_heads=values.get("kv_num_heads") or None,
        scale=values.get("scale"),
    )


def _grouped(node: Node) -> Core:
    values = attributes(node)
    return Core(
        query=Operand(name=node.input[0], feature=-1),
        key=Operand(name=node.input[1], feature=-1),
        value=Operand(name=node.input[2], feature=-1),
        heads=node.output[0],
        num_heads=values["num_heads"],
        num_kv_heads=values.get("kv_num_heads", values["num_heads"]),
        scale=values.get("scale") or None,
    )


_READERS: Final = {
    (_STANDARD, "Attention"): _standard,
    (_CONTRIB, "MultiHeadAttention"): _grouped,
    (_CONTRIB, "GroupQueryAttention"): _grouped,
}
