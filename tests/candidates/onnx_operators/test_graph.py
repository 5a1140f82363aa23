from __future__ import annotations

import numpy as np
import onnx
import onnx.checker
import pytest

from candidates.onnx_operators.graph import graph_of, node_for
from candidates.onnx_operators.schemas import GROUP_QUERY_ATTENTION, attention

OPSETS = pytest.mark.parametrize("opset", [23, 24, 25])


def _heads(dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {name: np.zeros((1, 2, 3, 4), dtype) for name in "QKV"}


@OPSETS
def test_a_graph_of_the_standard_operator_is_valid(opset: int) -> None:
    """The checker takes it, at the opset asked for, and its only node is the operator."""
    feeds = _heads() | {"attn_mask": np.ones((3, 3), dtype=bool)}
    node = node_for(attention(opset), feeds, outputs=("Y",), attributes={"is_causal": 1})
    model = graph_of(node)
    onnx.checker.check_model(model, full_check=True)
    assert [entry.op_type for entry in model.graph.node] == ["Attention"]
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": opset}


def test_absent_inputs_leave_their_place_empty() -> None:
    """What lies between two given inputs is "", what lies after the last is not there."""
    feeds = _heads() | {"nonpad_kv_seqlen": np.array([3])}
    node = node_for(attention(24), feeds, outputs=("Y", "qk_matmul_output"), attributes={})
    (proto,) = graph_of(node).graph.node
    assert list(proto.input) == ["Q", "K", "V", "", "", "", "nonpad_kv_seqlen"]
    assert list(proto.output) == ["Y", "", "", "qk_matmul_output"]
    (proto,) = graph_of(node_for(attention(24), _heads(), outputs=("Y",), attributes={})).graph.node
    assert list(proto.input) == ["Q", "K", "V"]


def test_sizes_are_free() -> None:
    """One graph serves all sizes: only dtypes, ranks, attributes and names make another."""
    small = node_for(attention(23), _heads(), outputs=("Y",), attributes={})
    wide = {name: np.zeros((2, 5, 7, 11), np.float32) for name in "QKV"}
    assert node_for(attention(23), wide, outputs=("Y",), attributes={}) == small
    assert graph_of(small) is graph_of(small)
    half = node_for(attention(23), _heads(np.float16), outputs=("Y",), attributes={})
    scaled = node_for(attention(23), _heads(), outputs=("Y",), attributes={"scale": 0.5})
    assert (
        len({small, half, scaled, node_for(attention(24), _heads(), outputs=("Y",), attributes={})})
        == 4
    )


def test_contrib_operators_have_their_own_domain() -> None:
    """Their node names the domain, and the model imports it."""
    feeds = {name: np.zeros((1, 2, 8), np.float32) for name in ("query", "key", "value")}
    node = node_for(GROUP_QUERY_ATTENTION, feeds, outputs=("output",), attributes={"num_heads": 1})
    model = graph_of(node)
    assert model.graph.node[0].domain == "com.microsoft"
    assert "com.microsoft" in {entry.domain for entry in model.opset_import}


@pytest.mark.parametrize(("feed", "output"), [("mask", "Y"), ("Q", "Z")])
def test_unknown_names_are_refused(feed: str, output: str) -> None:
    """A name that the schema does not have is a mistake of the caller's."""
    feeds = {feed: np.zeros((1, 1, 1, 1), np.float32)}
    with pytest.raises(ValueError, match="has no input or output"):
        node_for(attention(23), feeds, outputs=(output,), attributes={})
