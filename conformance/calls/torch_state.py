"""Keeps torch settings of a candidate's code from the harness and from other candidates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

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
    """Run the harness under torch's own defaults; earlier settings are the candidate's.

    A user's module may change the defaults at import. Its calls get them back.
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
def outside() -> Iterator[None]:
    """Leave the modes a caller has entered: inference, autocast, another device.

    Under them the caller's settings would be judged, and inference mode allows no gradient. The
    effect of ``no_grad`` is set for each call anyway.
    """
    with contextlib.ExitStack() as modes:
        modes.enter_context(torch.inference_mode(mode=False))
        for device in filter(torch.is_autocast_enabled, _AUTOCAST_ON):
            modes.enter_context(torch.autocast(device, enabled=False))
        if _default_device() != NEUTRAL.device:
            modes.enter_context(NEUTRAL.device)
        yield


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Call a candidate under the candidate's settings of torch, then restore the present ones.

    The golden answer of the next problem, and the next candidate, must not depend on a candidate's
    settings.
    """
    before, switches = _current(), _switches()
    own = _CANDIDATES.get()
    if own != NEUTRAL:
        _apply(own)
    try:
        yield
    finally:
        _apply(before)
        if _switches() != switches:
            _switch_back(switches)


def product_precision() -> str | tuple[str, ...]:
    """Return the precision of float32 products: one word, or torch 2.9's settings if used.

    Once a setting of torch 2.9 is made, the older word cannot be read.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return tuple(place.fp32_precision for place in _backends())


def _backends() -> tuple[Any, ...]:
    backends: Any = torch.backends
    return backends, backends.cuda.matmul, backends.mkldnn.matmul


class _Switches(NamedTuple):
    """Switches a call may leave changed that affect later computations."""

    deterministic: bool
    warn_only: bool
    autocast: tuple[bool, ...]
    anomaly: bool
    products: str | tuple[str, ...]


_AUTOCAST_ON: Final = ("cpu", "cuda")


def _switches() -> _Switches:
    return _Switches(
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        tuple(map(torch.is_autocast_enabled, _AUTOCAST_ON)),
        torch.is_anomaly_enabled(),
        product_precision(),
    )


def _switch_back(switches: _Switches) -> None:
    torch.use_deterministic_algorithms(switches.deterministic, warn_only=switches.warn_only)
    for device, is_on in zip(_AUTOCAST_ON, switches.autocast, strict=True):
        torch.set_autocast_enabled(device, is_on)
    torch.autograd.set_detect_anomaly(switches.anomaly)
    now, before = product_precision(), switches.products
    if now == before:
        return
    if isinstance(before, str):
        if not isinstance(now, str):
            _backends()[0].fp32_precision = "none"
        torch.set_float32_matmul_precision(before)
    else:
        for place, precision in zip(_backends(), before, strict=True):
            place.fp32_precision = precision


def _current() -> Settings:
    return Settings(torch.get_default_dtype(), _default_device())


def _default_device() -> torch.device:
    """Return the default device; quick, since any device but the CPU needs a mode of torch."""
    is_plain = torch._C._len_torch_function_stack() == 0  # noqa: SLF001 (no public way to ask)
    return NEUTRAL.device if is_plain else torch.get_default_device()


def _apply(settings: Settings) -> None:
    if torch.get_default_dtype() is not settings.dtype:
        torch.set_default_dtype(settings.dtype)
    if _default_device() != settings.device:
        torch.set_default_device(None if settings.device.type == "cpu" else settings.device)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: faster for tiny tensors, and reproducible bit by bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
