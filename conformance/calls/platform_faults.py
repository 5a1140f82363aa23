"""Faults of torch's own operations on this machine, not of the candidate.

An operation that reads numbers beside the elements of its operands answers the same with dense
copies of them. A failure possibly due to such a fault is examined again with dense copies: if it
disappears, torch is to blame, not the candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..base.profile import DTYPES
from ..problems.memory_layouts import CANARIES, MARGIN, MEMORY_LAYOUTS
from . import torch_state

# Items, tokens and channels: below, at and past the width of vectors; rows are odd.
_SIZES: Final = ((2, 30, 9), (1, 3, 5), (2, 7, 33), (1, 17, 16))
Operation = Callable[[Tensor, Tensor], Tensor]


_OPERATIONS: Final[dict[str, Operation]] = {
    "linear": nn.functional.linear,
    "matmul": lambda one, other: (one @ one.mT) @ other,
    "softmax": lambda one, _other: one.softmax(-1),
    "scaled_dot_product_attention": lambda one, _other: nn.functional.scaled_dot_product_attention(
        one[:, None], one[:, None], one[:, None]
    ),
}


@lru_cache(maxsize=len(DTYPES))
def platform_fault(dtype: str) -> str:
    """What torch does wrong on this machine's CPU in a dtype, or ""; tried once a process."""
    with torch_state.one_thread(), torch_state.neutral(), torch.no_grad():
        faulty = [
            name for name, run in _OPERATIONS.items() if _reads_beside(run, getattr(torch, dtype))
        ]
    if not faulty:
        return ""
    return f"torch's own {' and '.join(faulty)} in {dtype} reads beside the operands"


def _reads_beside(run: Operation, dtype: torch.dtype) -> bool:
    """Tell whether NaN beside finite operands enters an answer finite for dense operands."""
    for items, tokens, channels in _SIZES:
        one = torch.linspace(-1.0, 1.0, items * tokens * channels).to(dtype)
        one = one.reshape(items, tokens, channels)
        other = one[0, :, :].flip(-1)
        if not bool(run(one, other).isfinite().all()):
            continue  # no fault of what lies beside them
        for layout in CANARIES:
            places = MEMORY_LAYOUTS[layout]
            for operands in ((places(one), other), (one, places(other))):
                if not bool(run(*operands).isfinite().all()):
                    return True
    return False


class Spared(TorchDispatchMode):
    """While torch's operations get dense copies of their operands, and other libraries' do not."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own has no types

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator on dense copies; operators that write or return views run as usual."""
        schema = func._schema  # noqa: SLF001 (what an operator may write to is said nowhere else)
        aliased = schema.is_mutable or any(each.alias_info for each in schema.returns)
        if func.namespace == "aten" and not aliased:
            args = tuple(_dense(one) if isinstance(one, Tensor) else one for one in args)
        return func(*args, **(kwargs or {}))


def _dense(tensor: Tensor) -> Tensor:
    """Return a copy followed by zeros in memory."""
    size = tensor.numel()
    whole = tensor.new_zeros(size + MARGIN)
    return whole[:size].copy_(tensor.reshape(-1)).view(tensor.shape)
