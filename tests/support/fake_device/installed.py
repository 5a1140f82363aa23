"""Importing this gives torch the device ``fake``, with streams and figures of its memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from . import LIBRARY, graphs


class Stream:
    """A queue of work besides the default one."""

    last = 0

    def __init__(self, device: object = None, *, number: int | None = None) -> None:
        del device
        Stream.last += number is None
        self.number = Stream.last if number is None else number

    def synchronize(self) -> None:
        """Wait until everything on it is done."""
        torch.ops.fake_device.synchronise(self.number)

    def wait_stream(self, other: Stream) -> None:
        """What comes later on this stream starts after what is on the other one now."""
        other.synchronize()


class Module:
    """What ``torch.fake`` offers, as ``torch.cuda`` does."""

    Stream = Stream
    CUDAGraph = graphs.CUDAGraph
    graph = staticmethod(graphs.graph)

    @staticmethod
    def is_available() -> bool:
        """It always is."""
        return True

    @staticmethod
    def is_initialized() -> bool:
        """Nothing needs to be initialised."""
        return True

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Random numbers are those of the CPU."""

    @staticmethod
    def get_rng_state(device: object = None) -> torch.Tensor:
        """Nothing of its own."""
        del device
        return torch.empty(0)

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: object = None) -> None:
        """Nothing to put back."""

    @staticmethod
    def default_stream(device: object = None) -> Stream:
        """The stream that is current at first."""
        del device
        return Stream(number=0)

    @staticmethod
    def device_count() -> int:
        """There is one."""
        return 1

    @staticmethod
    def current_device() -> int:
        """It is the first."""
        return 0

    @staticmethod
    @contextlib.contextmanager
    def stream(chosen: Stream) -> Iterator[None]:
        """Make a stream the current one."""
        before = torch.ops.fake_device.current_stream()
        torch.ops.fake_device.set_stream(chosen.number)
        try:
            yield
        finally:
            torch.ops.fake_device.set_stream(before)

    @staticmethod
    def synchronize(device: object = None) -> None:
        """Wait for every stream."""
        del device
        for number in range(Stream.last + 1):
            torch.ops.fake_device.synchronise(number)

    @staticmethod
    def _sleep(cycles: int) -> None:
        """Let the current stream fall behind."""
        del cycles
        torch.ops.fake_device.sleep()

    @staticmethod
    def memory_allocated(device: object = None) -> int:
        """Bytes that are held now."""
        del device
        return int(torch.ops.fake_device.live())

    @staticmethod
    def max_memory_allocated(device: object = None) -> int:
        """The most bytes that were held since the peak was reset."""
        del device
        return int(torch.ops.fake_device.peak())

    @staticmethod
    def reset_peak_memory_stats(device: object = None) -> None:
        """Count the peak from here."""
        del device
        torch.ops.fake_device.reset_peak()


_setup_privateuseone_for_python_backend("fake", backend_module=Module())
torch.ops.load_library(os.environ[LIBRARY])
