"""Attention as a single node, 8-bit weights and local functions: projections around and inside."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attention_layers as layers
import numpy as np
import onnxruntime
import pytest
import torch
from attention_layers import Layer
from onnx import helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from weight_graphs import build, differing, drawn, export, find

from conformance.graphs.process import GraphProcess

node = helper.make_node
MATRICES = {f"W{name}": drawn(12, 12) + np.float32(i) for i, name in enumerate("qkvo")}
BIAS = drawn(36)
INPUTS = {"query": ["b", "l", 12], "key": ["b", "s", 12], "value": ["b", "s", 12]}
PROJECT = [
    node("MatMul", ["query", "Wq"], ["pq"]),
    node("MatMul", ["key", "Wk"], ["pk"]),
    node("MatMul", ["value", "Wv"], ["pv"]),
]
OUTPUT = node("MatMul", ["heads", "Wo"], ["output"])


def stored_are(projections: Any, names: str = "qkvo") -> bool:
    """Whether the projections are the stored matrices."""
    return all(
        np.array_equal(getattr(projections.weights, name).numpy(), MATRICES[f"W{name}"].T)
        for name in names
    )


@pytest.mark.parametrize(("scale", "expected"), [(None, 1 / 2), (0.7, 0.7)])
def test_the_standard_operator_on_packed_heads(
    scale: float | None, expected: float, tmp_path: Path
) -> None:
    """Three axes, the number of heads and the scale as attributes."""
    attributes = {} if scale is None else {"scale": scale}
    attention = node("Attention", ["pq", "pk", "pv"], ["heads"], q_num_heads=3, kv_num_heads=3)
    attention.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    path = build(tmp_path / "m.onnx", [*PROJECT, attention, OUTPUT], INPUTS, MATRICES, opset=23)
    projections = find(path)
    assert stored_are(projections)
    assert (projections.num_heads, projections.num_kv_heads) == (3, 3)
    assert math.isclose(projections.scale, expected, rel_tol=1e-6)
    assert projections.gauge == ""


@pytest.mark.parametrize("biased", [False, True])
def test_onnxruntimes_multi_head_attention(biased: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """Biases that the node adds itself are the layer's."""
    inputs = ["pq", "pk", "pv", *(["bias"] if biased else [])]
    attention = node("MultiHeadAttention", inputs, ["heads"], domain="com.microsoft", num_heads=3)
    path = build(
        tmp_path / "m.onnx", [*PROJECT, attention, OUTPUT], INPUTS, {**MATRICES, "bias": BIAS}
    )
    projections = find(path)
    assert stored_are(projections)
    assert (projections.num_heads, projections.scale) == (3, 1 / 2)
    if biased:
        assert np.array_equal(projections.weights.v_bias.numpy(), BIAS[24:])
    else:
        assert projections.weights.v_bias is None


def test_onnxruntimes_attention_brings_its_projections(tmp_path: Path) -> None:
    """One matrix ``[E, 3 M]`` inside the node."""
    packed = drawn(12, 36)
    attention = node(
        "Attention", ["x", "packed", "bias"], ["heads"], domain="com.microsoft", num_heads=3
    )
    stored = {"packed": packed, "bias": BIAS, "Wo": MATRICES["Wo"]}
    path = build(tmp_path / "m.onnx", [attention, OUTPUT], {"x": ["b", "l", 12]}, stored)
    projections = find(path)
    assert np.array_equal(projections.weights.k.numpy(), packed[:, 12:24].T)
    assert np.array_equal(projections.weights.q_bias.numpy(), BIAS[:12])
    assert stored_are(projections, "o")
    assert projections.scale == 1 / 2


def test_grouped_heads_of_onnxruntime(tmp_path: Path) -> None:
    """Fewer key heads than query heads, always causal."""
    stored = {
        "Wq": drawn(16, 32),
        "Wk": drawn(16, 16),
        "Wv": drawn(16, 16) + 1,
        "Wo": drawn(32, 16),
        "last": np.asarray([4, 4], np.int32),
        "total": np.asarray(5, np.int32),
    }
    attention = node(
        "GroupQueryAttention",
        ["pq", "pk", "pv", "", "", "last", "total"],
        ["heads", "keys", "values"],
        domain="com.microsoft",
        num_heads=4,
        kv_num_heads=2,
    )
    project = [node("MatMul", ["x", f"W{name}"], [f"p{name}"]) for name in "qkv"]
    path = build(tmp_path / "m.onnx", [*project, attention, OUTPUT], {"x": [2, 5, 16]}, stored)
    projections = find(path, causal="bottom-right")
    assert (projections.num_heads, projections.num_kv_heads) == (4, 2)
    assert np.array_equal(projections.weights.k.numpy(), stored["Wk"].T)
    assert np.array_equal(projections.weights.o.numpy(), stored["Wo"].T)
    assert math.isclose(projections.scale, 1 / math.sqrt(8))


def test_rotating_nodes_are_not_read(tmp_path: Path) -> None:
    """A node that rotates by position is no affine map of tokens, and is said to be none."""
    attention = node(
        "GroupQueryAttention",
        ["pq", "pk", "pv", "", "", "last", "total", "cos", "sin"],
        ["heads", "keys", "values"],
        domain="com.microsoft",
        num_heads=3,
        kv_num_heads=3,
        do_rotary=1,
    )
    stored = {"last": np.asarray([4, 4], np.int32), "total": np.asarray(5, np.int32)}
    stored |= {"cos": drawn(8, 2), "sin": drawn(8, 2)}
    path = build(tmp_path / "m.onnx", [*PROJECT, attention, OUTPUT], INPUTS, {**MATRICES, **stored})
    projections = find(path)
    assert projections.weights is None
    assert "rotates query and key" in projections.assumptions[0]


def tokens() -> tuple[torch.Tensor, ...]:
    """Query, key and value."""
    return torch.randn(2, 4, 12), torch.randn(2, 5, 12), torch.randn(2, 5, 12)


def test_a_graph_that_onnxruntime_optimised(tmp_path: Path) -> None:
    """The scale inside a fused product is recovered."""
    module = Layer()
    path = export(tmp_path / "m.onnx", module, tokens())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    projections = find(tmp_path / "optimised.onnx")
    assert differing(projections, module) == []
    assert (projections.scale, projections.gauge) == (1 / 2, "")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8], ids=["int8", "uint8"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_eight_bit_weights_are_dequantised(
    kind: QuantType,
    per_channel: bool,  # noqa: FBT001 (a parameter)
    tmp_path: Path,
) -> None:
    """Half a step from the module's own, with heads and scale; a state dict matches them."""
    module = Layer()
    path = export(tmp_path / "m.onnx", module, tokens())
    quantize_dynamic(str(path), str(tmp_path / "q.onnx"), weight_type=kind, per_channel=per_channel)
    projections = find(tmp_path / "q.onnx", process=GraphProcess)
    assert (projections.num_heads, projections.scale) == (3, 1 / 2)
    for name in "qkvo":
        right = getattr(module, name).weight.detach()
        step = 2 * right.abs().max() / 254
        got = getattr(projections.weights, name)
        assert 0 < (got - right).abs().max() <= step * 0.51
    of_state_dict = find(tmp_path / "q.onnx", state_dict=module.state_dict(), process=GraphProcess)
    assert of_state_dict.how == "state dict"
    assert torch.equal(of_state_dict.weights.q, projections.weights.q)


def test_local_functions_are_looked_into(tmp_path: Path) -> None:
    """An attention inside a function of the file is read, though its tensors have no names."""
    inner = [
        node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["q", "t"], ["product"]),
        node("Constant", [], ["scale"], value_float=12**-0.5),
        node("Mul", ["product", "scale"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["mean"]),
    ]
    function = helper.make_function(
        "custom", "Attend", ["q", "k", "v"], ["mean"], inner, [helper.make_opsetid("", 21)]
    )
    call = node("Attend", ["pq", "pk", "pv"], ["heads"], domain="custom")
    path = build(
        tmp_path / "m.onnx", [*PROJECT, call, OUTPUT], INPUTS, MATRICES, functions=[function]
    )
    projections = find(path)
    assert stored_are(projections)
    assert (projections.num_heads, projections.gauge) == (1, "")
    assert math.isclose(projections.scale, 1 / math.sqrt(12))
    assert projections.stages.query == ""


def test_weights_outside_of_the_file_are_read(tmp_path: Path) -> None:
    """External data in the graph's folder."""
    import onnx  # noqa: PLC0415 (this test alone)

    module = Layer(layers.fused_kernel)
    path = export(tmp_path / "m.onnx", module, tokens())
    onnx.save(
        onnx.load(path),
        tmp_path / "outside.onnx",
        save_as_external_data=True,
        location="outside.data",
        size_threshold=0,
    )
    assert (tmp_path / "outside.data").stat().st_size > 1000
    assert differing(find(tmp_path / "outside.onnx"), module) == []


def test_the_core_of_a_core_has_stages_and_no_weights(tmp_path: Path) -> None:
    """Query, key and value come projected: nothing to find but where the stages are."""
    nodes = [
        node("Transpose", ["key"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["query", "t"], ["product"]),
        node("Softmax", ["product"], ["weights"], axis=-1),
        node("MatMul", ["weights", "value"], ["output"]),
    ]
    projections = find(build(tmp_path / "m.onnx", nodes, INPUTS, {}), kind="core", axes="FLD")
    assert (projections.weights, projections.how) == (None, "declared")
    assert (projections.stages.scores, projections.stages.weights) == ("product", "weights")
    assert (projections.stages.query, projections.stages.value) == ("query", "value")


def test_nodes_out_of_order_are_followed(tmp_path: Path) -> None:
    """Converters append their casts at the end of the file, and the runtime sorts nodes itself."""
    attention = node("Attention", ["pq", "pk", "pv"], ["heads"], q_num_heads=3, kv_num_heads=3)
    nodes = [OUTPUT, attention, *PROJECT]
    path = build(tmp_path / "m.onnx", nodes, INPUTS, MATRICES, opset=23)
    projections = find(path)
    assert stored_are(projections)
    assert projections.num_heads == 3
