"""Torch's own attention, called in other ways than ``torch_scaled_dot_product`` calls it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from ._kit import NAN_HIDDEN, NAN_SPREADS, admitted, check, core, factor

attend = functional.scaled_dot_product_attention


@core()
def bottom_right_by_mask(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """A boolean table for both restrictions, made contiguous and full."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal).expand(*query.shape[:3], key.shape[2])
    return attend(query, key, value, attn_mask=table.contiguous(), scale=scale)


@core(features=["scale", "gqa"])
def float_mask_and_own_groups(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """A float table of zeros and minus infinities, heads repeated beforehand."""
    check(query, key, value)
    if query.shape[1] % key.shape[1]:
        msg = f"{query.shape[1]} heads cannot share {key.shape[1]}"
        raise ValueError(msg)
    table = admitted(query, key, keep, causal=causal)
    bias = torch.zeros(table.shape, dtype=query.dtype).masked_fill(~table, -torch.inf)
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    return attend(query, key, value, attn_mask=bias, scale=scale)


@core(
    features=["gqa"], masks=[], causal="top-left", empty_rows="any", expected_failures=[NAN_HIDDEN]
)
def causal_by_flag(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """``is_causal`` and ``enable_gqa``, no mask."""
    check(query, key, value)
    return attend(query, key, value, is_causal=causal, enable_gqa=True)


@core(
    masks=[],
    features=[],
    empty_rows="any",
    expected_failures=[NAN_HIDDEN],
    geometry={"key_length": "query_length"},
)
def causal_by_bias_object(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False
) -> Tensor:
    """``torch.nn.attention.bias``, for sequences of one length."""
    check(query, key, value)
    if not causal or not query.numel():
        return attend(query, key, value)
    bias = causal_lower_right(query.shape[2], key.shape[2])
    return attend(query, key, value, attn_mask=bias)


@core()
def heads_folded_into_the_batch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Three axes: every head is an item of its own, and the scale is on the query."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal).expand(*query.shape[:3], key.shape[2])
    q, k, v = (x.flatten(0, 1) for x in (query * factor(query, scale), key, value))
    output = attend(q, k, v, attn_mask=table.flatten(0, 1), scale=1.0)
    returned: Tensor = output.unflatten(0, query.shape[:2])
    return returned


@core(dtypes=["bfloat16", "float16"], expected_failures=[NAN_SPREADS])
def torch_in_half_precision(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Whichever backend torch takes for half precision."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    return attend(query, key, value, attn_mask=table, scale=scale)
