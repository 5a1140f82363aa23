"""Keeps torch settings of a candidate's code from the harness and from other candidates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import torch


@dataclass(frozen=True)
class Settings:
    """Torch's default dtype and device."""

    dtype: torch.dtype
    device: torch.device


NEUTRAL: Final = Settings(torch.float32, torch.device("cpu"))
_CANDIDATES: ContextVar[Settings] = ContextVar("the candidate's settings", default=NEUTRAL)


@contextlib.contextmanager
def neutral() -> Iterator[None]:
    """Run the harness under torch's own defaults; what was set before is the candidate's.

    A user's module may change the defaults when it is imported. Its calls get them back.
    """
    before = _current()
    token = _CANDIDATES.set(before)
    _apply(NEUTRAL)
    try:
        yield
    finally:
        _CANDIDATES.reset(token)
        _apply(before)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Call a candidate under its own settings, and put the present ones back afterwards.

    The golden answer of the next problem, and the next candidate, must not depend on them.
    """
    before = _current()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    own = _CANDIDATES.get()
    if own != NEUTRAL:
        _apply(own)
    try:
        yield
    finally:
        _apply(before)
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)


def _current() -> Settings:
    return Settings(torch.get_default_dtype(), torch.get_default_device())


def _apply(settings: Settings) -> None:
    if torch.get_default_dtype() is not settings.dtype:
        torch.set_default_dtype(settings.dtype)
    if torch.get_default_device() != settings.device:
        torch.set_default_device(None if settings.device.type == "cpu" else settings.device)
