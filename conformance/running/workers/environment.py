"""The versions, the machine and the device of a run, for the record."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, metadata, version
from typing import Any


def environment(devices: tuple[str, ...] | None) -> dict[str, Any]:
    """Versions, platform and device as plain data."""
    import torch  # noqa: PLC0415 (the report's other functions must not load it)

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # a plain text: a TorchVersion would load torch again
        "numpy": package_version("numpy"),
        "hypothesis": package_version("hypothesis"),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": ", ".join(devices) if devices else "cpu",
    }


def project_url(name: str, label: str) -> str:
    """An address that a distribution publishes under a label, such as Documentation, or ""."""
    try:
        urls = metadata(name).get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    parts = (entry.partition(",") for entry in urls)
    return next((url.strip() for key, _, url in parts if key.strip() == label), "")


def package_version(name: str) -> str:
    """A distribution's version, ``unknown`` when it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
