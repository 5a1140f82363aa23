"""How many bytes a call holds at its peak, beside what was there before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, kineto_available, profile

from .devices import CPU, kind_of, module_of, offers, synchronise

_COUNTERS: Final = ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats")
_MEMORY: Final = "[memory]"


def why_unmeasured(device: str) -> str:
    """Why the memory of a device cannot be measured, or ""."""
    if kind_of(device) == CPU:
        return "" if kineto_available() else "this torch was built without its profiler"
    return "" if offers(device, *_COUNTERS) else f"torch counts no peak memory on {device}"


def peak_bytes(call: Callable[[], Any], device: str) -> int:
    """The most bytes of torch's allocator that a call holds at once, its answer included."""
    return _on_the_cpu(call) if kind_of(device) == CPU else _by_counters(call, device)


def _on_the_cpu(call: Callable[[], Any]) -> int:
    """The profiler hears of every allocation, those inside of kernels as well."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    events = seen.profiler.kineto_results.events() if seen.profiler is not None else ()
    held = most = 0
    for event in events:
        if event.name() == _MEMORY and event.device_type() == torch._C._autograd.DeviceType.CPU:  # noqa: SLF001 (torch has no public name for it)
            held += event.nbytes()
            most = max(most, held)
    return most


def _by_counters(call: Callable[[], Any], device: str) -> int:
    counters = module_of(device)
    synchronise(device)
    counters.reset_peak_memory_stats(device)
    before = int(counters.memory_allocated(device))
    call()
    synchronise(device)
    return int(counters.max_memory_allocated(device)) - before
