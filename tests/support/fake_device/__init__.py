"""A device named ``fake`` for torch: it computes on the CPU, in memory of its own, and may be late.

:func:`built` compiles ``device.cpp``; whoever imports :mod:`fake_device.installed` has the device.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import torch

HERE: Final = Path(__file__).resolve().parent
# Where the compiled library is, for whoever imports ``fake_device.installed``.
LIBRARY: Final = "FAKE_DEVICE_LIBRARY"


def compiler() -> str | None:
    """A C++ compiler, if there is one."""
    return shutil.which("g++") or shutil.which("clang++")


def built(folder: Path) -> Path:
    """Compile the device, for the torch that is installed here; raises where the compiler does."""
    library = folder / "fake_device.so"
    torch_folder = Path(str(torch.__file__)).parent
    include = torch_folder / "include"
    words = [str(compiler()), "-std=c++20", "-O0", "-shared", "-fPIC", str(HERE / "device.cpp")]
    words += [
        "-DAT_PER_OPERATOR_HEADERS",  # those of all operators take seconds more
        f"-I{include}",
        f"-I{include / 'torch/csrc/api/include'}",
        f"-L{torch_folder / 'lib'}",
    ]
    words += ["-ltorch_cpu", "-lc10", "-o", str(library)]
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=300)
    return library
