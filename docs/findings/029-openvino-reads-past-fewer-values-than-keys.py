# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for openvino.
"""openvino: with sizes left open fewer values than keys are answered, and read past their end.

Query and keys are zeros, so that each of 5 keys weighs 1/5. Values are ones: any weights that add
up to one, also of one value that is broadcast, make a one of them. 1 value is answered with other
numbers. 2 values are refused, but with one thread that is lost: the last answer is given again.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import numpy as np
import openvino
from openvino import opset13

KNOWN = ([1, 1, 2, 4], [1, 1, 5, 4], [1, 1, 1, 4])
OPEN = ([-1] * 4, [-1] * 4, [-1] * 4)
query, key = np.zeros((1, 1, 2, 4), np.float32), np.zeros((1, 1, 5, 4), np.float32)


def compiled(shapes: tuple[list[int], ...], **how: object) -> openvino.CompiledModel:
    """A model of the one operator for query, key and value of some shapes."""
    inputs = [opset13.parameter(shape, np.float32) for shape in shapes]
    node = opset13.scaled_dot_product_attention(*inputs, causal=False)
    return openvino.Core().compile_model(openvino.Model([node], inputs), "CPU", how)


def said(model: openvino.CompiledModel, values: int) -> np.ndarray | str:
    """The answer to so many values that are all 1, or why it is refused."""
    value = np.ones((1, 1, values, 4), np.float32)
    try:
        answer: np.ndarray = model([query, key, value])[0].copy()
    except RuntimeError as error:
        return str(error).strip().splitlines()[-1]
    return answer


try:
    known = str(said(compiled(KNOWN), 1))
except RuntimeError as error:
    known = str(error).strip().splitlines()[-1]
print(f"5 keys with 1 value, sizes known: {known}")
model = compiled(OPEN)
one, two = said(model, 1), said(model, 2)
print(f"5 keys with 1 value, sizes left open: {one}")
print(f"5 keys with 2 values, sizes left open: {two}")
alone = compiled(OPEN, INFERENCE_NUM_THREADS=1)
whole, again = said(alone, 5), said(alone, 2)
print(f"5 keys with 5 values, then with 2, one thread: {whole}, then {again}")
past = isinstance(one, np.ndarray) and not np.allclose(one, 1.0, atol=1e-3)
lost = isinstance(two, str) and np.array_equal(whole, again)
wrong = "Value input shape not compatible" in known and past and lost
print("numbers that are of no value, and a refusal that is lost" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
