"""The memory of a call: peak bytes, guards around allocations, and poison in them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, kineto_available, profile
from torch.utils._python_dispatch import TorchDispatchMode

from .devices import CPU, kind_of, module_of, offers, synchronise

_COUNTERS: Final = ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats")
_MEMORY: Final = "[memory]"


def why_unmeasured(device: str) -> str:
    """Why the memory of a device cannot be measured, or ""."""
    if kind_of(device) == CPU:
        return "" if kineto_available() else "this torch was built without its profiler"
    return "" if offers(device, *_COUNTERS) else f"torch counts no peak memory on {device}"


def peak_bytes(call: Callable[[], Any], device: str) -> int:
    """Return the most bytes of torch's allocator held at once by a call, answer included."""
    return _on_the_cpu(call) if kind_of(device) == CPU else _by_counters(call, device)


def _on_the_cpu(call: Callable[[], Any]) -> int:
    """Return the peak by torch's profiler, which records allocations inside kernels, too."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    events = profiled.profiler.kineto_results.events() if profiled.profiler is not None else ()
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


# Bytes on each side: a multiple of the 512 to which torch's allocators align on any device.
GUARD: Final = 4096
PATTERN: Final = 0xA5
_ATEN: Final = torch.ops.aten
_UNWRITTEN: Final = (
    _ATEN.empty.memory_format,
    _ATEN.empty_strided.default,
    _ATEN.empty_like.default,
    _ATEN.new_empty.default,
    _ATEN.new_empty_strided.default,
)
_FILLED: Final = tuple(
    getattr(_ATEN, name).default
    for fill in ("zeros", "ones", "full")
    for name in (fill, f"{fill}_like", f"new_{fill}")
)
# A resized tensor owns the rest of its storage.
_RESIZING: Final = (_ATEN.resize_.default, _ATEN.resize_as_.default)
_POISONED: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Guarded:
    """The buffer holding one tensor of a call."""

    shape: tuple[int, ...]
    buffer: Tensor
    end: int

    def damage(self) -> str:
        """What was written outside of the tensor, or ""."""
        sides = {"before": self.buffer[:GUARD], "behind": self.buffer[self.end :]}
        for side, guard in sides.items():
            count = int((guard != PATTERN).sum())
            if count:
                return f"{count} bytes {side} a tensor {list(self.shape)} that it allocated"
        return ""


class Allocations(TorchDispatchMode):
    """While active, guards the tensors made by torch."""

    # flex_attention is an operator of operators: its inner allocations are not guarded.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.made: list[Guarded] = []
        self.unwritten = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile work as usual: else functions met here stay eager in later calls."""
        return True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """The name of this setting in older versions of torch."""
        return True

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation; what a factory made is put between guards."""
        del types
        return self.watch(func, args, kwargs or {})

    def watch(self, func: Callable[..., Any], args: Any, keywords: dict[str, Any]) -> Any:
        """Run an operation, with guards around the result of a factory."""
        if func in _RESIZING:
            storage = args[0].untyped_storage().data_ptr()
            self.made = [
                made for made in self.made if made.buffer.untyped_storage().data_ptr() != storage
            ]
        result = func(*args, **keywords)
        if func in _UNWRITTEN or func in _FILLED:
            return self._between_guards(result, fresh=func in _UNWRITTEN)
        return result

    def _between_guards(self, tensor: Tensor, *, fresh: bool) -> Tensor:
        if not _plain(tensor):
            return tensor
        inner = tensor.untyped_storage().nbytes()
        room = GUARD + -(-inner // GUARD) * GUARD + GUARD  # for the tensor and both guards
        buffer = torch.full((room,), PATTERN, dtype=torch.uint8, device=tensor.device)
        place = GUARD // tensor.element_size()
        guarded = buffer.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), place)
        if not fresh:
            guarded.copy_(tensor)
        elif tensor.dtype in _POISONED:
            guarded.fill_(torch.nan)
            self.unwritten += 1
        self.made.append(Guarded(tuple(tensor.shape), buffer, GUARD + inner))
        return guarded

    def damage(self) -> str:
        """Describe writes outside the tensors made so far, or ""."""
        return next(filter(None, (made.damage() for made in self.made)), "")


class _Uncompiled(Allocations):
    """A watch that avoids importing torch's compiler."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        return self.watch(func, args, kwargs or {})


def allocations() -> Allocations:
    """Return a watch for one call; a second faster before torch's compiler is imported."""
    return Allocations() if "torch._dynamo" in sys.modules else _Uncompiled()


def _plain(tensor: Any) -> bool:
    """Tell whether an object is a dense tensor with elements at the start of its own memory."""
    return (
        type(tensor) is Tensor
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and tensor.numel() > 0
        and tensor.storage_offset() == 0
    )
