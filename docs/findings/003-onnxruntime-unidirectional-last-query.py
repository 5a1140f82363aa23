# ruff: noqa: INP001, T201 (a script that prints)
"""onnxruntime: MultiHeadAttention unidirectional=1, fewer queries than keys: the last sees all.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

QUERIES, KEYS = 3, 5

node = helper.make_node(
    "MultiHeadAttention",
    ["query", "key", "value"],
    ["output"],
    domain="com.microsoft",
    num_heads=1,
    unidirectional=1,
)
names = ("query", "key", "value")
inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, None, None]) for name in names]
outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)]
graph = helper.make_graph([node], "attention", inputs, outputs)
imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
model = helper.make_model(graph, opset_imports=imports, ir_version=10)
session = onnxruntime.InferenceSession(
    model.SerializeToString(), providers=["CPUExecutionProvider"]
)
# Queries of zero: each answer is the mean of the values that it sees, here unit vectors.
feeds = {
    "query": np.zeros((1, QUERIES, 8), np.float32),
    "key": np.zeros((1, KEYS, 8), np.float32),
    "value": np.eye(KEYS, dtype=np.float32)[None],
}
seen = session.run(None, feeds)[0][0] > 0
print(f"onnxruntime {onnxruntime.__version__}, {QUERIES} queries, {KEYS} keys: which key each sees")
print(seen.astype(int))
ones = np.ones((QUERIES, KEYS), dtype=bool)
print(f"aligned with the first key:\n{np.tril(ones).astype(int)}")
print(f"aligned with the last key:\n{np.tril(ones, KEYS - QUERIES).astype(int)}")
mixed = np.tril(ones)
mixed[-1] = True
sys.exit(0 if np.array_equal(seen, mixed) else 1)
