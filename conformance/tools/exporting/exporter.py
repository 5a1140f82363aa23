"""Exports a module with torch's exporters; what they raise is a sentence."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...base.printable import printable
from ...errors import UsageError
from .asking import Asking

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
    """Raise UsageError where torch's exporter lacks what it needs."""
    if importlib.util.find_spec("onnxscript") is None:
        msg = (
            "torch.onnx.export needs onnxscript, which is not installed: pip install "
            "'attention-conformance[export]'"
        )
        raise UsageError(msg)


def export(asking: Asking, exporter: str, opset: int, path: Path) -> None:
    """Write a module as one file with dynamic axes; raises NotExported with one sentence."""
    try:
        with _quiet(), torch.no_grad():
            (_by_dynamo if exporter == DYNAMO else _by_tracing)(asking, opset, path)
    except Exception as error:  # an exporter runs the user's code, and may raise anything
        text = _told(error)
        raise NotExported(text, unsupported=any(one in text for one in _TOO_NEW)) from error


def _told(error: BaseException) -> str:
    """The type of what an exporter raised, and the first sentence of what is behind it."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    text = " ".join(lines)
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return printable(f"{type(cause).__name__}: {shown}" if shown else type(cause).__name__)


def _by_dynamo(asking: Asking, opset: int, path: Path) -> None:
    given = asking.arguments()
    torch.onnx.export(
        asking.module,
        (),
        str(path),
        kwargs=given,
        dynamo=True,
        opset_version=opset,
        output_names=list(asking.outputs),
        dynamic_shapes={
            name: None if tensor is None else dict(asking.axes.get(name, {}))
            for name, tensor in given.items()
        },
        external_data=False,
        verbose=False,
    )


class _Named(nn.Module):
    """A module that takes its tensors in an order: tracing knows no keywords."""

    def __init__(self, asking: Asking) -> None:
        super().__init__()
        self.asking = asking
        self.module = asking.module

    def forward(self, *tensors: Tensor) -> Any:
        """Whatever the module says."""
        given = dict(zip(self.asking.inputs, tensors, strict=True))
        return self.module(**{**self.asking.arguments(), **given})


def _by_tracing(asking: Asking, opset: int, path: Path) -> None:
    torch.onnx.export(
        _Named(asking).eval(),
        tuple(asking.inputs.values()),
        str(path),
        dynamo=False,
        opset_version=opset,
        input_names=list(asking.inputs),
        output_names=list(asking.outputs),
        dynamic_axes={name: dict(axes) for name, axes in asking.axes.items()},
        verbose=False,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings about deprecation and traced sizes: what matters is checked."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
