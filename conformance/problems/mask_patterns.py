"""Mask patterns: which keys a problem's mask hides.

Each pattern gives a bool tensor, True where a key is kept, of the wanted shape ``[b, h, q, Lk]``
(axes of size 1 where the mask does not vary). Only those with "empty" in their name leave rows
without keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Generator, Tensor

Shape = tuple[int, int, int, int]
Pattern = Callable[[Shape, Generator], Tensor]

# How many of the rows lose all their keys, besides the one that always does.
EMPTIED_SHARE: Final = 0.35
# Patterns of sequences alone, absent from other masks: see arrangements.sequences.
NO_TOKENS: Final = "empty-lengths"
NO_KEYS: Final = "no-keys"
NO_QUERIES: Final = "no-queries"
OF_SEQUENCES: Final = (NO_TOKENS, NO_KEYS, NO_QUERIES)


def full(shape: Shape, _generator: Generator) -> Tensor:
    """Every key is kept."""
    return torch.ones(shape, dtype=torch.bool)


def padding(shape: Shape, generator: Generator) -> Tensor:
    """Hide the last keys: a different number in each row of the mask."""
    key_length = shape[-1]
    kept = torch.randint(1, max(key_length, 1) + 1, (*shape[:-1], 1), generator=generator)
    return torch.arange(key_length) < kept


def random(density: float) -> Pattern:
    """Keep each key with probability ``density``; every row keeps at least one key."""

    def make(shape: Shape, generator: Generator) -> Tensor:
        kept = torch.rand(shape, generator=generator) < density
        return _with_a_key(kept, generator)

    return make


def mixed(shape: Shape, generator: Generator) -> Tensor:
    """Each row keeps another part of the keys, from nearly none to nearly all."""
    density = torch.rand((*shape[:-1], 1), generator=generator)
    return _with_a_key(torch.rand(shape, generator=generator) < density, generator)


def one_hidden(shape: Shape, generator: Generator) -> Tensor:
    """Keep every key but one in each row; a single key stays."""
    key_length = shape[-1]
    chosen = torch.randint(max(key_length, 1), (*shape[:-1], 1), generator=generator)
    return (torch.arange(key_length) != chosen) | torch.tensor(key_length == 1)


def left_padding(shape: Shape, generator: Generator) -> Tensor:
    """Hide the first keys: a different number in each row of the mask."""
    return padding(shape, generator).flip(-1)


def full_and_empty(shape: Shape, generator: Generator) -> Tensor:
    """Keep every key of a row, or none in about a third of the rows (at least one)."""
    return _emptied(full(shape, generator), generator)


def single(shape: Shape, generator: Generator) -> Tensor:
    """Exactly one key is kept in each row."""
    return _with_a_key(torch.zeros(shape, dtype=torch.bool), generator)


def empty_rows(shape: Shape, generator: Generator) -> Tensor:
    """Random, with about a third of the rows (at least one) hidden altogether."""
    return _emptied(random(0.6)(shape, generator), generator)


def empty_lengths(shape: Shape, generator: Generator) -> Tensor:
    """Padding where about a third of the rows (at least one) have no key at all."""
    return _emptied(padding(shape, generator), generator)


def _emptied(kept: Tensor, generator: Generator) -> Tensor:
    """Hide about a third of the rows, at least one, altogether."""
    rows = math.prod(kept.shape[:-1])
    hidden = torch.rand(rows, generator=generator) < EMPTIED_SHARE
    if rows:
        hidden[int(torch.randint(rows, (1,), generator=generator))] = True
    return kept & ~hidden.reshape(*kept.shape[:-1], 1)


def _with_a_key(kept: Tensor, generator: Generator) -> Tensor:
    key_length = kept.shape[-1]
    if key_length == 0:
        return kept
    chosen = torch.randint(key_length, (*kept.shape[:-1], 1), generator=generator)
    added = torch.arange(key_length) == chosen
    return kept | (added & ~kept.any(dim=-1, keepdim=True))


PATTERNS: Final[dict[str, Pattern]] = {
    "full": full,
    "padding": padding,
    "random": random(0.5),
    "sparse": random(0.1),
    "dense": random(0.9),
    "single": single,
    "mixed": mixed,
    "one-hidden": one_hidden,
    "left-padding": left_padding,
    "empty-rows": empty_rows,
    "empty-lengths": empty_lengths,
    "full-and-empty": full_and_empty,
}
# ``lengths`` can only say "the first n keys".
LENGTH_PATTERNS: Final = {
    "full": "full",
    "padding": "padding",
    "random": "padding",
    "sparse": "padding",
    "dense": "padding",
    "single": "padding",
    "mixed": "padding",
    "one-hidden": "padding",
    "left-padding": "padding",
    "full-and-empty": "full-and-empty",
    "empty-rows": "empty-lengths",
    "empty-lengths": "empty-lengths",
}
