"""Sizes to try a graph at, the likely ones first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

# Primes that are no usual number of heads: a wrong reshape is refused, and axes tell themselves.
BATCH: Final = 3
LENGTH: Final = 5
HEADS: Final = 2
WIDTH: Final = 8
USUAL_HEADS: Final = (HEADS, 1, 4, 8, 3, 6, 12, 16, 5, 7, 32)
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


def usual(widths: Sequence[int]) -> Iterator[Sizes]:
    """What a graph with dynamic axes runs at; then other numbers of heads, and other widths."""
    for heads in USUAL_HEADS:
        yield Sizes(heads=heads)
    for width in dict.fromkeys(widths):
        yield Sizes(width=width)


def frozen(counts: Sequence[int]) -> Iterator[Sizes]:
    """What a graph may be frozen at, each once: likely numbers first, then every small size."""
    return iter(dict.fromkeys(_frozen(counts)))


def _frozen(counts: Sequence[int]) -> Iterator[Sizes]:
    likely = list(dict.fromkeys((BATCH, *counts, 1, 2)))
    lengths = list(dict.fromkeys((LENGTH, *counts, 2, 4)))
    for batch, length in itertools.product(likely, lengths):
        yield Sizes(batch=batch, query_length=length, key_length=length)
    for query, key, batch in itertools.product(lengths, lengths, likely):
        yield Sizes(batch=batch, query_length=query, key_length=key)
    for batch in range(1, _BRUTE_BATCH):
        for length in range(1, _BRUTE_LENGTH):
            yield Sizes(batch=batch, query_length=length, key_length=length)
