# ruff: noqa: INP001, T201 (a script that prints)
"""onnxruntime: the CPU kernel of Attention refuses masks that the operator's specification allows.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

OPSET = 24
BATCH, QUERIES, KEYS = 2, 3, 4
# The specification: broadcastable to (batch, heads, queries, keys), and from opset 24 the last axis
# may be shorter, the rest being hidden.
SHAPES = {
    (BATCH, 1, QUERIES, KEYS): "complete",
    (QUERIES, KEYS): "complete",
    (BATCH, 1, 1, KEYS): "one row",
    (1, KEYS): "one row",
    (KEYS,): "one axis",
    (QUERIES, KEYS - 1): "shorter",
}


def refused(shape: tuple[int, ...]) -> bool:
    """Whether an all-True mask of this shape makes the session raise."""
    node = helper.make_node("Attention", ["Q", "K", "V", "attn_mask"], ["Y"])
    free = [None] * len(shape)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * 4) for n in "QKV"]
    inputs.append(helper.make_tensor_value_info("attn_mask", TensorProto.BOOL, free))
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    tokens = {name: np.ones((BATCH, 1, KEYS, 2), np.float32) for name in "KV"}
    query = np.ones((BATCH, 1, QUERIES, 2), np.float32)
    try:
        session.run(None, {"Q": query, **tokens, "attn_mask": np.ones(shape, dtype=bool)})
    except Exception:  # noqa: BLE001 (any refusal counts)
        return True
    return False


print(f"onnxruntime {onnxruntime.__version__}, opset {OPSET}, {QUERIES} queries, {KEYS} keys")
answers = {shape: refused(shape) for shape in SHAPES}
for shape, word in SHAPES.items():
    print(f"  mask {shape} ({word}): {'refused' if answers[shape] else 'taken'}")
wanted = {shape: word != "complete" for shape, word in SHAPES.items()}
sys.exit(0 if answers == wanted else 1)
