# ruff: noqa: INP001, T201 (a script that prints)
"""onnx.reference: qk_matmul_output_mode 0, the raw product, is capped when there is a softcap.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

OPSET = 24
SOFTCAP = 2.0

node = helper.make_node(
    "Attention", ["Q", "K", "V"], ["Y", "", "", "qk"], softcap=SOFTCAP, qk_matmul_output_mode=0
)
inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 1, 1]) for name in "QKV"]
outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("Y", "qk")]
graph = helper.make_graph([node], "attention", inputs, outputs)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
feeds = {name: np.full((1, 1, 1, 1), 3.0, np.float32) for name in "QKV"}
session = onnxruntime.InferenceSession(
    model.SerializeToString(), providers=["CPUExecutionProvider"]
)
by_reference = ReferenceEvaluator(model).run(["qk"], feeds)[0].item()
by_kernel = session.run(["qk"], feeds)[0].item()
print(f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}, opset {OPSET}")
capped = SOFTCAP * np.tanh(9 / SOFTCAP)
print(f"q = k = 3, softcap {SOFTCAP}: the raw product is 9, the capped one {capped:.4f}")
print(f"mode 0: onnx.reference {by_reference:.4f}, onnxruntime {by_kernel:.4f}")
raw = 9.0
sys.exit(0 if by_reference < SOFTCAP + 1 and by_kernel == raw else 1)
