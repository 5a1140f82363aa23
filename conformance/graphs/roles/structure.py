"""What the nodes of a graph's file tell of it before it is called."""

from __future__ import annotations

from typing import Final

import onnx

from ..header import Header

# What a graph must hold to be an attention whose behaviour is wrong.
_SOFTMAXES: Final = frozenset({"Softmax", "LogSoftmax", "Exp"})
_WHOLE: Final = frozenset(
    {
        "Attention",
        "DecoderMaskedMultiHeadAttention",
        "DecoderMaskedSelfAttention",
        "GroupQueryAttention",
        "MultiHeadAttention",
        "PackedAttention",
        "PackedMultiHeadAttention",
        "QAttention",
        "SparseAttention",
    }
)
_PRODUCTS: Final = frozenset(
    {"DynamicQuantizeMatMul", "Einsum", "FusedMatMul", "Gemm", "MatMul", "MatMulInteger"}
    | {"MatMulIntegerToFloat", "QLinearMatMul", "QGemm"}
)
# These give sizes, not values: a product with one scales.
_SIZES: Final = frozenset({"Shape", "Size"})


def is_attentive(header: Header) -> bool:
    """Whether a graph holds what only attention and few others need: a softmax."""
    return bool(_operators(header) & (_SOFTMAXES | _WHOLE))


def multiplies_itself(header: Header) -> bool:
    """Whether two things computed from inputs are multiplied; True where that is hard to tell."""
    if _operators(header) & _WHOLE:
        return True
    try:
        model = onnx.load(header.path, load_external_data=False)
    except (OSError, ValueError):
        return True
    if model.functions or any(_has_body(node) for node in model.graph.node):
        return True
    sums = "ReduceSum" in _operators(header)
    live = {port.name for port in header.inputs}
    before = 0
    # Again until nothing is added: converters append casts at the end, out of order.
    while len(live) > before:
        before = len(live)
        for node in model.graph.node:
            used = [name for name in node.input if name in live]
            product = node.op_type in _PRODUCTS or (sums and node.op_type == "Mul")
            if product and len(used) > 1:
                return True
            if used and node.op_type not in _SIZES:
                live.update(node.output)
    return False


def _operators(header: Header) -> frozenset[str]:
    return frozenset(operator.rpartition("::")[2] for operator in header.operators)


def _has_body(node: onnx.NodeProto) -> bool:
    return any(attribute.HasField("g") for attribute in node.attribute)
