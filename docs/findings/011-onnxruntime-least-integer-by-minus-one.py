# ruff: noqa: INP001, S603, T201 (a script that prints and runs itself)
"""onnxruntime: Div and Mod of the least int32 or int64 by -1 end the process by a signal.

Each model runs in a process of its own. Exits 0 while the defect is there, 1 when it is gone.
"""

import signal
import subprocess
import sys

import numpy as np
import onnxruntime
from onnx import ModelProto, helper

OPERATORS = ("Div", "Mod")
DTYPES = ("int64", "int32")


def model(operator: str, dtype: str) -> ModelProto:
    """One node: c = a / b, or the remainder."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    a, b, c = (helper.make_tensor_value_info(name, code, ["n"]) for name in "abc")
    graph = helper.make_graph(
        [helper.make_node(operator, ["a", "b"], ["c"])], "division", [a, b], [c]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def run(operator: str, dtype: str, divisor: int) -> None:
    """Divide the least number of a type."""
    session = onnxruntime.InferenceSession(
        model(operator, dtype).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    least = np.array([np.iinfo(dtype).min], dtype)
    print(session.run(None, {"a": least, "b": np.array([divisor], dtype)})[0], flush=True)


def in_a_process(operator: str, dtype: str, divisor: int) -> int:
    """The exit status of a process that runs the model, negative for a signal."""
    command = [sys.executable, __file__, operator, dtype, str(divisor)]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode


if len(sys.argv) > 1:
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    sys.exit(0)
print(f"onnxruntime {onnxruntime.__version__}: the least integer of a type, divided", flush=True)
there = True
for operator in OPERATORS:
    for dtype in DTYPES:
        right, wrong = (in_a_process(operator, dtype, divisor) for divisor in (1, -1))
        how = f"ended by {signal.Signals(-wrong).name}" if wrong < 0 else f"exit status {wrong}"
        print(f"  {operator} of {dtype}: by 1 exit status {right}, by -1 {how}")
        there = there and right == 0 and wrong < 0
sys.exit(0 if there else 1)
