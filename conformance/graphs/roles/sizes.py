"""Sizes to try a graph at, the likely ones first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import onnx
from onnx import numpy_helper

from ..header import Header

# Primes that are no usual number of heads: a wrong reshape is refused, and axes tell themselves.
BATCH: Final = 3
LENGTH: Final = 5
HEADS: Final = 2
WIDTH: Final = 8
_LARGEST_HINT: Final = 64
_MOST_HINTS: Final = 8
_BRUTE_BATCH: Final = 9
_BRUTE_LENGTH: Final = 17


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What dynamic axes are tried at; ``heads`` is for axes of heads that have no fixed size."""

    batch: int = BATCH
    query_length: int = LENGTH
    key_length: int = LENGTH
    heads: int = HEADS
    width: int = WIDTH


@dataclass(frozen=True)
class Hints:
    """Numbers that stand in a graph: in reshapes, and the widths of its weights."""

    counts: tuple[int, ...]
    widths: tuple[int, ...]


def read_hints(header: Header) -> Hints:
    """Small whole numbers and the widths of matrices in a graph's file; none when it is gone."""
    try:
        graph = onnx.load(header.path, load_external_data=False).graph
    except (OSError, ValueError):
        return Hints((), ())
    counts: dict[int, None] = {}
    widths: dict[int, None] = {}
    for tensor in _tensors(graph):
        if len(tensor.dims) >= len("EO"):
            widths.update(dict.fromkeys(tensor.dims))
        elif tensor.data_type == onnx.TensorProto.INT64 and not tensor.external_data:
            numbers = numpy_helper.to_array(tensor).reshape(-1)[:_LARGEST_HINT]
            counts.update(dict.fromkeys(int(number) for number in numbers))
    small = [number for number in sorted(counts) if 0 < number <= _LARGEST_HINT]
    return Hints(tuple(small[:_MOST_HINTS]), tuple(widths))


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The initializers and constants of a graph, without those of subgraphs."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.HasField("t"):
                yield attribute.t


def usual() -> Iterator[Sizes]:
    """What any graph with dynamic axes runs at; then other numbers of heads and one item."""
    yield Sizes()
    for heads in (1, 4, 8, 3, 16, 6, 12):
        yield Sizes(heads=heads)


def baked(hints: Hints, *, apart: bool) -> Iterator[Sizes]:
    """What a graph may be frozen at: numbers in its file first, then every small size.

    ``apart``: query and key length are tried apart, too.
    """
    yield from usual()
    likely = dict.fromkeys((*hints.counts, 1, 2))
    lengths = dict.fromkeys((*hints.counts, LENGTH, 1, 2, 4))
    for batch, length in itertools.product((*likely, BATCH), lengths):
        yield Sizes(batch=batch, query_length=length, key_length=length)
    if apart:
        for batch, query, key in itertools.product((BATCH, *likely), lengths, lengths):
            yield Sizes(batch=batch, query_length=query, key_length=key)
    for batch in range(1, _BRUTE_BATCH):
        for length in range(1, _BRUTE_LENGTH):
            yield Sizes(batch=batch, query_length=length, key_length=length)
