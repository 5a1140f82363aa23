"""``torch.nn.MultiheadAttention`` and its functional form, by ways that its own file leaves out."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

import conformance
from conformance import Geometry, ProjectionWeights

from .._load import merged_output, one_width
from ..torch_multihead_attention import build
from ._kit import NAN_HIDDEN, NAN_SPREADS

PADDING: Final[dict[str, Any]] = {
    "masks": ["drop"],
    "mask_shapes": ["BK"],
    "expected_failures": [NAN_SPREADS],
}


class _TokensFirst(nn.Module):
    """``batch_first=False`` behind inputs that have the batch first."""

    def __init__(self, attention: nn.MultiheadAttention, *, need_weights: bool) -> None:
        super().__init__()
        self.attention = attention
        self.attention.batch_first = False
        self.need_weights = need_weights

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, drop: Tensor | None = None
    ) -> Tensor:
        output, _ = self.attention(
            *(x.transpose(0, 1) for x in (query, key, value)),
            key_padding_mask=drop,
            need_weights=self.need_weights,
        )
        return output.transpose(0, 1)  # type: ignore[no-any-return]  # a tensor


@conformance.layer(
    empty_rows="zeros",
    geometry=one_width,
    **{**PADDING, "expected_failures": [NAN_SPREADS, NAN_HIDDEN]},
)
def tokens_before_items(geometry: Geometry, weights: ProjectionWeights) -> nn.Module:
    """``[L, B, E]`` inside, no weights asked for."""
    return _TokensFirst(build(geometry, weights), need_weights=False)


@conformance.layer(empty_rows="nan", geometry=one_width, **PADDING)
def tokens_before_items_with_weights(geometry: Geometry, weights: ProjectionWeights) -> nn.Module:
    """The same with the averaged weights asked for and thrown away."""
    return _TokensFirst(build(geometry, weights), need_weights=True)


def _filled(matrix: Tensor, bias: Tensor | None) -> Tensor:
    return matrix.new_zeros(len(matrix)) if bias is None else bias


@conformance.layer(
    empty_rows="zeros",
    geometry=merged_output,
    **{**PADDING, "expected_failures": [NAN_SPREADS, NAN_HIDDEN]},
)
def multi_head_attention_forward(geometry: Geometry, weights: ProjectionWeights) -> Any:
    """The function behind the module, with projections of separate widths."""
    out = weights.o
    if out is None:
        msg = "torch's function has an output projection"
        raise ValueError(msg)
    roles = ((weights.q, weights.q_bias), (weights.k, weights.k_bias), (weights.v, weights.v_bias))
    in_bias = torch.cat([_filled(matrix, bias) for matrix, bias in roles])
    width = geometry.output_size

    def forward(query: Tensor, key: Tensor, value: Tensor, *, drop: Tensor | None = None) -> Tensor:
        q, k, v = (
            functional.linear(x.transpose(0, 1), matrix)
            for x, (matrix, _) in zip((query, key, value), roles, strict=True)
        )
        same = torch.eye(width, dtype=query.dtype)
        output, _ = functional.multi_head_attention_forward(
            q,
            k,
            v,
            embed_dim_to_check=width,
            num_heads=geometry.num_heads,
            in_proj_weight=same.repeat(3, 1),
            in_proj_bias=in_bias,
            bias_k=None,
            bias_v=None,
            add_zero_attn=False,
            dropout_p=0.0,
            out_proj_weight=out,
            out_proj_bias=weights.o_bias,
            training=False,
            key_padding_mask=drop,
            need_weights=False,
        )
        return output.transpose(0, 1)

    return forward
