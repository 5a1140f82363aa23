"""The standard ``Attention`` on onnxruntime's CPU kernel, in each form of its inputs."""

from __future__ import annotations

from .declaring import BROADCAST_MASKS, OPSETS, no_fewer_keys, standard
from .defects import MASKS_IN_FULL, NO_BATCH, NO_QUERY, SCALE_REFUSED
from .running import run_on_onnxruntime
from .standard import StandardAttention

attention = [
    standard(
        f"attention_{opset}",
        StandardAttention(opset=opset, run=run_on_onnxruntime),
        dtypes=["float32", "float16"],
        expected_failures=[NO_BATCH, NO_QUERY, SCALE_REFUSED],
    )
    for opset in OPSETS
]
attention_three_axes = standard(
    "attention_23_three_axes",
    StandardAttention(opset=23, run=run_on_onnxruntime, three_axes=True),
    expected_failures=[NO_BATCH, NO_QUERY, SCALE_REFUSED],
)
attention_broadcast_masks = standard(
    "attention_23_broadcast_masks",
    StandardAttention(opset=23, run=run_on_onnxruntime),
    mask_shapes=BROADCAST_MASKS,
    expected_failures=[MASKS_IN_FULL],
)
attention_past = [
    standard(
        f"attention_{opset}_past",
        StandardAttention(opset=opset, run=run_on_onnxruntime, cache="past"),
        geometry=no_fewer_keys,
        expected_failures=[NO_BATCH, SCALE_REFUSED],
    )
    for opset in (23, 25)
]
attention_external_cache = [
    standard(
        f"attention_{opset}_external_cache",
        StandardAttention(opset=opset, run=run_on_onnxruntime, cache="external"),
        masks=["lengths"],
        mask_shapes=["B"],
        expected_failures=[NO_BATCH, NO_QUERY, SCALE_REFUSED],
    )
    for opset in (24, 25)
]
