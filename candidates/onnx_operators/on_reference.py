"""The standard ``Attention`` as ``onnx.reference`` evaluates it, in numpy."""

from __future__ import annotations

from .declaring import OPSETS, no_fewer_keys, standard
from .defects import (
    FIRST_ROW_FOR_ALL,
    ONE_KEY_MASK,
    PACKED_EMPTY_BATCH,
    PACKED_EMPTY_QUERY,
    SCALE_WITHOUT_ROOT,
    SHORT_MASKS_PADDED,
    SHORT_MASKS_PADDED_EARLY,
)
from .running import run_on_reference
from .standard import StandardAttention

reference_attention = [
    standard(
        f"reference_attention_{opset}",
        StandardAttention(opset=opset, run=run_on_reference),
        dtypes=["float32", "float16"] if opset == OPSETS[0] else ["float32"],
        expected_failures=[
            SCALE_WITHOUT_ROOT,
            SHORT_MASKS_PADDED_EARLY if opset == OPSETS[0] else SHORT_MASKS_PADDED,
        ],
    )
    for opset in OPSETS
]
reference_attention_window = standard(
    "reference_attention_25_window",
    StandardAttention(opset=25, run=run_on_reference),
    features=["gqa", "scale", "softcap", "weights", "window"],
    expected_failures=[SCALE_WITHOUT_ROOT, SHORT_MASKS_PADDED],
)
reference_attention_double = standard(
    "reference_attention_25_double",
    StandardAttention(opset=25, run=run_on_reference),
    dtypes=["float64"],
    features=["gqa", "weights"],  # the attributes for scale and softcap are stored in float
    expected_failures=[SHORT_MASKS_PADDED],
)
reference_attention_broadcast_masks = standard(
    "reference_attention_23_broadcast_masks",
    StandardAttention(opset=23, run=run_on_reference),
    mask_shapes=["B11K", "111K", "11K", "1K"],
    expected_failures=[SCALE_WITHOUT_ROOT, SHORT_MASKS_PADDED_EARLY, *FIRST_ROW_FOR_ALL],
)
reference_attention_key_masks = standard(
    "reference_attention_23_key_masks",
    StandardAttention(opset=23, run=run_on_reference),
    mask_shapes=["K"],
    expected_failures=[SCALE_WITHOUT_ROOT, SHORT_MASKS_PADDED_EARLY, ONE_KEY_MASK],
)
reference_attention_three_axes = standard(
    "reference_attention_24_three_axes",
    StandardAttention(opset=24, run=run_on_reference, three_axes=True),
    expected_failures=[
        PACKED_EMPTY_BATCH,
        PACKED_EMPTY_QUERY,
        SCALE_WITHOUT_ROOT,
        SHORT_MASKS_PADDED,
    ],
)
reference_attention_past = standard(
    "reference_attention_24_past",
    StandardAttention(opset=24, run=run_on_reference, cache="past"),
    geometry=no_fewer_keys,
    expected_failures=[SCALE_WITHOUT_ROOT, SHORT_MASKS_PADDED],
)
reference_attention_external_cache = standard(
    "reference_attention_24_external_cache",
    StandardAttention(opset=24, run=run_on_reference, cache="external"),
    masks=["lengths"],
    mask_shapes=["B"],
    expected_failures=[SCALE_WITHOUT_ROOT],
)
