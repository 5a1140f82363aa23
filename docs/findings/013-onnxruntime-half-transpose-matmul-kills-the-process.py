# ruff: noqa: INP001, S603, T201 (a script that prints and runs itself)
"""onnxruntime: a Transpose before a MatMul in float16 ends the process when it is optimised.

The session is made in a process of its own. Exits 0 while the defect is there, 1 when it is gone.
"""

import subprocess
import sys

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper, numpy_helper

WIDTH = 12
LEVELS = {
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def model(dtype: int) -> ModelProto:
    """Tokens ``[batch, length, 12]``, batch and length exchanged, times a matrix."""
    nodes = [
        helper.make_node("Transpose", ["tokens"], ["turned"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["turned", "weights"], ["output"]),
    ]
    shape = ["batch", "length", WIDTH]
    matrix = np.eye(WIDTH).astype(helper.tensor_dtype_to_np_dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "projection",
        [helper.make_tensor_value_info("tokens", dtype, shape)],
        [helper.make_tensor_value_info("output", dtype, None)],
        [numpy_helper.from_array(matrix, "weights")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def run(dtype: str, level: str) -> None:
    """Make a session at a level of optimisation and run it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    number = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}[dtype]
    session = onnxruntime.InferenceSession(
        model(number).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    tokens = np.zeros((2, 3, WIDTH), dtype)
    print("an answer of shape", session.run(None, {"tokens": tokens})[0].shape, flush=True)


def in_a_process(dtype: str, level: str) -> int:
    """The exit status of a process that does so, negative for a signal."""
    command = [sys.executable, __file__, dtype, level]
    return subprocess.run(command, check=False).returncode


if len(sys.argv) > 1:
    run(sys.argv[1], sys.argv[2])
    sys.exit(0)
statuses = {
    (dtype, level): in_a_process(dtype, level)
    for dtype, level in (("float32", "all"), ("float16", "extended"), ("float16", "all"))
}
for (dtype, level), status in statuses.items():
    print(f"{dtype} at the level {level}: exit status {status}")
wrong = statuses.pop(("float16", "all")) < 0 and not any(statuses.values())
print("float16 kills the process at the highest level" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
