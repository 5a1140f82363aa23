"""``torch.nn.MultiheadAttention``, one candidate for each of the ways through its code.

Measured on torch 2.13 (CPU): a row without any key is zeros without ``need_weights``, NaN with it,
and NaN on the fast path too, which is taken in eval mode when no gradient is needed, the three
inputs are one object, the number of heads is even and no mask is of floating point.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

import conformance
from conformance import Geometry, ProjectionWeights

from ._load import NAN_SPREADS, like, load_bias, load_linear, merged_output, one_width, training

DTYPES: Final = ("float32", "float64", "float16", "bfloat16")
# Of those that answer NaN to a query without keys.
WITH_NAN: Final = tuple(dtype for dtype in DTYPES if dtype != "bfloat16" or not NAN_SPREADS)
AUTOCAST: Final = [] if NAN_SPREADS else ["autocast"]  # to bfloat16
MASKS: Final[dict[str, Any]] = {
    "masks": ["drop", "bias"],
    "causal": "top-left",
    "dtypes": DTYPES,
}


def build(geometry: Geometry, weights: ProjectionWeights) -> nn.MultiheadAttention:
    """The module for a geometry, with the weights of a problem.

    Its projections are packed in one parameter when all widths are equal, and separate otherwise.
    """
    attention = nn.MultiheadAttention(
        embed_dim=geometry.query_size,
        num_heads=geometry.num_heads,
        dropout=0.5,
        kdim=geometry.key_size,
        vdim=geometry.value_size,
        batch_first=True,
    )
    like(attention, weights.q)
    _load(attention, weights)
    return attention


def _load(attention: nn.MultiheadAttention, weights: ProjectionWeights) -> None:
    width = attention.embed_dim
    with torch.no_grad():
        if attention.in_proj_weight is not None:
            attention.in_proj_weight.copy_(torch.cat([weights.q, weights.k, weights.v]))
        else:
            attention.q_proj_weight.copy_(weights.q)
            attention.k_proj_weight.copy_(weights.k)
            attention.v_proj_weight.copy_(weights.v)
    parts = torch.split(attention.in_proj_bias, width)
    for part, bias in zip(parts, (weights.q_bias, weights.k_bias, weights.v_bias), strict=True):
        load_bias(part, bias)
    load_linear(attention.out_proj, weights.o, weights.o_bias)


def _masks(
    shape: tuple[int, int, int, int],
    drop: Tensor | None,
    bias: Tensor | None,
    *,
    causal: bool,
    device: torch.device,
) -> dict[str, Any]:
    """The module's own arguments for a four-dimensional mask and a causal flag.

    A mask over keys alone goes in as ``key_padding_mask [B, S]``, one without batch and heads as
    ``attn_mask [L, S]`` and any other as ``attn_mask [B*H, L, S]``. ``is_causal`` is only a hint:
    the triangle has to be given too.
    """
    mask = drop if bias is None else bias
    if bias is not None and drop is not None:
        mask = bias.masked_fill(drop, float("-inf"))
    triangle = torch.ones(shape[2:], dtype=torch.bool, device=device).triu(1) if causal else None
    if mask is None:
        return {} if triangle is None else {"attn_mask": triangle, "is_causal": True}
    if triangle is not None:
        mask = mask | triangle if bias is None else mask.masked_fill(triangle, float("-inf"))
    elif mask.shape[:3] == (shape[0], 1, 1):
        return {"key_padding_mask": mask[:, 0, 0]}
    if mask.shape[:2] == (1, 1) and mask.shape[2] == shape[2]:
        return {"attn_mask": mask[0, 0]}
    return {"attn_mask": mask.expand(*shape[:3], mask.shape[-1]).flatten(0, 1)}


class _Declared(nn.Module):
    """The module under the harness's keywords."""

    def __init__(self, attention: nn.MultiheadAttention, *, need_weights: bool) -> None:
        super().__init__()
        self.attention = attention
        self.need_weights = need_weights

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        drop: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        return_weights: bool = False,
        dropout: float | None = None,
    ) -> Any:
        shape = (query.shape[0], self.attention.num_heads, query.shape[1], key.shape[1])
        masks = _masks(shape, drop, bias, causal=causal, device=query.device)
        if dropout is None:
            output, weights = self._attend(query, key, value, masks, asked=return_weights)
        else:
            output, weights = self._attend_with_dropout(
                dropout, query, key, value, masks, asked=return_weights
            )
        return (output, weights) if return_weights else output

    def _attend_with_dropout(
        self, dropout: float, *call: Any, asked: bool
    ) -> tuple[Tensor, Tensor | None]:
        configured, self.attention.dropout = self.attention.dropout, dropout
        try:
            with training(self.attention):
                return self._attend(*call, asked=asked)
        finally:
            self.attention.dropout = configured

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, masks: dict[str, Any], *, asked: bool
    ) -> tuple[Tensor, Tensor | None]:
        answer: tuple[Tensor, Tensor | None] = self.attention(
            query,
            key,
            value,
            need_weights=self.need_weights or asked,
            average_attn_weights=False,
            **masks,
        )
        return answer


class _DeclaredSelf(_Declared):
    """The same where query, key and value are one object, which is what the fast path wants."""

    def forward(self, x: Tensor, **use: Any) -> Any:  # type: ignore[override]  # one input, not three
        return super().forward(x, x, x, **use)


@conformance.layer(
    empty_rows={"drop": "zeros", "bias": "zeros", "causal": "zeros", "weights": "nan"},
    features=["dropout", "weights", "autocast"],
    geometry=one_width,
    **MASKS,
)
def torch_multihead_attention(geometry: Geometry, weights: ProjectionWeights) -> nn.Module:
    """One packed input projection; ``need_weights`` only where the weights are asked for.

    Rows without keys are zeros on the fused path and NaN on the one that returns the weights.
    """
    return _Declared(build(geometry, weights), need_weights=False)


def _separate_widths(geometry: Geometry) -> Geometry:
    geometry = merged_output(geometry)
    return geometry.replace(query_size=geometry.output_size)


@conformance.layer(
    empty_rows="zeros", features=["dropout", "autocast"], geometry=_separate_widths, **MASKS
)
def torch_multihead_attention_separate_widths(
    geometry: Geometry, weights: ProjectionWeights
) -> nn.Module:
    """``kdim`` and ``vdim``: keys and values of their own widths, three input projections."""
    return _Declared(build(geometry, weights), need_weights=False)


@conformance.layer(
    empty_rows="nan",
    features=["dropout", "weights", *AUTOCAST],
    geometry=one_width,
    **{**MASKS, "dtypes": WITH_NAN},
)
def torch_multihead_attention_with_weights(
    geometry: Geometry, weights: ProjectionWeights
) -> nn.Module:
    """``need_weights=True``: the path that materialises the weights, one table a head."""
    return _Declared(build(geometry, weights), need_weights=True)


def _even_heads(geometry: Geometry) -> Geometry:
    heads = geometry.num_heads
    return one_width(geometry.replace(num_heads=heads + heads % 2))


@conformance.layer(
    inputs="self",
    masks=["drop"],
    causal="top-left",
    empty_rows="nan",
    dtypes=WITH_NAN,
    features=AUTOCAST,
    geometry=_even_heads,
)
def torch_multihead_attention_fast_path(
    geometry: Geometry, weights: ProjectionWeights
) -> nn.Module:
    """The fused inference kernel: self-attention in eval mode with frozen parameters."""
    attention = build(geometry, weights).requires_grad_(False)  # noqa: FBT003 (torch's signature)
    return _DeclaredSelf(attention, need_weights=False)
