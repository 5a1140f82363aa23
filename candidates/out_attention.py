"""A kernel that writes its answer into a buffer of the caller: ``out=``."""

from __future__ import annotations

from torch import Tensor

import conformance
from conformance import ExpectedFailure


@conformance.core(
    layout="BSHD",
    masks=["bias"],
    features=["scale", "out"],
    without=["gradients"],
    dtypes=["float32", "float64"],
    expected_failures=[
        ExpectedFailure(
            clause="mask.no-leak-nonf*",  # a glob: few examples may not hide a NaN
            kind="finite",
            reason="a bias of minus infinity leaves a weight of zero, and 0 * NaN is NaN",
        )
    ],
)
def out_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attend ``[B, Sq, H, D]`` to ``[B, Sk, H, D]``, into ``out [B, Sq, H, Dv]`` if it is given.

    Raises ValueError for an ``out`` of another shape or dtype, and for keys and values of other
    numbers of tokens or heads.
    """
    shape = (*query.shape[:-1], value.shape[-1])
    if out is None:
        out = query.new_empty(shape)
    elif out.shape != shape or out.dtype != query.dtype:
        msg = f"out is {list(out.shape)} of {out.dtype} where {list(shape)} of {query.dtype} goes"
        raise ValueError(msg)
    if key.shape[1] != value.shape[1]:
        msg = f"there are {key.shape[1]} keys and {value.shape[1]} values"
        raise ValueError(msg)
    if not query.shape[2] == key.shape[2] == value.shape[2]:
        msg = f"there are {query.shape[2]} query heads, {key.shape[2]} and {value.shape[2]} others"
        raise ValueError(msg)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    for head in range(query.shape[2]):
        logits = query[:, :, head] @ key[:, :, head].mT * factor
        if bias is not None:
            logits = logits + bias[:, min(head, bias.shape[1] - 1)]
        out[:, :, head] = logits.softmax(dim=-1) @ value[:, :, head]
    return out
