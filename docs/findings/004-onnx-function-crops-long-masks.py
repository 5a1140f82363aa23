# ruff: noqa: INP001, T201 (a script that prints)
"""onnx: the function body of Attention crops a mask that is longer than the keys, without an error.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.inliner import inline_selected_functions
from onnx.reference import ReferenceEvaluator

OPSET = 24
KEYS, MASK = 3, 5

node = helper.make_node("Attention", ["Q", "K", "V", "attn_mask"], ["Y"])
inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1, None, None]) for n in "QKV"]
inputs.append(helper.make_tensor_value_info("attn_mask", TensorProto.BOOL, [None, None]))
outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
graph = helper.make_graph([node], "attention", inputs, outputs)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
feeds = {
    "Q": np.zeros((1, 1, 1, 2), np.float32),
    "K": np.zeros((1, 1, KEYS, 2), np.float32),
    "V": np.eye(KEYS, dtype=np.float32)[None, None],
    "attn_mask": np.ones((1, MASK), dtype=bool),
}


def on_onnxruntime(graph_of_model: onnx.ModelProto) -> str:
    """The answer, or what was raised."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        graph_of_model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    try:
        return f"answered {session.run(None, feeds)[0].round(2).tolist()}"
    except Exception as error:  # noqa: BLE001 (what it raises is the point)
        return f"raised {type(error).__name__}"


def on_reference() -> str:
    """The answer of onnx.reference, or what was raised."""
    try:
        return f"answered {ReferenceEvaluator(model).run(None, feeds)[0].round(2).tolist()}"
    except ValueError as error:
        return f"raised {type(error).__name__}"


body = inline_selected_functions(model, [("", "Attention")], inline_schema_functions=True)
answers = {
    "onnxruntime's kernel": on_onnxruntime(model),
    "onnx.reference": on_reference(),
    "function body": on_onnxruntime(body),
}
print(f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}, opset {OPSET}")
print(f"{KEYS} keys, a mask for {MASK}:")
for name, answer in answers.items():
    print(f"  {name}: {answer}")
raised = [answer.startswith("raised") for answer in answers.values()]
sys.exit(0 if raised == [True, True, False] else 1)
