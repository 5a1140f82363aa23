"""Attention in NumPy alone: a function that takes and returns ``numpy.ndarray``."""

from __future__ import annotations

from typing import Any

import numpy as np

import conformance
from conformance import ExpectedFailure

Array = np.ndarray[Any, np.dtype[np.floating[Any]]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
NAN_SPREADS = ExpectedFailure(
    clause="mask.no-leak-nonfinite",
    reason="hidden values meet a weight of zero, and 0 * NaN is NaN",
)


@conformance.core(
    arrays="numpy",
    masks=["keep"],
    causal="bottom-right",
    empty_rows="zeros",
    features=["scale"],
    dtypes=["float32", "float64"],
    expected_failures=[NAN_SPREADS],
)
def numpy_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    keep: Mask | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Array:
    """Attend ``query [B, H, Lq, D]`` to ``key [B, H, Lk, D]`` and ``value [B, H, Lk, Dv]``.

    Raises ValueError for inputs that do not belong together.
    """
    factor = float(query.shape[-1]) ** -0.5 if scale is None else scale
    logits = np.matmul(query * query.dtype.type(factor), key.swapaxes(-1, -2))
    query_length, key_length = logits.shape[-2:]
    allowed = np.ones((query_length, key_length), dtype=bool)
    if causal:
        allowed = np.tril(allowed, key_length - query_length)
    if keep is not None:
        if keep.shape[-1] != key_length:
            msg = f"the mask is for {keep.shape[-1]} keys, but there are {key_length}"
            raise ValueError(msg)
        allowed = allowed & keep
    largest = np.max(logits, axis=-1, keepdims=True, initial=-np.inf, where=allowed)
    shifted = np.where(allowed, logits - np.where(np.isinf(largest), 0, largest), -np.inf)
    weights = np.exp(shifted)
    total = weights.sum(axis=-1, keepdims=True)
    output: Array = np.matmul(weights / np.where(total == 0, 1, total), value)
    return output
