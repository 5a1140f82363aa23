"""``read_roles`` on operators that are attention themselves, on quantised and limited graphs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from graph_exports import WIDTH, Layer, dynamic, export, numbers, of_layer, separate
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from role_reading import SEPARATE, read, read_file, shown
from torch import Tensor, nn

from conformance.graphs.sidecar import GraphDeclaration

Value = tuple[str, int, Sequence[int | str] | None]
SINGLE, INT32, INT64, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.BOOL,
)
APART: list[Value | None] = [
    ("a", SINGLE, ["b", 4, "q", 8]),
    ("b", SINGLE, ["b", 4, "k", 8]),
    ("c", SINGLE, ["b", 4, "k", 8]),
]
PACKED: list[Value | None] = [
    ("a", SINGLE, ["b", "q", 32]),
    ("b", SINGLE, ["b", "k", 32]),
    ("c", SINGLE, ["b", "k", 32]),
]
CONTRIB = "com.microsoft"
HEADS = "a=query:BHLD b=key:BHLD c=value:BHLD"
ROWS = HEADS.replace("BHLD", "BLM")


def saved(
    folder: Path,
    operator: str,
    inputs: Sequence[Value | None],
    output: Sequence[int | str] | None,
    **attributes: Any,
) -> Path:
    """A graph of one node; a None leaves an optional input out."""
    domain = attributes.get("domain", "")
    node = helper.make_node(
        operator, [port[0] if port else "" for port in inputs], ["y"], **attributes
    )
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info(*port) for port in inputs if port],
        [helper.make_tensor_value_info("y", SINGLE, output)],
    )
    opsets = [helper.make_opsetid("", 20 if domain else 23)]
    opsets += [helper.make_opsetid(domain, 1)] if domain else []
    path = folder / "graph.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


@pytest.mark.parametrize(
    ("mask", "role"),
    [
        (None, ""),
        (("m", BOOL, ["q", "k"]), " m=keep:QK"),
        (("m", BOOL, ["b", 4, "q", "k"]), " m=keep:BHQK"),
        (("m", BOOL, ["b", "h", "q", "k"]), " m=keep:BHQK"),
        (("m", SINGLE, [1, 1, "q", "k"]), " m=bias:11QK"),
        (("m", INT64, ["q", "k"]), " m=keep_int:QK"),
    ],
    ids=["none", "bool", "bool of heads", "bool of open heads", "float", "int64, added"],
)
def test_the_standard_operator_is_a_core(mask: Value | None, role: str, tmp_path: Path) -> None:
    """With every form of mask that it takes."""
    inputs = [*APART, mask] if mask else APART
    path = saved(tmp_path, "Attention", inputs, ["b", 4, "q", 8])
    assert shown(read_file(path)) == f"{HEADS}{role} -> y=output:BHLD"


def test_the_causal_operator_is_aligned_top_left(tmp_path: Path) -> None:
    """As its specification says."""
    path = saved(tmp_path, "Attention", APART, ["b", 4, "q", 8], is_causal=1)
    assert read_file(path).causal == "top-left"


def test_packed_heads_of_the_standard_operator_are_counted(tmp_path: Path) -> None:
    """Its attributes say four: behaviour does, too."""
    heads = {"q_num_heads": 4, "kv_num_heads": 4}
    path = saved(tmp_path, "Attention", PACKED, ["b", "q", 32], **heads)
    reading = read_file(path)
    assert shown(reading) == f"{ROWS} -> y=output:BLM"
    assert reading.pins["num_heads"] == reading.pins["num_kv_heads"] == 4


def test_tensors_without_a_rank_are_tried(tmp_path: Path) -> None:
    """A file may leave shapes out altogether; a declaration of the axes spares the trying."""
    path = saved(tmp_path, "Attention", [(name, SINGLE, None) for name in "abc"], None)
    assert shown(read_file(path)) == f"{HEADS} -> y=output:BHLD"
    declaration = GraphDeclaration(inputs={name: {"axes": "BHLD"} for name in "abc"})
    assert shown(read_file(path, declaration)) == f"{HEADS} -> y=output:BHLD"


@pytest.mark.parametrize(
    ("more", "role"),
    [
        ([], ""),
        ([None, ("m", INT32, ["b", "k"])], " m=keep_int:BK"),
        ([None, ("m", INT32, ["b"])], " m=lengths:B"),
        ([None, None, ("m", SINGLE, ["b", 4, "q", "k"])], " m=bias:BHQK"),
    ],
    ids=["none", "padding", "lengths", "bias"],
)
def test_the_contrib_operator_is_a_packed_core(
    more: list[Value | None], role: str, tmp_path: Path
) -> None:
    """``com.microsoft.MultiHeadAttention``, with its masks."""
    inputs = [*PACKED, *more]
    path = saved(
        tmp_path, "MultiHeadAttention", inputs, ["b", "q", 32], domain=CONTRIB, num_heads=4
    )
    assert shown(read_file(path)) == f"{ROWS}{role} -> y=output:BLM"


@pytest.mark.parametrize("masked", [False, True])
def test_a_quantised_graph_is_read_through_its_noise(masked: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """Eight-bit scales of a whole tensor let every change reach everything, a little."""

    def padded(layer: Layer, x: Tensor, *masks: Tensor) -> Tensor:
        def hide(logits: Tensor) -> Tensor:
            return logits.masked_fill(masks[0][:, None, None], -1e9) if masks else logits

        return layer(x, x, x, masking=hide)[0]

    inputs = {"x": numbers(3, 5, WIDTH)}
    if masked:
        inputs["z"] = torch.zeros(3, 5, dtype=torch.bool)
    path = export(
        tmp_path / "float.onnx", of_layer(padded), inputs, dynamic=dynamic(x="b s", z="b s")
    )
    quantize_dynamic(str(path), str(tmp_path / "int8.onnx"), weight_type=QuantType.QInt8)
    expected = "x=x:BLE z=drop:BK -> y=output:BLE" if masked else "x=x:BLE -> y=output:BLE"
    assert shown(read_file(tmp_path / "int8.onnx")) == expected


class Placed(nn.Module):
    """Self-attention over a table of twelve positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(12, WIDTH), Layer()

    def forward(self, x: Tensor) -> Tensor:
        """``[B, L, E]`` with at most twelve positions."""
        x = x + self.table(torch.cumsum(torch.ones_like(x[0, :, 0]), 0).long() - 1)
        return self.layer(x, x, x)[0]


def test_the_end_of_a_table_of_positions_is_found(tmp_path: Path) -> None:
    """Lengths up to it are allowed: the graph is not frozen."""
    reading = read(tmp_path, Placed(), {"x": numbers(3, 5, WIDTH)}, dynamic(x="b s"))
    assert reading.pins["query_length"] == tuple(range(1, 13))
    assert not reading.baked
    assert any("at most 12" in sentence for sentence in reading.assumptions)


def attended(layer: Layer, *inputs: Tensor) -> Tensor:
    query, key, value = inputs
    return layer(query, key, value)[0]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("opset", [18, 23])
def test_the_newer_exporter_makes_graphs_that_are_read_the_same(opset: int, tmp_path: Path) -> None:
    """At an opset without the standard operator and at one with it."""
    module = of_layer(attended)
    reading = read(tmp_path, module, separate(), SEPARATE, dynamo=True, opset=opset)
    assert shown(reading) == "q=query:BLE k=key:BLE v=value:BLE -> y=output:BLE"
    assert not reading.baked
