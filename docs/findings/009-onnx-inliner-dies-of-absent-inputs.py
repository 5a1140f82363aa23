# ruff: noqa: INP001, T201 (a script that prints)
"""onnx: inlining Attention fails an assertion where an optional input is left out between others.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import onnx
from onnx import TensorProto, helper
from onnx.inliner import inline_selected_functions

OPSET = 24
CASES = {
    "a mask": ["Q", "K", "V", "attn_mask"],
    "no mask, valid lengths": ["Q", "K", "V", "", "", "", "nonpad_kv_seqlen"],
}
TYPES = {"attn_mask": TensorProto.BOOL, "nonpad_kv_seqlen": TensorProto.INT64}
RANKS = {"attn_mask": 2, "nonpad_kv_seqlen": 1}


def outcome(names: list[str]) -> str:
    """What comes of putting the function in the place of a valid node with these inputs."""
    node = helper.make_node("Attention", names, ["Y"])
    inputs = [
        helper.make_tensor_value_info(n, TYPES.get(n, TensorProto.FLOAT), [None] * RANKS.get(n, 4))
        for n in names
        if n
    ]
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * 4)]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    onnx.checker.check_model(model, full_check=True)
    try:
        body = inline_selected_functions(model, [("", "Attention")], inline_schema_functions=True)
    except RuntimeError as error:
        return f"raised {str(error).split(': ', 1)[1]}"
    return f"{len(body.graph.node)} nodes"


outcomes = {case: outcome(names) for case, names in CASES.items()}
print(f"onnx {onnx.__version__}, opset {OPSET}, onnx.inliner on models that the checker takes")
for case, text in outcomes.items():
    print(f"  {case}: {text}")
sys.exit(0 if [text.startswith("raised") for text in outcomes.values()] == [False, True] else 1)
