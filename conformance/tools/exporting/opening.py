"""The module that a target names, and the same module again with the weights that it had."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn

from ...adapters.construct import instance_of
from ...declare.candidate import Candidate
from ...errors import ConstructionError, UsageError
from ...targets.loading import guarded, put_on_path
from ...targets.resolving import how_to_make, is_path, object_of, split_target

_ACCEPTED: Final = (
    "a torch.nn.Module: an instance, a class that can be constructed, or a function without "
    "arguments that returns one"
)
STATE: Final = "source.pt"
SCRIPT: Final = "source.py"
_SOURCE: Final = '''\
"""The module that these graphs were exported from, with its weights.

conformance check GRAPH.onnx --source {script}:module
"""

from pathlib import Path

from conformance.tools.exporting.opening import rebuilt


def module():
    """Build {target} anew and load the weights beside this file."""
    return rebuilt({target!r}, Path(__file__).parent, root={root!r})
'''


def module_of(target: str) -> nn.Module:
    """The module that a target names, in eval mode; raises UsageError with one sentence."""
    value = object_of(target)
    if value is None or isinstance(value, ModuleType):
        msg = f"{target} names no object: write package.module:object or path/to/file.py:object"
        raise UsageError(msg)
    built = guarded(f"{target} cannot be built", lambda: _built(value, target))
    if not isinstance(built, nn.Module):
        msg = f"{target} is {built!r:.60}: name {_ACCEPTED}"
        raise UsageError(msg)
    return built.eval()


def _built(value: Any, target: str) -> Any:
    if isinstance(value, Candidate):
        msg = f"{target} is a declared candidate, which holds no module to export: name {_ACCEPTED}"
        raise UsageError(msg)
    if isinstance(value, type) and issubclass(value, nn.Module):
        try:
            return instance_of(value, None)[0]
        except ConstructionError as error:
            raise UsageError(how_to_make(error)) from error
    if isinstance(value, nn.Module) or not callable(value):
        return value
    try:
        inspect.signature(value).bind()
    except (TypeError, ValueError):
        msg = f"{target} takes arguments: name {_ACCEPTED}"
        raise UsageError(msg) from None
    return value()


def keep_source(target: str, module: nn.Module, folder: Path) -> Path:
    """Write a file that builds the module with the weights it has, for ``--source``."""
    torch.save(module.state_dict(), folder / STATE)
    where, name = split_target(target)
    if is_path(where):
        where = str(Path(where).expanduser().resolve())
    script = folder / SCRIPT
    told = {"target": f"{where}:{name}", "root": str(Path.cwd())}
    script.write_text(_SOURCE.format(script=script, **told), encoding="utf-8")
    return script


def load_kept(module: nn.Module, folder: Path) -> None:
    """Load the weights that were kept in a folder."""
    module.load_state_dict(torch.load(folder / STATE, weights_only=True))


def rebuilt(target: str, folder: Path, *, root: str) -> nn.Module:
    """The module of a target with the weights that were kept in a folder.

    ``root`` is the folder in which the target was named. Raises UsageError where they do not fit.
    """
    put_on_path(Path(root))
    module = module_of(target)
    try:
        load_kept(module, folder)
    except RuntimeError as error:
        msg = f"{target} is no longer what was exported: {' '.join(str(error).split())[:200]}"
        raise UsageError(msg) from None
    return module
