"""The ways in which heads are put side by side, the right one first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def merges(heads: Array) -> Iterator[tuple[str, Array]]:
    """``[calls, B, H, L, Dv]`` as ``[calls · B · L, H · Dv]``, and what is wrong with the way."""
    calls, batch, count, length, size = heads.shape
    shape = (calls * batch * length, count * size)
    yield "", heads.transpose(0, 1, 3, 2, 4).reshape(shape)
    if count > 1 and size > 1:
        fault = "the graph puts the heads' features in turn instead of head beside head"
        yield fault, heads.transpose(0, 1, 3, 4, 2).reshape(shape)
    if count > 1 and length > 1:
        yield (
            "the graph merges the heads without moving them behind the queries",
            heads.reshape(shape),
        )
