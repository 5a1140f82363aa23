"""The worker's job of ``conformance export-check``: load a module, export it, read the graph."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...adapters.construction import instance_of
from ...adapters.graph import GraphRequest, graph_candidate
from ...adapters.source import source_of
from ...base.files import user_path
from ...base.printable_text import printable
from ...declare.candidate import Candidate
from ...errors import ConstructionError, UsageError
from ...graphs.validation import read_header
from ...running.workers.messages import Loaded, RunOptions
from ...targets.declaring import how_to_make
from ...targets.loading import guarded, put_on_path
from ...targets.resolving import object_of
from ...targets.target_strings import is_path, split_target
from .export_call import ExportCall, described, export_call
from .session import SCRIPT

_ACCEPTED: Final = (
    "a torch.nn.Module: an instance, a class that can be constructed, or a function without "
    "arguments that returns one"
)
STATE: Final = "source.pt"
_SOURCE: Final = '''\
"""The module that these graphs were exported from, with its weights."""

# conformance check GRAPH.onnx --source {source!r}

from pathlib import Path

from conformance.tools.exporting.job import rebuilt


def module():
    """Build the module and load the weights from the folder of this file."""
    return rebuilt({target!r}, Path(__file__).parent, root={root!r})
'''


def module_of(target: str) -> nn.Module:
    """A target's module, in eval mode; raises UsageError with one sentence."""
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
            raise UsageError(how_to_make(error, target)) from error
    if isinstance(value, nn.Module) or not callable(value):
        return value
    try:
        inspect.signature(value).bind()
    except (TypeError, ValueError):
        msg = f"{target} takes arguments: name {_ACCEPTED}"
        raise UsageError(msg) from None
    return value()


def keep_source(target: str, module: nn.Module, folder: Path) -> Path:
    """Write a file that builds the module with its present weights, for ``--source``."""
    torch.save(module.state_dict(), folder / STATE)
    where, name = split_target(target)
    if is_path(where):
        where = str(user_path(where).resolve())
    script = folder / SCRIPT
    fields = {"target": f"{where}:{name}", "root": str(Path.cwd())}
    script.write_text(_SOURCE.format(source=f"{script}:module", **fields), encoding="utf-8")
    return script


def load_kept(module: nn.Module, folder: Path) -> None:
    """Load the weights that were kept in a folder."""
    module.load_state_dict(torch.load(folder / STATE, weights_only=True))


def rebuilt(target: str, folder: Path, *, root: str) -> nn.Module:
    """The module of a target with the weights kept in a folder.

    ``root`` is the folder in which the target was named. Raises UsageError if the weights do not
    fit.
    """
    put_on_path(Path(root))
    module = module_of(target)
    try:
        load_kept(module, folder)
    except RuntimeError as error:
        msg = f"{target} is no longer what was exported: {' '.join(str(error).split())[:200]}"
        raise UsageError(msg) from None
    return module


# By ``torch.export``, and by tracing with TorchScript.
DYNAMO: Final = "dynamo"
LEGACY: Final = "legacy"
EXPORTERS: Final = (DYNAMO, LEGACY)
_TOO_NEW: Final = ("Unsupported onnx_opset_version", "Unsupported ONNX opset version")
_LONGEST: Final = 300


class NotExported(Exception):  # noqa: N818 (the exporter's fault, or the module's)
    """An exporter gave no file; ``unsupported`` where it does not know the opset at all."""

    def __init__(self, message: str, *, unsupported: bool) -> None:
        super().__init__(message)
        self.unsupported = unsupported


def require_exporter() -> None:
    """Raise UsageError if a dependency of torch's exporter is missing."""
    if importlib.util.find_spec("onnxscript") is None:
        msg = (
            "torch.onnx.export needs onnxscript, which is not installed: pip install "
            "'attention-conformance[export]'"
        )
        raise UsageError(msg)


def export(call: ExportCall, exporter: str, opset: int, path: Path) -> None:
    """Write a module as one file with dynamic axes; raises NotExported with one sentence."""
    try:
        with _quiet(), torch.no_grad():
            (_by_dynamo if exporter == DYNAMO else _by_tracing)(call, opset, path)
    except Exception as error:  # an exporter runs the user's code, and may raise anything
        text = _shown(error)
        raise NotExported(text, unsupported=any(words in text for words in _TOO_NEW)) from error


def _shown(error: BaseException) -> str:
    """The type and message of the first cause of what an exporter raised, shortened."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    text = " ".join(lines)
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return printable(f"{type(cause).__name__}: {shown}" if shown else type(cause).__name__)


def _by_dynamo(call: ExportCall, opset: int, path: Path) -> None:
    arguments = call.arguments()
    torch.onnx.export(
        call.module,
        (),
        str(path),
        kwargs=arguments,
        dynamo=True,
        opset_version=opset,
        output_names=list(call.outputs),
        dynamic_shapes={
            name: None if tensor is None else dict(call.axes.get(name, {}))
            for name, tensor in arguments.items()
        },
        external_data=False,
        verbose=False,
    )


class _Named(nn.Module):
    """A module with positional inputs, since tracing supports no keywords."""

    def __init__(self, call: ExportCall) -> None:
        super().__init__()
        self.call = call
        self.module = call.module

    def forward(self, *tensors: Tensor) -> Any:
        """The module's answer."""
        inputs = dict(zip(self.call.inputs, tensors, strict=True))
        return self.module(**{**self.call.arguments(), **inputs})


def _by_tracing(call: ExportCall, opset: int, path: Path) -> None:
    torch.onnx.export(
        _Named(call).eval(),
        tuple(call.inputs.values()),
        str(path),
        dynamo=False,
        opset_version=opset,
        input_names=list(call.inputs),
        output_names=list(call.outputs),
        dynamic_axes={name: dict(axes) for name, axes in call.axes.items()},
        verbose=False,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings about deprecation and traced sizes: the graphs are checked anyway."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


Tell = Callable[[str, str], None]


@dataclass(frozen=True)
class Exportable:
    """A module that is to be exported, with no clause to run."""

    target: str
    module: nn.Module

    def loaded(self) -> Loaded:
        """Plain data for the supervisor."""
        return Loaded(
            name=type(self.module).__name__,
            target=self.target,
            kind="module",
        )

    @cached_property
    def call(self) -> ExportCall:
        """How it is called; raises UsageError."""
        call: ExportCall = guarded(
            f"{self.target} cannot be called", lambda: export_call(self.module, self.target)
        )
        return call


def modules_of(options: RunOptions, tell: Tell = lambda _what, _name: None) -> list[Exportable]:
    """The modules of the targets; raises UsageError with one sentence."""
    require_exporter()
    modules = []
    for target in options.targets:
        tell("loading", target)
        modules.append(Exportable(target, module_of(target)))
    return modules


def prepare(exportable: Exportable, folder: str, tell: Tell) -> dict[str, Any]:
    """Find out how the module is called, and write it to the folder of the graphs."""
    tell("calling", exportable.target)
    inputs = described(exportable.call)
    return {
        "inputs": inputs,
        "source": str(keep_source(exportable.target, exportable.module, Path(folder))),
    }


def export_one(exportable: Exportable, requested: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Export the module once and read the graph; ``reason`` says what failed."""
    path = Path(requested["path"])
    outcome = {"verdict": "", "reason": "", "opset": None}
    tell("exporting", path.name)
    load_kept(exportable.module, path.parent)  # after the loss of a worker the module is a new one
    try:
        export(exportable.call, requested["exporter"], requested["opset"], path)
    except NotExported as error:
        if error.unsupported:
            return {**outcome, "verdict": "unsupported", "reason": str(error)}
        return {**outcome, "verdict": "not-exported", "reason": f"cannot be exported: {error}"}
    tell("reading", path.name)
    try:
        opset = read_header(path).opsets.get("")
        read = graph_candidate(
            path, GraphRequest(source=source_of(exportable.module, exportable.target))
        )
    except UsageError as error:
        return {**outcome, "verdict": "not-read", "reason": f"cannot be read: {error}"}
    if read.graph is not None:
        read.graph.process.close()
    return {**outcome, "opset": opset}
