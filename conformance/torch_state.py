"""Keeps torch settings that a candidate changes from the harness and from other candidates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Put torch's default dtype, default device and determinism back to what they were.

    The golden answer of the next problem, and the next candidate, must not depend on them.
    """
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        if torch.get_default_dtype() is not dtype:
            torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
