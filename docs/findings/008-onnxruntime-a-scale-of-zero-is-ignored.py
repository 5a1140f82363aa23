# ruff: noqa: INP001, T201 (a script that prints)
"""onnxruntime: MultiHeadAttention and GroupQueryAttention take a scale of 0 for none at all.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

HEAD_SIZE = 8


def last_weights(operator: str, **attributes: float) -> np.ndarray:
    """The weights of the last query over two keys, of which the second has the larger logit."""
    grouped = operator == "GroupQueryAttention"
    names = ["query", "key", "value"] + (["", "", "seqlens", "total"] if grouped else [])
    node = helper.make_node(operator, names, ["output"], domain="com.microsoft", **attributes)
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 2, HEAD_SIZE]) for n in names[:3]
    ]
    feeds = {name: np.zeros((1, 2, HEAD_SIZE), np.float32) for name in names[:3]}
    feeds["query"][0, 1] = feeds["key"][0, 1] = 1
    feeds["value"][0, :, :2] = np.eye(2)
    if grouped:
        node.output.extend(["present_key", "present_value"])
        inputs.append(helper.make_tensor_value_info("seqlens", TensorProto.INT32, [1]))
        inputs.append(helper.make_tensor_value_info("total", TensorProto.INT32, []))
        feeds["seqlens"], feeds["total"] = np.array([1], np.int32), np.array(2, np.int32)
    outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(["output"], feeds)[0][0, 1, :2]


there = []
print(f"onnxruntime {onnxruntime.__version__}: the weights of logits 0 and {HEAD_SIZE} * scale")
for operator, heads in (
    ("MultiHeadAttention", {"num_heads": 1}),
    ("GroupQueryAttention", {"num_heads": 1, "kv_num_heads": 1}),
):
    tiny, zero, default = (
        last_weights(operator, **heads, **scale) for scale in ({"scale": 1e-30}, {"scale": 0.0}, {})
    )
    print(f"  {operator}: 1e-30 {tiny.round(3)}, 0 {zero.round(3)}, none {default.round(3)}")
    there.append(np.array_equal(zero, default) and not np.array_equal(zero, tiny))
sys.exit(0 if all(there) else 1)
