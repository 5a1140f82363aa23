# ruff: noqa: INP001, T201 (a script that prints)
"""onnx: a mask of one column is broadcast by one part of onnx and padded by another.

Exits 0 while they differ, 1 when they agree.
"""

import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.inliner import inline_selected_functions
from onnx.reference import ReferenceEvaluator

KEYS = 3

onnxruntime.set_default_logger_severity(3)  # no warnings about constants left in the function

feeds = {
    "Q": np.zeros((1, 1, 2, 2), np.float32),
    "K": np.zeros((1, 1, KEYS, 2), np.float32),
    "V": np.eye(KEYS, dtype=np.float32)[None, None],
    "attn_mask": np.ones((2, 1), dtype=bool),
}


def first_row(opset: int, *, body: bool) -> list[float]:
    """The weights of the first query: queries of zero, values that are unit vectors."""
    node = helper.make_node("Attention", list(feeds), ["Y"])
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1, None, None]) for n in "QKV"
    ]
    inputs.append(helper.make_tensor_value_info("attn_mask", TensorProto.BOOL, [None, None]))
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    if not body:
        return ReferenceEvaluator(model).run(None, feeds)[0][0, 0, 0].round(2).tolist()
    inlined = inline_selected_functions(model, [("", "Attention")], inline_schema_functions=True)
    session = onnxruntime.InferenceSession(
        inlined.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)[0][0, 0, 0].round(2).tolist()


print(f"onnx {onnx.__version__}: an all-True mask of shape (2, 1) for 2 queries and {KEYS} keys")
found = {}
for opset in (23, 24):
    found[opset] = [first_row(opset, body=body) for body in (True, False)]
    print(f"opset {opset}: function body {found[opset][0]}, onnx.reference {found[opset][1]}")
sys.exit(0 if found[23][0] != found[23][1] else 1)
