"""Three of ``onnx_operators``, one an operator, for a run over all candidates that stays short.

``conformance check candidates/onnx_operators`` checks every form on every engine.
"""

from __future__ import annotations

from .onnx_operators.on_contrib import (
    group_query_attention_lengths,
    multi_head_attention_lowest_fill,
)
from .onnx_operators.on_onnxruntime import attention_external_cache

__conformance__ = [
    attention_external_cache[0],
    multi_head_attention_lowest_fill,
    group_query_attention_lengths,
]
