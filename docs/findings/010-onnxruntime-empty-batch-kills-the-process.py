# ruff: noqa: INP001, S603, T201 (a script that prints and runs itself)
"""onnxruntime: GroupQueryAttention with an empty batch ends the process by a signal.

The model runs in a process of its own. Exits 0 while the defect is there, 1 when it is gone.
"""

import signal
import subprocess
import sys

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper

LENGTH, SIZE = 3, 8


def model() -> ModelProto:
    """One node; batch and length are free."""
    names = ["query", "key", "value"]
    node = helper.make_node(
        "GroupQueryAttention",
        [*names, "", "", "seqlens_k", "total_sequence_length"],
        ["output", "present_key", "present_value"],
        domain="com.microsoft",
        num_heads=1,
        kv_num_heads=1,
    )
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, None, SIZE]) for n in names
    ]
    inputs.append(helper.make_tensor_value_info("seqlens_k", TensorProto.INT32, [None]))
    inputs.append(helper.make_tensor_value_info("total_sequence_length", TensorProto.INT32, []))
    outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def run(batch: int) -> None:
    """Run the model on zeros."""
    session = onnxruntime.InferenceSession(
        model().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    tokens = np.zeros((batch, LENGTH, SIZE), np.float32)
    feeds = {"query": tokens, "key": tokens, "value": tokens}
    feeds["seqlens_k"] = np.full(batch, LENGTH - 1, np.int32)
    feeds["total_sequence_length"] = np.array(LENGTH, np.int32)
    print("an answer of shape", session.run(["output"], feeds)[0].shape, flush=True)


def in_a_process(batch: int) -> int:
    """The exit status of a process that runs the model, negative for a signal."""
    return subprocess.run([sys.executable, __file__, str(batch)], check=False).returncode


if len(sys.argv) > 1:
    run(int(sys.argv[1]))
    sys.exit(0)
print(
    f"onnxruntime {onnxruntime.__version__}: GroupQueryAttention, {LENGTH} tokens an item",
    flush=True,
)
ended = {batch: in_a_process(batch) for batch in (1, 0)}
for batch, status in ended.items():
    how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    print(f"  a batch of {batch}: {how}")
sys.exit(0 if ended[1] == 0 and ended[0] < 0 else 1)
