"""Products of 8-bit integers: exact on every machine, also on one that cuts them off."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from little_graphs import saved
from onnx import TensorProto, helper, numpy_helper

from conformance.graphs.process import GraphProcess
from conformance.graphs.saturation import saturates, widen

DEPTH, WIDTH = 64, 16
LARGEST = np.full((2, DEPTH), 255, np.uint8)
INTEGERS = np.random.default_rng(3).integers(-128, 128, (DEPTH, WIDTH)).astype(np.int8)


def product(weights: Any, zero: Any = None) -> onnx.ModelProto:
    """``y = tokens @ (weights - zero)`` in integers; without ``zero`` the input is left out."""
    stored = [numpy_helper.from_array(weights, "w")]
    inputs = ["x", "w"]
    if zero is not None:
        stored.append(numpy_helper.from_array(np.asarray(zero, np.int8), "z"))
        inputs += ["", "z"]
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", inputs, ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", DEPTH])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, ["n", WIDTH])],
        stored,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("weights", [np.full((DEPTH, WIDTH), 127, np.int8), INTEGERS])
def test_the_process_multiplies_exactly(weights: Any, tmp_path: Path) -> None:
    """The largest integers answer without loss, whatever instructions the processor has."""
    with GraphProcess(saved(product(weights), tmp_path / "m.onnx")) as process:
        answer = process.run({"x": LARGEST})["y"]
    np.testing.assert_array_equal(answer, LARGEST.astype(np.int32) @ weights.astype(np.int32))


@pytest.mark.parametrize("zero", [None, 0, -5, np.arange(WIDTH)])
def test_unsigned_weights_stand_for_the_same_numbers(zero: Any, tmp_path: Path) -> None:
    """Weights and zero point move together; without a zero point one is added."""
    model = product(INTEGERS, zero)
    widen(model, tmp_path)
    onnx.checker.check_model(model, full_check=True)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    node = model.graph.node[0]
    moved, zeros = (numpy_helper.to_array(stored[node.input[at]]) for at in (1, 3))
    assert moved.dtype == zeros.dtype == np.uint8
    meant = INTEGERS.astype(int) - np.asarray(0 if zero is None else zero)
    np.testing.assert_array_equal(moved.astype(int) - zeros, meant)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (answer,) = session.run(None, {"x": LARGEST})
    np.testing.assert_array_equal(answer, LARGEST.astype(int) @ meant)


def test_unsigned_and_computed_weights_stay(tmp_path: Path) -> None:
    """Only stored signed weights are moved."""
    for model in (product(INTEGERS.view(np.uint8)), product(INTEGERS)):
        if model.graph.initializer[0].data_type == TensorProto.INT8:
            del model.graph.initializer[:]
        before = model.SerializeToString()
        widen(model, tmp_path)
        assert model.SerializeToString() == before


@pytest.mark.parametrize(("largest", "cut"), [(1 << 31, False), ((1 << 15) - 1, True)])
def test_a_machine_that_cuts_off_is_seen(largest: int, cut: bool) -> None:  # noqa: FBT001
    """A stand-in for the runtime adds pairs of products with this as their largest sum."""

    class Session:
        def __init__(self, model: bytes, **_: Any) -> None:
            held = onnx.load_from_string(model).graph.initializer[0]
            self.weights = numpy_helper.to_array(held).astype(np.int64)

        def run(self, _: None, feeds: dict[str, Any]) -> list[Any]:
            terms = feeds["tokens"].astype(np.int64)[:, :, None] * self.weights
            pairs = np.minimum(terms[:, ::2] + terms[:, 1::2], largest)
            return [pairs.sum(1).astype(np.int32)]

    assert saturates(SimpleNamespace(InferenceSession=Session)) is cut


def test_files_without_integers_are_not_tried(tmp_path: Path) -> None:
    """A float graph, a file that is not there and an empty one have no such products."""
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "float",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    (tmp_path / "empty.onnx").touch()
    saved(helper.make_model(graph), tmp_path / "float.onnx")
    for name in ("float.onnx", "empty.onnx", "missing.onnx"):
        with GraphProcess(tmp_path / name) as process:
            assert process.saturates() is False
