"""Products of 8-bit integers on machines whose 16-bit sums saturate.

On x86 processors without VNNI, onnxruntime multiplies unsigned activations by signed weights with
an instruction that adds two products in 16 bits with saturation (``VPMADDUBSW``; the option
``session.x64quantprecision`` of onnxruntime's session configuration describes it). A right graph
then answers wrongly on these machines. Such graphs run with the same weights as unsigned integers:
no product saturates, and every other number stays as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from .parsing import embedded

# The positions of the weights and of their zero point among an operator's inputs.
_WEIGHTS: Final = {
    "MatMulInteger": (1, 3),
    "DynamicQuantizeMatMul": (1, 3),
    "MatMulIntegerToFloat": (1, 5),
    "QLinearMatMul": (3, 5),
    "QAttention": (1, 7),
}
_SHIFT: Final = 128
_DEPTH: Final = 8


def saturates(runtime: Any) -> bool:
    """Whether onnxruntime, the module ``runtime``, cuts products off on this machine."""
    weights = np.full((_DEPTH, _DEPTH), np.iinfo(np.int8).max, dtype=np.int8)
    tokens = np.full((1, _DEPTH), np.iinfo(np.uint8).max, dtype=np.uint8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["tokens", "weights"], ["product"])],
        "product",
        [helper.make_tensor_value_info("tokens", TensorProto.UINT8, tokens.shape)],
        [helper.make_tensor_value_info("product", TensorProto.INT32, tokens.shape)],
        [numpy_helper.from_array(weights, "weights")],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (product,) = session.run(None, {"tokens": tokens})
    return not np.array_equal(product, tokens.astype(np.int32) @ weights.astype(np.int32))


def widen(model: Any, folder: Path) -> None:
    """Store signed 8-bit weights of products, and their zero points, as unsigned ones.

    Changes the model in place.

    folder
        Where the file's external data are.
    """
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    made: set[str] = set()
    for node in model.graph.node:
        if node.op_type not in _WEIGHTS:
            continue
        at, zero_at = _WEIGHTS[node.op_type]
        weights = stored.get(node.input[at])
        if weights is None or weights.data_type != TensorProto.INT8:
            continue  # computed by the graph, or unsigned already
        zero = node.input[zero_at] if len(node.input) > zero_at else ""
        if zero and zero not in stored:
            continue
        node.input.extend([""] * (zero_at + 1 - len(node.input)))
        zero_tensor = (
            stored[zero] if zero else numpy_helper.from_array(np.array(0, np.int8), "zero")
        )
        for position, tensor in ((at, weights), (zero_at, zero_tensor)):
            name = f"{tensor.name} as unsigned"
            node.input[position] = name
            if name not in made:
                made.add(name)
                model.graph.initializer.append(_unsigned(embedded(tensor, folder), name))


def _unsigned(tensor: TensorProto, name: str) -> TensorProto:
    values = numpy_helper.to_array(tensor).astype(np.int16) + _SHIFT
    return numpy_helper.from_array(values.astype(np.uint8), name)
