# ruff: noqa: INP001, T201 (a script that prints)
"""onnx: the function body of Attention computes its default scale in float for inputs in double.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.inliner import inline_selected_functions
from onnx.reference import ReferenceEvaluator

OPSET = 25
HEAD_SIZE = 3

node = helper.make_node("Attention", ["Q", "K", "V"], ["Y", "", "", "qk"])
shape = [1, 1, 1, HEAD_SIZE]
inputs = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape) for name in "QKV"]
outputs = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in ("Y", "qk")]
graph = helper.make_graph([node], "attention", inputs, outputs)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=13)
body = inline_selected_functions(model, [("", "Attention")], inline_schema_functions=True)
onnxruntime.set_default_logger_severity(3)  # no warnings about constants left in the function
session = onnxruntime.InferenceSession(body.SerializeToString(), providers=["CPUExecutionProvider"])
feeds = {name: np.ones(shape) for name in "QKV"}
wanted = HEAD_SIZE / np.sqrt(HEAD_SIZE)
error_of_body = abs(session.run(["qk"], feeds)[0].item() / wanted - 1)
error_of_reference = abs(ReferenceEvaluator(model).run(["qk"], feeds)[0].item() / wanted - 1)
print(f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}, opset {OPSET}, double")
print(
    f"relative error of q k / sqrt({HEAD_SIZE}): function body {error_of_body:.1e}, "
    f"onnx.reference {error_of_reference:.1e}; half a unit in the last place is {2**-53:.1e}"
)
several_units = 8 * 2.0**-53
sys.exit(0 if error_of_body > 1000 * several_units and error_of_reference <= several_units else 1)
