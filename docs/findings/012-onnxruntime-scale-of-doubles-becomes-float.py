# ruff: noqa: INP001, T201 (a script that prints)
"""onnxruntime: fusing a scale into a product of doubles rounds the scale to float.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
SCALE = 1 / np.sqrt(8.0)

nodes = [
    helper.make_node("MatMul", ["a", "b"], ["product"]),
    helper.make_node("Mul", ["product", "scale"], ["y"]),
]
ports = {name: helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1, 1]) for name in "aby"}
scale = numpy_helper.from_array(np.array(SCALE), "scale")
graph = helper.make_graph(nodes, "scaled", [ports["a"], ports["b"]], [ports["y"]], [scale])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
feeds = {"a": np.ones((1, 1)), "b": np.ones((1, 1))}
errors = {}
levels = onnxruntime.GraphOptimizationLevel
for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC, levels.ORT_ENABLE_EXTENDED):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    errors[level.name] = abs(session.run(None, feeds)[0].item() / SCALE - 1)
print(f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}, opset {OPSET}, double")
for name, error in errors.items():
    print(f"{name}: relative error {error:.1e}")
print(f"of 1/sqrt(8) as a float: {abs(float(np.float32(SCALE)) / SCALE - 1):.1e}")
several_units = 8 * 2.0**-53
lost = errors["ORT_ENABLE_EXTENDED"] > 1000 * several_units
sys.exit(0 if lost and errors["ORT_DISABLE_ALL"] <= several_units else 1)
