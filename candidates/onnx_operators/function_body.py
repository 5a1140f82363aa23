"""The standard ``Attention`` by the function that defines it, on onnxruntime."""

from __future__ import annotations

from .declaring import BROADCAST_MASKS, FULL_MASKS, OPSETS, no_fewer_keys, standard
from .defects import (
    LONG_MASKS_CROPPED,
    PACKED_EMPTY_BATCH,
    PACKED_EMPTY_QUERY,
    SCALE_IN_FLOAT,
    SCALE_WITHOUT_ROOT,
    SHORT_MASKS_PADDED,
)
from .running import run_function_body
from .standard import StandardAttention

PADDED = [SHORT_MASKS_PADDED, LONG_MASKS_CROPPED]

function_body_attention = [
    standard(
        f"function_body_attention_{opset}",
        StandardAttention(opset=opset, run=run_function_body),
        mask_shapes=[*FULL_MASKS, *BROADCAST_MASKS],
        dtypes=["float32", "float16"] if opset == OPSETS[0] else ["float32"],
        expected_failures=[SCALE_WITHOUT_ROOT, *([] if opset == OPSETS[0] else PADDED)],
    )
    for opset in OPSETS
]
function_body_attention_window = standard(
    "function_body_attention_25_window",
    StandardAttention(opset=25, run=run_function_body),
    features=["gqa", "scale", "softcap", "weights", "window"],
    expected_failures=[SCALE_WITHOUT_ROOT, *PADDED],
)
function_body_attention_double = standard(
    "function_body_attention_25_double",
    StandardAttention(opset=25, run=run_function_body),
    dtypes=["float64"],
    features=["gqa", "weights"],  # the attributes for scale and softcap are stored in float
    expected_failures=[SCALE_IN_FLOAT, *PADDED],
)
function_body_attention_three_axes = standard(
    "function_body_attention_24_three_axes",
    StandardAttention(opset=24, run=run_function_body, three_axes=True),
    expected_failures=[PACKED_EMPTY_BATCH, PACKED_EMPTY_QUERY, SCALE_WITHOUT_ROOT, *PADDED],
)
function_body_attention_past = standard(
    "function_body_attention_24_past",
    StandardAttention(opset=24, run=run_function_body, cache="past"),
    geometry=no_fewer_keys,
    expected_failures=[SCALE_WITHOUT_ROOT, *PADDED],
)
function_body_attention_external_cache = standard(
    "function_body_attention_24_external_cache",
    StandardAttention(opset=24, run=run_function_body, cache="external"),
    masks=["lengths"],
    mask_shapes=["B"],
    expected_failures=[SCALE_WITHOUT_ROOT],
)
