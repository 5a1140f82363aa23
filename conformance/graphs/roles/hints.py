"""Which sizes a graph may be frozen at: numbers in its header, in its file and in refusals."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import onnx
from onnx import numpy_helper

from ..header import Header

_LARGEST: Final = 64
_MOST: Final = 8
# How onnxruntime tells of shapes: "{2,5,4,4}", "5 by 7", "Got: 3 Expected: 2".
_TOLD: Final = re.compile(r"\{([\d, ]+)\}|(\d+) by (\d+)|(?:Got|Expected): (\d+)")


@dataclass(frozen=True)
class Hints:
    """Numbers that stand in a graph, and the widths of its weights, the likely ones first."""

    counts: tuple[int, ...]
    widths: tuple[int, ...]

    def counted(self, refusals: Iterable[str]) -> tuple[int, ...]:
        """The counts, those that refusals name before the others, as many as are worth trying."""
        told: Counter[int] = Counter()
        for text in refusals:
            for match in _TOLD.finditer(text):
                told.update(int(number) for number in re.findall(r"\d+", match.group()))
        ordered = [number for number, _ in told.most_common()] + list(self.counts)
        small = [number for number in dict.fromkeys(ordered) if 0 < number <= _LARGEST]
        return tuple(small[:_MOST])


def read_hints(header: Header) -> Hints:
    """The numbers of a header and of a graph's file; of the header alone when the file is gone."""
    ports = [port.shape or () for port in header.inputs]
    outer = [size for shape in ports for size in shape[:-1] if isinstance(size, int)]
    last = [size for shape in ports for size in shape[-1:] if isinstance(size, int)]
    counts: dict[int, None] = dict.fromkeys(outer + last)
    widths: dict[int, None] = {}
    try:
        graph = onnx.load(header.path, load_external_data=False).graph
    except (OSError, ValueError):
        return Hints(tuple(counts), ())
    for tensor in _tensors(graph):
        if tensor.data_type == onnx.TensorProto.INT64 and not tensor.external_data:
            numbers = numpy_helper.to_array(tensor).reshape(-1)[:_LARGEST]
            counts.update(dict.fromkeys(int(number) for number in numbers))
        elif len(tensor.dims) == len("EO") and tensor.data_type != onnx.TensorProto.BOOL:
            widths.update(dict.fromkeys(tensor.dims))
    for tensor in _tensors(graph):  # after what reshapes name: constant masks and positions
        counts.update(dict.fromkeys(tensor.dims))
    return Hints(tuple(counts), tuple(widths))


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The initializers and constants of a graph, without those of subgraphs."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.HasField("t"):
                yield attribute.t
