# ruff: noqa: INP001, T201 (a script that prints)
"""onnxruntime: a norm by fourth powers is replaced by a LayerNormalization, which squares.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper, numpy_helper

WIDTH = 4
ROUNDING = 1e-5
LEVEL = onnxruntime.GraphOptimizationLevel
TOKENS = np.arange(8, dtype=np.float32).reshape(1, 2, WIDTH) ** 2


def model(power: float) -> ModelProto:
    """``(x - mean) / sqrt(mean((x - mean) ** power) + 1e-5) * weight + bias``."""
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["mean"]),
        helper.make_node("Sub", ["x", "mean"], ["apart"]),
        helper.make_node("Pow", ["apart", "power"], ["powers"]),
        helper.make_node("ReduceMean", ["powers", "axes"], ["size"]),
        helper.make_node("Add", ["size", "little"], ["more"]),
        helper.make_node("Sqrt", ["more"], ["root"]),
        helper.make_node("Div", ["apart", "root"], ["norm"]),
        helper.make_node("Mul", ["norm", "weight"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["y"]),
    ]
    tensors = {
        "axes": np.array([-1]),
        "power": np.float32(power),
        "little": np.float32(1e-5),
        "weight": np.ones(WIDTH, np.float32),
        "bias": np.zeros(WIDTH, np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "norm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def answer(power: float, level: LEVEL) -> np.ndarray:
    """What the graph gives at a level of optimisation."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(
        model(power).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {"x": TOKENS})[0])


apart = {
    power: float(
        np.abs(answer(power, LEVEL.ORT_ENABLE_ALL) - answer(power, LEVEL.ORT_DISABLE_ALL)).max()
    )
    for power in (2.0, 4.0, 6.0)
}
for power, difference in apart.items():
    print(f"power {power:g}: the levels lie {difference:.2g} apart")
wrong = apart[2.0] < ROUNDING < min(apart[4.0], apart[6.0])
print("every power becomes a square" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
