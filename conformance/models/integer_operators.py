"""Operators on 8-bit integers, rewritten on the numbers the integers stand for.

A ``QLinearMatMul`` is a ``MatMul`` of dequantised operands with a quantised result; onnxruntime's
``QAttention`` is its ``Attention`` of dequantised operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import onnx
from onnx import ModelProto, helper

from ..graphs.weights.wiring import Node

_PREFIX: Final = "QLinear"
_TRIPLE: Final = len(("integers", "step", "zero point"))
_PAIR: Final = len(("step", "zero point"))
_OF_QATTENTION: Final = 9
# Its integers may have a step for each channel; convolutions are no part of attentions.
_OF_PLACES: Final = "kernel_shape"
_SAYS_VERSION: Final = "opset"  # of the operator that is meant


def write_out_integer_operators(model: ModelProto) -> None:
    """Replace integer operators by nodes that compute with numbers; changes the model."""
    opset = max((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), default=1)
    nodes = [made for node in model.graph.node for made in _written_out(node, opset)]
    if len(nodes) > len(model.graph.node):
        del model.graph.node[:]
        model.graph.node.extend(nodes)


def _written_out(node: Node, opset: int) -> Iterator[Node]:
    name, read = node.output[0] if node.output else "", list(node.input)
    own = [each for each in node.attribute if each.name != _SAYS_VERSION]
    operator, result = node.op_type.removeprefix(_PREFIX), f"{name}: result"
    numbers = [f"{name}: operand {at}" for at in range(len(read) // _TRIPLE)]
    if node.op_type == "QAttention":
        read = [*read, *[""] * _OF_QATTENTION][:_OF_QATTENTION]
        tokens, matrix, bias, step, columns_step, mask, zero, columns_zero, cache = read
        yield helper.make_node("DequantizeLinear", [tokens, step, zero], numbers[:1])
        yield helper.make_node(
            "DequantizeLinear", [matrix, columns_step, columns_zero], numbers[1:2]
        )
        parts = [*numbers[:2], bias, mask, cache]
        made = helper.make_node("Attention", parts, [name], node.name, domain=node.domain)
    elif operator != node.op_type and _is_plain(operator, opset, {each.name for each in own}):
        for at, number in enumerate(numbers):
            integers = read[_TRIPLE * at : _TRIPLE * (at + 1)]
            yield helper.make_node("DequantizeLinear", integers, [number])
        yield helper.make_node("QuantizeLinear", [result, *read[-_PAIR:]], [name])
        made = helper.make_node(operator, numbers, [result], node.name)
    else:
        yield node
        return
    made.attribute.extend(own)
    made.metadata_props.extend(node.metadata_props)
    yield made


def _is_plain(operator: str, opset: int, attributes: set[str]) -> bool:
    """Tell whether the standard has an operator computing the same with numbers."""
    if not onnx.defs.has(operator, opset):
        return False
    known = onnx.defs.get_schema(operator, opset).attributes.keys()
    return attributes <= known and _OF_PLACES not in known
