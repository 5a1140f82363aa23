"""Graphs that a tool rewrote after a correct export: weights, constants, attributes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper
from torch import Tensor
from torch.nn import functional

from ..exports import Input, Source, by_export, by_tracing
from ..exports.described import VARIANTS
from ..exports.sources import WIDTH, seeded, wide_head_attention
from ..unbatched_attention import UnbatchedAttention
from ._kit import Plain, broken, cross, node_of, plain, rewrite


class Fused(Plain):
    """Attends by the one function that the newer exporter turns into one node."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


fused: Final = seeded(Fused)
square: Final = seeded(lambda: UnbatchedAttention(6, 3, 2))


def _matrices(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """The weights of the four projections in the order in which the graph uses them."""
    by_name = {tensor.name: tensor for tensor in model.graph.initializer}
    used = [name for node in model.graph.node for name in node.input if name in by_name]
    return [by_name[name] for name in used if len(by_name[name].dims) == len("io")]


def _set(tensor: onnx.TensorProto, values: np.ndarray) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))


def _drop_attribute(node: onnx.NodeProto, name: str) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)


@broken("export.matches-source", source=plain, alone=False)
def query_and_key_weights_swapped(path: Path) -> Path:
    """The matrices of queries and keys changed places while the file was rewritten."""
    by_tracing(cross(plain), path)

    def edit(model: onnx.ModelProto) -> None:
        query, key = _matrices(model)[:2]
        values = numpy_helper.to_array(query)
        _set(query, numpy_helper.to_array(key))
        _set(key, values)

    return rewrite(path, edit)


@broken("export.matches-source", source=plain, alone=False)
def square_matrix_transposed(path: Path) -> Path:
    """The square output matrix is written the other way round, which no shape forbids."""
    by_tracing(cross(plain), path)

    def edit(model: onnx.ModelProto) -> None:
        matrix = _matrices(model)[-1]
        _set(matrix, numpy_helper.to_array(matrix).T)

    return rewrite(path, edit)


@broken("export.matches-source", source=plain, alone=False)
def value_bias_lost(path: Path) -> Path:
    """A fusion of MatMul and Add forgot the bias of the values."""
    by_tracing(cross(plain), path)

    def edit(model: onnx.ModelProto) -> None:
        bias = next(tensor for tensor in model.graph.initializer if tensor.name == "W_v.bias")
        _set(bias, np.zeros_like(numpy_helper.to_array(bias)))

    return rewrite(path, edit)


@broken("numerics.golden", source=plain)
def softmax_over_queries(path: Path) -> Path:
    """The softmax runs over the queries."""
    by_tracing(cross(plain), path)

    def edit(model: onnx.ModelProto) -> None:
        node_of(model, "Softmax").attribute[0].i = 2

    return rewrite(path, edit)


@broken("numerics.golden", source=plain)
def softmax_without_axis_before_opset_13(path: Path) -> Path:
    """No axis and an older opset: before 13 the softmax then runs over heads, queries and keys."""
    by_tracing(cross(plain), path, opset=12)

    def edit(model: onnx.ModelProto) -> None:
        _drop_attribute(node_of(model, "Softmax"), "axis")

    return rewrite(path, edit)


@broken("numerics.golden", source=plain)
def scale_lost(path: Path) -> Path:
    """The scale is replaced by that of a head twice as large."""
    by_tracing(cross(plain), path)

    def edit(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and list(attribute.t.dims) == []:
                    _halve(attribute.t)

    return rewrite(path, edit)


def _halve(tensor: onnx.TensorProto) -> None:
    values = numpy_helper.to_array(tensor)
    if values.dtype == np.float32:
        _set(tensor, values / np.float32(2**0.5))


@broken("export.matches-source", source=square, alone=False)
def gemm_no_longer_transposes(path: Path) -> Path:
    """A Gemm lost ``transB`` where its matrix is square, so it multiplies by the wrong side."""
    tokens = Input(name="x", axes=("tokens", 6))
    source = Source(
        name="square", module=square, inputs=(tokens,), outputs={"output": ("tokens", 6)}
    )
    by_tracing(source, path)

    def edit(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "Gemm":
                _drop_attribute(node, "transB")

    return rewrite(path, edit)


@broken("numerics.golden", source=wide_head_attention)
def heads_split_without_transposing(path: Path) -> Path:
    """The transpose that brings the heads forward lost its order, which a reshape then hides."""
    source = next(source for source in VARIANTS if source.name == "wide_head_attention")
    by_tracing(source, path)

    def edit(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "Transpose" and list(node.attribute[0].ints) == [0, 2, 1, 3]:
                node.attribute[0].ints[:] = [0, 1, 2, 3]

    return rewrite(path, edit)


@broken("export.matches-source", source=fused, alone=False)
def standard_node_made_causal(path: Path) -> Path:
    """The standard operator's ``is_causal`` is set by a tool that took the model for a decoder."""
    by_export(cross(fused), path, opset=23)

    def edit(model: onnx.ModelProto) -> None:
        causal = onnx.helper.make_attribute("is_causal", 1)
        node = node_of(model, "Attention")
        _drop_attribute(node, "is_causal")
        node.attribute.append(causal)

    return rewrite(path, edit)


@broken("numerics.golden", source=fused)
def standard_node_scaled_by_width(path: Path) -> Path:
    """The standard operator's ``scale`` is that of the whole width, where it is that of a head."""
    by_export(cross(fused), path, opset=23)

    def edit(model: onnx.ModelProto) -> None:
        node = node_of(model, "Attention")
        _drop_attribute(node, "scale")
        node.attribute.append(onnx.helper.make_attribute("scale", WIDTH**-0.5))

    return rewrite(path, edit)


@broken("export.dynamic-length", source=plain)
def softmax_of_a_softmax(path: Path) -> Path:
    """The graph has a second softmax, of the weights of the first."""
    by_tracing(cross(plain), path)

    def edit(model: onnx.ModelProto) -> None:
        softmax = node_of(model, "Softmax")
        again = onnx.helper.make_node("Softmax", ["once"], [softmax.output[0]], axis=-1)
        softmax.output[0] = "once"
        number = list(model.graph.node).index(softmax)
        model.graph.node.insert(number + 1, again)

    return rewrite(path, edit)
