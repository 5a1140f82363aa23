"""Whether a call wrote into the tensors that it was given, seen after every call."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

# Bits are compared, so that NaN equals itself and zero does not equal its negative.
_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
Taken = list[tuple[Tensor, int, Tensor | None]]


def taken(given: tuple[tuple[Any, ...], dict[str, Any]]) -> Taken:
    """The tensors of a call with their versions, and with copies where those lie on the host."""
    tensors = [entry for entry in (*given[0], *given[1].values()) if isinstance(entry, Tensor)]
    with torch.no_grad():
        return [(tensor, tensor._version, _copy(tensor)) for tensor in tensors]  # noqa: SLF001 (public in all but name)


def written(before: Taken) -> bool:
    """Whether one of them holds other bits than before.

    A device would have to be waited for: there only what torch itself counts is seen.
    """
    with torch.no_grad():
        return any(
            tensor._version != version if copy is None else not torch.equal(_bits(tensor), copy)  # noqa: SLF001
            for tensor, version, copy in before
        )


def _copy(tensor: Tensor) -> Tensor | None:
    return _bits(tensor).clone() if tensor.device.type == "cpu" else None


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().view(_BITS[tensor.element_size()])
