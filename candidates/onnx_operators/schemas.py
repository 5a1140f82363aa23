"""The operators of this folder: inputs and outputs in the order of their schemas."""

from __future__ import annotations

from typing import Final

import onnx.defs

from .graph import CONTRIB_DOMAIN, Operator


def attention(version: int) -> Operator:
    """The standard ``Attention`` of an opset, as the installed onnx describes it."""
    schema = onnx.defs.get_schema("Attention", version)
    return Operator(
        name="Attention",
        version=version,
        inputs=tuple(value.name for value in schema.inputs),
        outputs=tuple(value.name for value in schema.outputs),
    )


# onnxruntime's ContribOperators.md; its schemas are not part of the onnx package.
MULTI_HEAD_ATTENTION: Final = Operator(
    name="MultiHeadAttention",
    domain=CONTRIB_DOMAIN,
    version=1,
    inputs=(
        "query",
        "key",
        "value",
        "bias",
        "key_padding_mask",
        "attention_bias",
        "past_key",
        "past_value",
        "past_sequence_length",
        "cache_indirection",
    ),
    outputs=("output", "present_key", "present_value", "qk"),
)
GROUP_QUERY_ATTENTION: Final = Operator(
    name="GroupQueryAttention",
    domain=CONTRIB_DOMAIN,
    version=1,
    inputs=(
        "query",
        "key",
        "value",
        "past_key",
        "past_value",
        "seqlens_k",
        "total_sequence_length",
        "cos_cache",
        "sin_cache",
        "position_ids",
        "attention_bias",
        "head_sink",
        "k_scale",
        "v_scale",
        "q_norm_weight",
        "k_norm_weight",
    ),
    outputs=("output", "present_key", "present_value", "output_qk"),
)
