# ruff: noqa: INP001, T201 (a script that prints)
"""onnx.reference: is_causal with a mask of one row gives every query the first key alone.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

OPSET = 23
KEYS = 4


def attention(mask: np.ndarray) -> np.ndarray:
    """Queries of zero: each answer is the mean of the values that it sees, here unit vectors."""
    node = helper.make_node("Attention", ["Q", "K", "V", "attn_mask"], ["Y"], is_causal=1)
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, KEYS, None]) for name in "QKV"
    ]
    inputs.append(helper.make_tensor_value_info("attn_mask", TensorProto.BOOL, None))
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    zeros = np.zeros((1, 1, KEYS, 2), np.float32)
    values = np.eye(KEYS, dtype=np.float32)[None, None]
    feeds = {"Q": zeros, "K": zeros, "V": values, "attn_mask": mask}
    return ReferenceEvaluator(model).run(None, feeds)[0][0, 0]


one_row = attention(np.ones((1, 1, 1, KEYS), dtype=bool))
complete = attention(np.ones((1, 1, KEYS, KEYS), dtype=bool))
print(
    f"onnx {onnx.__version__}, opset {OPSET}, is_causal=1, an all-True mask, the weight of each key"
)
print(f"mask (1, 1, {KEYS}, {KEYS}):\n{complete.round(2)}")
print(f"mask (1, 1, 1, {KEYS}), which broadcasts to the same:\n{one_row.round(2)}")
sys.exit(0 if np.array_equal(one_row, np.eye(KEYS)[[0] * KEYS]) else 1)
