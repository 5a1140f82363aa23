"""The ways in which heads are put side by side, the right one first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]
BELOW: Final = "the graph puts the heads below one another, along the tokens"


def merges(heads: Array, rows: int) -> Iterator[tuple[str, Array]]:
    """``[calls, B, H, L, Dv]`` as ``[calls · B · L, H · Dv]``, and what is wrong with the way.

    ``rows``: those of an answer. Where they are ``H · L``, the heads lie below one another:
    ``[calls · B · H · L, Dv]``.
    """
    calls, batch, count, length, size = heads.shape
    if rows == count * length != length:
        yield BELOW, heads.reshape(calls * batch * rows, size)
    if rows != length:
        return
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
