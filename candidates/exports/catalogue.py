"""Every source with every exporter and opset, and some of them converted afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ._describing import Export, Source
from ._exporting import by_export, by_tracing
from .converting import dynamic_int8, float16
from .described import SOURCES

Exporter = Callable[..., Path]

EXPORTERS: Final[Mapping[str, Exporter]] = {"traced": by_tracing, "exported": by_export}
OPSETS: Final = (18, 20, 23)
PADDED: Final = ("own_padding", "cross_padding")


def _name(source: Source) -> str:
    """The source's name, told apart where a module is exported with other inputs."""
    others = [other for other in SOURCES if other.name == source.name]
    number = others.index(source)
    return f"{source.name}_{number + 1}" if number else source.name


def _clauses(source: Source, exporter: str, opset: int) -> tuple[str, ...]:
    """What torch's exporters make wrong of ``nn.MultiheadAttention`` (torch 2.13), and B1 itself.

    Tracing bakes the sizes of self-attention. From opset 23 on a padding mask becomes a
    ``[B, 1, 1, K]`` input of the operator Attention, which onnxruntime refuses.
    """
    if source.name == "per_head_matrices":
        return ("shape.output", "numerics.golden")
    if exporter == "traced" and source.name.startswith("own"):
        return ("export.dynamic-length",)
    if exporter == "exported" and opset == max(OPSETS) and source.name in PADDED:
        return ("export.dynamic-length",)
    return ()


def _export(source: Source, exporter: str, opset: int) -> Export:
    name = f"{_name(source)}_{exporter}_{opset}"

    def make(folder: Path) -> Path:
        path = folder / f"{name}.onnx"
        return path if path.exists() else EXPORTERS[exporter](source, path, opset=opset)

    return Export(
        name=name,
        source=source,
        description=f"{_name(source)}, {exporter} at opset {opset}",
        make=make,
        clauses=_clauses(source, exporter, opset),
    )


def _converted(export: Export, precision: str, convert: Callable[..., Path], **how: Any) -> Export:
    name = f"{export.name}_{precision}{'_inside' if how else ''}"

    def make(folder: Path) -> Path:
        path = folder / f"{name}.onnx"
        return path if path.exists() else convert(export.make(folder), path, **how)

    return Export(
        name=name,
        source=export.source,
        description=f"{export.description}, converted to {precision}{' inside' if how else ''}",
        make=make,
        clauses=export.clauses,
        precision=precision,
    )


def _conversions(export: Export) -> Iterator[Export]:
    yield _converted(export, "float16", float16)
    yield _converted(export, "float16", float16, keep_io_types=True)
    yield _converted(export, "int8-dynamic", dynamic_int8)


_DIRECT: Final = tuple(
    _export(source, exporter, opset)
    for source in SOURCES
    for exporter in EXPORTERS
    for opset in OPSETS
)
_TO_CONVERT: Final = (
    "token_attention_traced_18",
    "unbatched_attention_traced_18",
    "wide_head_attention_traced_18",
    "valid_length_attention_traced_18",
    "cross_weights_traced_18",
    "cross_length_first_traced_18",
)
EXPORTS: Final = (
    *_DIRECT,
    *(made for export in _DIRECT if export.name in _TO_CONVERT for made in _conversions(export)),
)


def export_all(folder: Path, exports: Sequence[Export] = EXPORTS) -> list[tuple[Path, Source, str]]:
    """Write the graphs into a folder, those that are already there excepted."""
    return [(export.make(folder), export.source, export.description) for export in exports]
