"""Files of a pretended user: tiny candidates, and a folder to work in that leaves no traces."""

from __future__ import annotations

import operator
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

KERNEL = """
import torch
import conformance


def attend(query, key, value):
    return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value


@conformance.core()
def my_kernel(query, key, value):
    return attend(query, key, value)
"""

UNSCALED = """

@conformance.core()
def unscaled(query, key, value):
    return (query @ key.mT).softmax(-1) @ value
"""


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files, given by their paths below a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")


_ELSEWHERE: dict[str, object] = {}
_LAST: dict[Path, list[object]] = {}  # the folder of the last call, and what was imported after it


def forget_modules(folder: Path) -> None:
    """Forget every module imported below a folder: the next test imports a file of its own.

    What lies outside the folder for temporary files is looked at once, and nothing where the
    modules are those of the last time: this runs around each test.
    """
    modules, last = [*sys.modules.values()], _LAST.get(folder, [])
    if len(modules) == len(last) and all(map(operator.is_, modules, last)):
        return
    # Whole at once, since finalizers may import; what lies in a package before the package.
    for name, module in reversed(sys.modules.copy().items()):
        if _ELSEWHERE.get(name) is module:
            continue
        attributes = getattr(module, "__dict__", {})  # torch.classes answers to every name
        homes = [
            str(home) for home in (attributes.get("__file__"), *attributes.get("__path__", ()))
        ]
        if any(home.startswith(f"{folder}{os.sep}") for home in homes):
            del sys.modules[name]
        elif not any(home.startswith(tempfile.gettempdir()) for home in homes):
            _ELSEWHERE[name] = module
    _LAST.clear()
    _LAST[folder] = [*sys.modules.values()]


@contextmanager
def working_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder; afterwards the path and the imported modules are as they were."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        yield folder
    finally:
        forget_modules(folder)
