"""What sees or changes the calls of everybody without a name being replaced, and its end."""

from __future__ import annotations

import gc
import sys
from typing import Any, Final

import torch

# Kernels that somebody registered from Python for these keys would compute the golden, too.
_HOST_KEYS: Final = ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "AutogradCPU")
# Zero once a process takes subnormal numbers for zero.
_SUBNORMAL: Final = sys.float_info.min / 2.0


def unseen() -> tuple[Any, ...]:
    """What intercepts calls without a name being replaced."""
    return (
        torch._C._len_torch_function_stack(),  # noqa: SLF001 (no public way to ask)
        torch._C._len_torch_dispatch_stack(),  # noqa: SLF001
        sys.gettrace(),
        sys.getprofile(),
        _SUBNORMAL * 1.0 == 0.0,
        len(torch.library._impls),  # noqa: SLF001
    )


def taken_back(before: tuple[Any, ...], kernels: frozenset[str]) -> list[str]:
    """End what began since, and say what that was; ``kernels`` are those registered before."""
    now, found = unseen(), []
    for _ in range(now[0] - before[0]):
        torch._C._pop_torch_function_stack()  # noqa: SLF001
    for _ in range(now[1] - before[1]):
        torch._C._pop_torch_dispatch_stack(None)  # noqa: SLF001
    if now[:2] != before[:2]:
        found.append("a mode of torch that sees every call")
    if now[2] is not before[2]:
        sys.settrace(before[2])
        found.append("the trace function of Python")
    if now[3] is not before[3]:
        sys.setprofile(before[3])
        found.append("the profile function of Python")
    if now[4] != before[4]:
        torch.set_flush_denormal(before[4])  # a setting, of which state.settings speaks
    return found + (_kernels(kernels) if now[5] != before[5] else [])


def _kernels(known: frozenset[str]) -> list[str]:
    """The operators of torch that got another kernel for the CPU, which is taken back."""
    new = {entry for entry in torch.library._impls - known if _computes(entry)}  # noqa: SLF001
    for entry in gc.get_objects() if new else ():
        if type(entry) is torch.library.Library and not new.isdisjoint(entry._op_impls):  # noqa: SLF001
            entry._destroy()  # noqa: SLF001 (what the object does when it is collected)
    return [f"the kernel of {entry}" for entry in sorted(new)]


def _computes(entry: str) -> bool:
    return entry.startswith("aten/") and entry.endswith(_HOST_KEYS)


def registered() -> frozenset[str]:
    """The kernels that were registered from Python, for any operator and device."""
    return frozenset(torch.library._impls)  # noqa: SLF001
