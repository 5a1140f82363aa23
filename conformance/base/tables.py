"""Tensors as plain data, for a report: written out where a person would read them.

Who wants them whole (a bundle) says so with :func:`kept_whole`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from torch import Tensor

# Of a tensor with more elements the table has the shape and the dtype only.
MOST_ELEMENTS: Final = 64
_KEPT: Final[ContextVar[list[Tensor] | None]] = ContextVar("kept", default=None)


def table(tensor: Tensor) -> dict[str, Any]:
    """Shape and dtype of a tensor, and its values as nested lists if there are few of them.

    Values of half and single precision become the Python floats that are equal to them. Where
    tensors are kept whole, ``array`` is the number of the tensor instead.
    """
    shown: dict[str, Any] = {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }
    kept = _KEPT.get()
    if kept is not None:
        shown["array"] = len(kept)
        kept.append(tensor.detach().cpu().contiguous().clone())
    elif tensor.numel() <= MOST_ELEMENTS:
        shown["values"] = tensor.detach().tolist()
    return shown


@contextmanager
def kept_whole() -> Iterator[list[Tensor]]:
    """Keep the tensors of all tables that are made meanwhile, in a list."""
    kept: list[Tensor] = []
    token = _KEPT.set(kept)
    try:
        yield kept
    finally:
        _KEPT.reset(token)


def keeping() -> bool:
    """Whether tensors are kept whole."""
    return _KEPT.get() is not None


def has_all_elements(tensor: Tensor) -> bool:
    """Whether the table of a tensor holds all of its elements."""
    return keeping() or tensor.numel() <= MOST_ELEMENTS
