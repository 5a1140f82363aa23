"""Torch's attention kernels for CUDA: flash, memory-efficient, cuDNN, and flex_attention compiled.

``conformance check candidates`` has them where torch sees CUDA. What each refuses is declared: head
sizes that are no multiple of 8, masks, other lengths under the causal rule, channels that do not
lie beside each other (torch 2.13, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp). What each
does wrong is an expected failure. ``benchmarks/gpu.md`` says how to run them, and what was seen.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import conformance
from conformance import ExpectedFailure

NO_QUERIES: Final = ExpectedFailure(
    clause="shape.empty-query",
    kind="raised",
    reason="fused kernels refuse a length of zero; torch's own choice goes elsewhere",
)
# Seen with torch 2.11 on an H100 (benchmarks/gpu.md).
MISALIGNED: Final = ExpectedFailure(
    clause="gradients.strided",
    kind="crashed",
    reason="inputs that do not begin at a multiple of 16 bytes break the device: 'misaligned "
    "address' (pytorch#183484 is that of the memory-efficient kernel)",
)
ODD_STRIDES: Final = ExpectedFailure(
    clause="shape.strided",
    kind="raised",
    reason="even the stride of an axis of one element must be a multiple of 4",
)
BIAS_GRADIENT: Final = ExpectedFailure(
    clause="gradients.bias",
    dtype="float32",
    kind="crashed",
    reason="the backward pass of one query with an additive mask reads memory that is not its own",
)
NO_ITEMS: Final = ExpectedFailure(
    clause="shape.empty-batch",
    kind="type",
    reason="without items the answer is None (pytorch#133780)",
)
UNCHECKED_VALUES: Final = ExpectedFailure(
    clause="shape.rejects-mismatch",
    kind="crashed",
    reason="fewer values than keys end the process with a segmentation fault",
)
WRONG_GRADIENTS: Final = ExpectedFailure(
    clause="gradients.strided",
    kind="value",
    reason="gradients are wrong, without a word, where inputs begin at odd addresses",
)
UNCOMPARED: Final = ExpectedFailure(
    clause="shape.rejects-mismatch",
    kind="not-raised",
    reason="fewer values than keys are answered",
)
ALIGNED: Final[dict[str, Any]] = {
    "head_size": [8, 16, 24, 32, 64, 128],
    "value_head_size": "head_size",
}
SQUARE: Final[dict[str, Any]] = {**ALIGNED, "key_length": "query_length"}
FUSED: Final[dict[str, Any]] = {
    "devices": ["cuda"],
    "scores": "fused",
    "empty_rows": "any",
    "strides": "contiguous",
}
# Its backward pass keeps the weights in the dtype of the inputs.
EFFICIENT: Final = {**FUSED, "scores": "eager"}
HALVES: Final = ["float16", "bfloat16"]
# More than a profile asks for: masks, scales and groups are compiled apart.
MOST_GRAPHS: Final = 1024


def _attend(
    backend: SDPBackend,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """One backend, whatever torch would choose."""
    mask = bias if keep is None else keep
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=causal,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )


@conformance.core(
    features=["scale", "gqa"],
    dtypes=HALVES,
    geometry=ALIGNED,
    expected_failures=[NO_QUERIES, MISALIGNED],
    **FUSED,
)
def torch_cuda_flash(query: Tensor, key: Tensor, value: Tensor, **use: Any) -> Tensor:
    """FlashAttention 2 without a mask."""
    return _attend(SDPBackend.FLASH_ATTENTION, query, key, value, **use)


@conformance.core(
    features=["scale", "gqa"],
    dtypes=HALVES,
    geometry=SQUARE,
    causal="top-left",
    expected_failures=[NO_QUERIES, MISALIGNED],
    **FUSED,
)
def torch_cuda_flash_causal(query: Tensor, key: Tensor, value: Tensor, **use: Any) -> Tensor:
    """FlashAttention 2 with its causal flag, which wants equal lengths."""
    return _attend(SDPBackend.FLASH_ATTENTION, query, key, value, **use)


@conformance.core(
    features=["scale"],
    dtypes=["float32", *HALVES],
    geometry=ALIGNED,
    masks=["keep", "bias"],
    mask_shapes=["BHQK", "B1QK", "11QK"],
    expected_failures=[NO_QUERIES, ODD_STRIDES, BIAS_GRADIENT],
    **EFFICIENT,
)
def torch_cuda_efficient(query: Tensor, key: Tensor, value: Tensor, **use: Any) -> Tensor:
    """The memory-efficient kernel with masks."""
    return _attend(SDPBackend.EFFICIENT_ATTENTION, query, key, value, **use)


@conformance.core(
    features=["scale"],
    dtypes=["float32", *HALVES],
    geometry=ALIGNED,
    causal="top-left",
    memory="linear",
    expected_failures=[NO_QUERIES, ODD_STRIDES],
    **EFFICIENT,
)
def torch_cuda_efficient_causal(query: Tensor, key: Tensor, value: Tensor, **use: Any) -> Tensor:
    """The memory-efficient kernel with its causal flag."""
    return _attend(SDPBackend.EFFICIENT_ATTENTION, query, key, value, **use)


@conformance.core(
    features=["scale"],
    dtypes=HALVES,
    geometry={**SQUARE, "query_length": [2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 65, 128, 130, 256]},
    causal="top-left",
    expected_failures=[NO_ITEMS, UNCHECKED_VALUES, WRONG_GRADIENTS],
    **FUSED,
)
def torch_cuda_cudnn(query: Tensor, key: Tensor, value: Tensor, **use: Any) -> Tensor:
    """The kernel of cuDNN, with its causal flag; it refuses a single key."""
    return _attend(SDPBackend.CUDNN_ATTENTION, query, key, value, **use)


@conformance.core(
    features=["scale", "gqa", "graph_capture"],
    dtypes=["float32", "float64", *HALVES],
    devices=["cuda"],
)
def torch_cuda_math(query: Tensor, key: Tensor, value: Tensor, **use: Any) -> Tensor:
    """Ordinary matrix products on the device."""
    return _attend(SDPBackend.MATH, query, key, value, **use)


def _triangle(score: Tensor, _item: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Top-left causality as a change of the scores; one function, or each call compiles anew."""
    return torch.where(row >= column, score, -float("inf"))


@cache
def _flex() -> Any:
    """flex_attention, compiled once; each shape of its own compiles again."""
    from torch.nn.attention.flex_attention import flex_attention  # noqa: PLC0415 (slow to import)

    return torch.compile(flex_attention, dynamic=True)


@conformance.core(
    features=["scale", "gqa"],
    dtypes=["float32", *HALVES],
    geometry={"head_size": [16, 32, 64], "value_head_size": "head_size"},
    causal="top-left",
    memory="linear",
    without=["gradients"],
    expected_failures=[NO_QUERIES, UNCOMPARED],
    **FUSED,
)
def torch_cuda_flex(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """flex_attention's generated kernel; causality is a change of the scores."""
    limits = {
        "recompile_limit": MOST_GRAPHS,
        "accumulated_recompile_limit": MOST_GRAPHS,
        "fail_on_recompile_limit_hit": True,
    }
    # Past torch's own limit the function would run uncompiled, and hold all scores.
    with torch._dynamo.config.patch(limits):  # noqa: SLF001 (torch documents these settings)
        returned: Tensor = _flex()(
            query,
            key,
            value,
            score_mod=_triangle if causal else None,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    return returned
