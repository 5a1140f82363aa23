# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for openvino.
"""openvino: with sizes left open fewer values than keys are answered, and read past their end.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import numpy as np
import openvino
from openvino import opset13


def compiled(*shapes: object) -> openvino.CompiledModel:
    """A model of the one operator for query, key and value of some shapes."""
    inputs = [opset13.parameter(shape, np.float32) for shape in shapes]
    node = opset13.scaled_dot_product_attention(*inputs, causal=False)
    return openvino.Core().compile_model(openvino.Model([node], inputs), "CPU")


query, key = np.ones((1, 1, 2, 4), np.float32), np.ones((1, 1, 5, 4), np.float32)
value = np.ones((1, 1, 1, 4), np.float32)
models = {
    "sizes known": (query.shape, key.shape, value.shape),
    "sizes left open": ([-1] * 4, [-1] * 4, [-1] * 4),
}
said = {}
for name, shapes in models.items():
    try:
        answer = compiled(*shapes)([query, key, value])[0]
        said[name] = f"answers {answer[0, 0, 0].tolist()}"
    except RuntimeError as error:
        said[name] = f"refuses: {str(error).strip().splitlines()[-1]}"
    print(f"5 keys with 1 value, {name}: {said[name]}")
wrong = (
    "Value input shape not compatible" in said["sizes known"]
    and "answers" in said["sizes left open"]
)
print("values are read past their end" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
