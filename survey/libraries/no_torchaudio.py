"""Stands for torchaudio beside torch's build for CPUs: import this before what imports that.

The index has its wheel for CUDA alone, which cannot be loaded here; no attention uses it.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

_absent = ModuleType("torchaudio")
_absent.__spec__ = ModuleSpec("torchaudio", None)
_absent.__version__ = "2.9.0"
sys.modules["torchaudio"] = _absent
