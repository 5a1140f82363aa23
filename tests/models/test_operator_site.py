"""The attention that a node is by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from little_graphs import model, node, saved, tensor
from onnx import TensorProto, helper
from whole_models import HEADS, SIZE, masks, only

HALF = 0.5


@pytest.mark.parametrize("causal", [0, 1])
def test_an_attention_operator_is_a_site(causal: int, tmp_path: Path) -> None:
    """Its own scale, mask and causal rule are read off its attributes and inputs."""
    nodes = [
        node("MatMul", "ids wide", "tokens"),
        helper.make_node(
            "Attention",
            ["tokens", "tokens", "tokens", "allowed"],
            ["answer"],
            q_num_heads=HEADS,
            kv_num_heads=HEADS,
            is_causal=causal,
            scale=0.25,
        ),
    ]
    width = HEADS * SIZE
    made = model(
        nodes,
        inputs=(
            ("ids", TensorProto.FLOAT, ["b", "s", 3]),
            ("allowed", TensorProto.BOOL, ["b", 1, "s", "s"]),
        ),
        outputs=(("answer", TensorProto.FLOAT, ["b", "s", width]),),
        tensors=[tensor("wide", np.ones((3, width), np.float32))],
        opset=23,
    )
    site = only(saved(made, tmp_path / "graph.onnx"))
    assert (site.heads, site.kv_heads, site.head_size) == (HEADS, HEADS, SIZE)
    assert (site.scale, site.causal) == (0.25, bool(causal))
    assert masks(site) == [("keep", "B1QK", "allowed")]


def test_an_operator_of_onnxruntime_is_a_site(tmp_path: Path) -> None:
    """Without the biases, which belong to the projections; its padding mask is one of integers."""
    width = HEADS * SIZE
    made = model(
        [
            helper.make_node(
                "MultiHeadAttention",
                ["x", "x", "x", "biases", "padding"],
                ["answer"],
                num_heads=HEADS,
                domain="com.microsoft",
            )
        ],
        inputs=(
            ("x", TensorProto.FLOAT, ["b", "s", width]),
            ("padding", TensorProto.INT32, ["b", "s"]),
        ),
        outputs=(("answer", TensorProto.FLOAT, ["b", "s", width]),),
        tensors=[tensor("biases", np.ones(3 * width, np.float32))],
        domains=("com.microsoft",),
    )
    site = only(saved(made, tmp_path / "graph.onnx"))
    assert (site.heads, site.kv_heads, site.head_size, site.scale) == (HEADS, HEADS, SIZE, HALF)
    assert masks(site) == [("keep_int", "BK", "padding")]
    assert "biases" not in site.inside[-1].input
