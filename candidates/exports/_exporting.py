"""Both exporters of torch, quiet, with every axis dynamic that a source calls so."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ._describing import Source


@contextmanager
def quiet() -> Iterator[None]:
    """Without the exporters' warnings, which are about every traced size and deprecation."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def by_tracing(
    source: Source,
    path: Path,
    *,
    opset: int = 18,
    example: tuple[Tensor, ...] | None = None,
    module: nn.Module | None = None,
    **options: Any,
) -> Path:
    """Export with the older exporter, which traces one call; its highest opset is 20."""
    axes = {given.name: given.dynamic for given in source.inputs}
    for name, shape in source.outputs.items():
        axes[name] = {number: axis for number, axis in enumerate(shape) if isinstance(axis, str)}
    with quiet():
        torch.onnx.export(
            module or source.module,
            example or source.example(),
            str(path),
            dynamo=False,
            opset_version=opset,
            input_names=[given.name for given in source.inputs],
            output_names=list(source.outputs),
            dynamic_axes=axes,
            **options,
        )
    return path


def by_export(
    source: Source,
    path: Path,
    *,
    opset: int = 20,
    example: tuple[Tensor, ...] | None = None,
    module: nn.Module | None = None,
    **options: Any,
) -> Path:
    """Export with the newer exporter, by way of ``torch.export``; it needs onnxscript."""
    with quiet():
        torch.onnx.export(
            module or source.module,
            example or source.example(),
            str(path),
            dynamo=True,
            opset_version=opset,
            input_names=[given.name for given in source.inputs],
            output_names=list(source.outputs),
            dynamic_shapes=tuple(given.dynamic for given in source.inputs),
            **{"external_data": False, "verbose": False, **options},
        )
    return path
