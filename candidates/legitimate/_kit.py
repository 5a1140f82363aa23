"""What the cores of this folder share: their promises, the table of admitted keys, the scale.

Nothing else: how scores, softmax and weighted sum are computed is what each file is about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

import conformance
from conformance import Candidate, ExpectedFailure, ProjectionWeights

# A weight of exactly zero does not hide a NaN, since 0 * NaN is NaN. Nearly every implementation
# multiplies all values by their weights; the clause is a SHOULD for that reason.
NAN_SPREADS: Final = ExpectedFailure(
    clause="mask.no-leak-nonfinite",
    reason="hidden values meet a weight of zero, and 0 * NaN is NaN",
)
# The usual ways to make zeros of a row without keys (``nan_to_num``, torch's own kernels) make
# zeros of a NaN in the query, too.
NAN_HIDDEN: Final = ExpectedFailure(
    clause="numerics.nan-shows",
    reason="a row of NaN is taken for a row without keys, and answered with zeros",
)
# Minus infinity that is added, not filled in, passes the NaN of a row without keys on to all keys.
NAN_RETURNED: Final = ExpectedFailure(
    clause="gradients.empty-row-finite",
    reason="a row without keys is mended behind the softmax, whose backward pass gives NaN",
)
OVERFLOWS: Final = ExpectedFailure(
    clause="numerics.overflow-h*",  # a glob: not every seed draws products so large
    kind="finite",
    reason="the product is stored in float16 before it is scaled",
)
# Torch's flash kernel, of which torch_scaled_dot_product announces the same.
ODD_SCALE_UNDER_CAUSALITY: Final = ExpectedFailure(
    clause="numerics.odd-s*",  # a glob: not every seed draws causality with such a scale
    kind="finite",
    reason="the flash kernel multiplies minus infinity by the scale: NaN from zero downwards",
)
CORE: Final[dict[str, Any]] = {
    "masks": ["keep"],
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "features": ["scale"],
    "expected_failures": [NAN_SPREADS],
}


def core(**promises: Any) -> Callable[[Callable[..., Any]], Candidate]:
    """``conformance.core`` with the usual promises, where no others are given."""
    return conformance.core(**{**CORE, **promises})


def factor(query: Tensor, scale: float | None) -> float:
    """What the dot products are multiplied by."""
    return float(query.shape[-1] ** -0.5) if scale is None else scale


def admitted(query: Tensor, key: Tensor, keep: Tensor | None, *, causal: bool) -> Tensor:
    """Which key each query attends, bool ``[..., Lq, Lk]``, causality ending at the last of both.

    Raises ValueError for a mask of another number of keys.
    """
    query_length, key_length = query.shape[-2], key.shape[-2]
    table = torch.ones(query_length, key_length, dtype=torch.bool)
    if causal:
        table = table.tril(key_length - query_length)
    if keep is None:
        return table
    if keep.shape[-1] != key_length:
        msg = f"the mask is for {keep.shape[-1]} keys, but there are {key_length}"
        raise ValueError(msg)
    return table & keep


def check(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse what a product would broadcast or a loop would pass over; raises ValueError."""
    if query.shape[-1] != key.shape[-1]:
        msg = f"queries have size {query.shape[-1]}, keys {key.shape[-1]}"
        raise ValueError(msg)
    if key.shape[-2] != value.shape[-2]:
        msg = f"there are {key.shape[-2]} keys, but {value.shape[-2]} values"
        raise ValueError(msg)


def soften(logits: Tensor, table: Tensor) -> Tensor:
    """The softmax over the admitted keys; a row without any is zeros."""
    return logits.masked_fill(~table, -torch.inf).softmax(dim=-1).masked_fill(~table, 0.0)


def heads_of(x: Tensor, weights: ProjectionWeights, role: str, count: int) -> Tensor:
    """The heads ``[B, H, L, D]`` that the projection of a role makes of tokens ``[B, L, E]``."""
    projected = functional.linear(x, getattr(weights, role), getattr(weights, f"{role}_bias"))
    heads: Tensor = projected.unflatten(-1, (count, -1)).transpose(1, 2)
    return heads


def joined(heads: Tensor, weights: ProjectionWeights) -> Tensor:
    """Heads ``[B, H, L, D]`` side by side, behind the output projection if there is one."""
    merged = heads.transpose(1, 2).flatten(2)
    return merged if weights.o is None else functional.linear(merged, weights.o, weights.o_bias)
