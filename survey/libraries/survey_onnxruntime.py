"""onnxruntime: its kernels of Attention, MultiHeadAttention and GroupQueryAttention on a CPU."""

import checkout

from candidates.onnx_operators import on_contrib, on_onnxruntime

REQUIREMENTS = ["onnxruntime==1.31.1", "onnx==1.23.2"]
CANDIDATES = {
    "attention_three_axes": "check",
    "multi_head_attention_padding": "check",
    "multi_head_attention_past": "check",
    "group_query_attention": "check",
    "group_query_attention_decoding": "check",
}
attention_three_axes = on_onnxruntime.attention_three_axes
multi_head_attention_padding = on_contrib.multi_head_attention_padding
multi_head_attention_past = on_contrib.multi_head_attention_past
group_query_attention = on_contrib.group_query_attention
group_query_attention_decoding = on_contrib.group_query_attention_decoding
