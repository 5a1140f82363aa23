"""onnx: the reference implementation of Attention, and the body of its function."""

import checkout

from candidates.onnx_operators import function_body, on_reference

REQUIREMENTS = ["onnx==1.23.2", "onnxruntime==1.31.1"]
CANDIDATES = {
    "reference_window": "check",
    "reference_past": "check",
    "function_body_window": "check",
}

reference_window = on_reference.reference_attention_window
reference_past = on_reference.reference_attention_past
function_body_window = function_body.function_body_attention_window
