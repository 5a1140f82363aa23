"""Reading the tensors of a state dict or safetensors file, whatever the file really holds."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ...errors import UsageError

# Where checkpoints keep the state dict when they hold more than it.
_WRAPPERS: Final = ("state_dict", "model_state_dict", "model", "module", "net", "params")
_DEPTH: Final = 3
# What torch.load raises on files that are not its own, beside what it documents.
_JUNK: Final = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    RuntimeError,
    ValueError,
    KeyError,
    IndexError,
    AttributeError,
    EOFError,
    TypeError,
    OSError,
    ImportError,
    MemoryError,
    OverflowError,
    AssertionError,
)


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """The float tensors of a file by name: safetensors by its suffix, else torch's own format.

    Never runs code of the file (``weights_only=True``). Raises UsageError.
    """
    if not path.is_file():
        msg = f"no state dict at {str(path)!r}: give the path of a .pt, .pth or .safetensors file"
        raise UsageError(msg)
    read = _read_safetensors if path.suffix == ".safetensors" else _read_torch
    found = {
        name: tensor
        for name, tensor in _tensors(read(path), _DEPTH).items()
        if tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_meta
    }
    if not found:
        msg = f"{str(path)!r} holds no tensors by name: save it with torch.save(m.state_dict(), …)"
        raise UsageError(msg)
    return found


def _read_torch(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except _JUNK as error:
        msg = (
            f"{str(path)!r} is no state dict that torch.load(weights_only=True) reads "
            f"({type(error).__name__}): save it with torch.save(module.state_dict(), …)"
        )
        raise UsageError(msg) from error


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError  # noqa: PLC0415 (only files of this kind need it)
    from safetensors.torch import load_file  # noqa: PLC0415 (the same)

    try:
        return load_file(path, device="cpu")
    except (SafetensorError, *_JUNK) as error:
        msg = f"{str(path)!r} is no safetensors file ({type(error).__name__})"
        raise UsageError(msg) from error


def _tensors(found: Any, depth: int) -> dict[str, Tensor]:
    """The tensors of a mapping, or of the mapping that it wraps."""
    if not isinstance(found, Mapping):
        return {}
    for key in _WRAPPERS if depth else ():
        if isinstance(found.get(key), Mapping) and (inner := _tensors(found[key], depth - 1)):
            return inner
    return {str(name): value for name, value in found.items() if isinstance(value, Tensor)}
