"""``torch.nn.functional.scaled_dot_product_attention``: a CPU's backends, and torch's own choice.

Measured on torch 2.13: the math and flash backends run on a CPU, the efficient, cuDNN and
overrideable ones never do. Flash wants value heads as wide as the others and a last axis of stride
1; torch's own choice falls back to math where flash cannot go. Each aligns causality top-left and
answers a row without any key with zeros. Math takes any scale; flash answers NaN where the causal
flag meets a scale of zero or below, since it scales scores that are minus infinity already.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import conformance
from conformance import ExpectedFailure

PROMISES: Final[dict[str, Any]] = {
    "masks": ["keep", "bias"],
    "mask_shapes": ["BHQK", "B1QK", "B11K", "11QK", "QK"],
    "causal": "top-left",
    "empty_rows": "zeros",
    "dtypes": ["float32", "float64", "float16", "bfloat16"],
}
UNCHECKED_VALUES: Final = ExpectedFailure(
    clause="shape.rejects-mismatch",
    device="cpu",
    kind="not-raised",
    reason="the flash kernel trusts the length of the keys and reads past the end of the values",
)
NO_STRIDED_CHANNELS: Final = ExpectedFailure(
    clause="shape.strided",
    kind="raised",
    reason="the flash kernel takes only a last axis of stride 1; torch's own choice goes elsewhere",
)
ODD_SCALE_UNDER_CAUSALITY: Final = ExpectedFailure(
    clause="numerics.odd-s*",  # a glob: few examples may not be causal
    kind="finite",
    reason="the flash kernel multiplies minus infinity by the scale: NaN from zero downwards",
)


def _combined_mask(
    query: Tensor, key: Tensor, keep: Tensor | None, bias: Tensor | None, *, causal: bool
) -> Tensor | None:
    """One ``attn_mask`` for all: the math backend refuses a mask beside ``is_causal=True``."""
    if causal and (keep is not None or bias is not None):
        shape = (query.shape[-2], key.shape[-2])
        triangle = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
        keep = triangle if keep is None else keep & triangle
    if bias is None or keep is None:
        return keep if bias is None else bias
    return torch.where(keep, bias, float("-inf"))


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    mask = _combined_mask(query, key, keep, bias, causal=causal)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=causal and mask is None,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


torch_scaled_dot_product = conformance.core(
    name="torch_scaled_dot_product",
    features=["scale", "gqa", "dropout", "autocast"],
    expected_failures=[UNCHECKED_VALUES, ODD_SCALE_UNDER_CAUSALITY],
    **PROMISES,
)(_attend)


@conformance.core(features=["scale", "gqa", "dropout", "autocast"], **PROMISES)
def torch_scaled_dot_product_math(query: Tensor, key: Tensor, value: Tensor, **use: Any) -> Tensor:
    """The backend made of ordinary matrix products."""
    with sdpa_kernel(SDPBackend.MATH):
        return _attend(query, key, value, **use)


@conformance.core(
    features=["scale", "gqa", "autocast"],
    scores="fused",
    geometry={"value_head_size": "head_size"},
    expected_failures=[UNCHECKED_VALUES, NO_STRIDED_CHANNELS, ODD_SCALE_UNDER_CAUSALITY],
    **PROMISES,
)
def torch_scaled_dot_product_flash(query: Tensor, key: Tensor, value: Tensor, **use: Any) -> Tensor:
    """The CPU's flash kernel, which has no dropout."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return _attend(query, key, value, **use)
