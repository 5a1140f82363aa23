"""Tensors as plain data, for a report: written out where a person would read them."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor

# A tensor of more elements is told by its shape: whoever wants it rebuilds it.
MOST_ELEMENTS: Final = 64


def table(tensor: Tensor) -> dict[str, Any]:
    """Shape and dtype of a tensor, and its values as nested lists if there are few of them.

    Values of half and single precision become the Python floats that are equal to them.
    """
    shown: dict[str, Any] = {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }
    if tensor.numel() <= MOST_ELEMENTS:
        shown["values"] = tensor.detach().tolist()
    return shown
