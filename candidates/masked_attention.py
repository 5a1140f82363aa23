"""Document E: attention with a 0/1 mask, filled in with -1e9."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor, nn

import conformance
from conformance import ExpectedFailure, Geometry, ProjectionWeights

from ._load import like, load_linear, one_width

FILL: Final = -1e9


class MaskedAttention(nn.Module):
    """Attention of ``Q [N, Lq, d_model]`` to ``K`` and ``V``, both ``[N, Lk, d_model]``.

    ``mask`` broadcasts to ``[N, num_heads, Lq, Lk]`` (the document gives ``[N, 1, 1, Lk]``); 0
    ignores a key, whose scaled logit becomes -1e9. A row without any key averages all values. In
    float16 a mask raises RuntimeError, because the fill is out of range.

    Raises ValueError when ``num_heads`` does not divide ``d_model``.
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        if d_model % num_heads:
            msg = f"d_model={d_model} is not divisible by num_heads={num_heads}"
            raise ValueError(msg)
        self.d_model = d_model
        self.num_heads = num_heads
        self.head_size = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(
        self,
        Q: Tensor,  # noqa: N803 (the document's names)
        K: Tensor,  # noqa: N803
        V: Tensor,  # noqa: N803
        mask: Tensor | None = None,
    ) -> Tensor:
        """Attend from every query to the keys whose mask is not 0."""
        query, key, value = (
            self._split(self.W_q(Q)),
            self._split(self.W_k(K)),
            self._split(self.W_v(V)),
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.head_size)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, FILL)
        heads = torch.softmax(scores, dim=-1) @ value
        batch, _, length, _ = heads.shape
        merged = heads.transpose(1, 2).contiguous().view(batch, length, self.d_model)
        output: Tensor = self.W_o(merged)
        return output

    def _split(self, projected: Tensor) -> Tensor:
        batch, length, _ = projected.shape
        return projected.view(batch, length, self.num_heads, self.head_size).transpose(1, 2)


class _Declared(nn.Module):
    """The layer under the harness's keywords: both mask forms are its one ``mask``."""

    def __init__(self, attention: MaskedAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        keep_int: Tensor | None = None,
    ) -> Tensor:
        output: Tensor = self.attention(query, key, value, keep if keep_int is None else keep_int)
        return output


@conformance.layer(
    masks=["keep_int", "keep"],
    empty_rows="mean-of-all",
    dtypes=["float32", "float16"],
    geometry=one_width,
    expected_failures=[
        ExpectedFailure(
            clause="*",  # whichever clause hands over a mask
            dtype="float16",
            kind="raised",
            reason="the fill -1e9 lies beyond float16's range, so every call with a mask raises",
        ),
        ExpectedFailure(
            clause="numerics.overflow-h*",  # a glob: not every seed draws products so large
            kind="finite",
            reason="the product is stored in float16 before it is scaled",
        ),
    ],
)
def masked_attention(geometry: Geometry, weights: ProjectionWeights) -> nn.Module:
    """Document E's layer with the weights of a problem."""
    attention = MaskedAttention(geometry.query_size, geometry.num_heads)
    like(attention, weights.q)
    load_linear(attention.W_q, weights.q, weights.q_bias)
    load_linear(attention.W_k, weights.k, weights.k_bias)
    load_linear(attention.W_v, weights.v, weights.v_bias)
    load_linear(attention.W_o, weights.o, weights.o_bias)
    return _Declared(attention)
