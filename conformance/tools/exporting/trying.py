"""Calls of a module that find out which masks it takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...targets.loading import one_line

_EXTENT: Final = {"B": "batch", "Q": "query_length", "K": "key_length"}
_PADDING: Final = ("BK", "B11K", "QK", "B1QK", "BQK")
_ANY: Final = ("B1QK", "BQK", "BK", "QK", "B11K", "BHQK", "FQK")
_LENGTHS: Final = ("B", "BQ")


@dataclass(frozen=True)
class Sizes:
    """The sizes of example inputs."""

    batch: int
    queries: int
    keys: int


@dataclass
class Tried:
    """A module with tensors by the names of its parameters; ``heads`` is 0 where unknown."""

    module: nn.Module
    inputs: Mapping[str, Tensor]
    sizes: Sizes
    heads: int
    failure: str = field(default="gives no tensor")

    def answers(self) -> bool:
        """Whether the module gives a tensor; ``failure`` says how it does not."""
        return self.answer({}) is not None

    def answer(self, more: Mapping[str, Tensor]) -> Tensor | None:
        """The first tensor that it returns, None where it raises or returns none."""
        found = self._tensors(more)
        return found[0] if found else None

    def outputs(self) -> tuple[str, ...]:
        """A name for each tensor that it returns."""
        names = []
        for number, tensor in enumerate(self._tensors({})):
            of_scores = tuple(tensor.shape[-2:]) == (self.sizes.queries, self.sizes.keys)
            word = "weights" if number and of_scores else "output"
            names.append(f"{word}_{number}" if word in names else word)
        return tuple(names)

    def _tensors(self, more: Mapping[str, Tensor]) -> list[Tensor]:
        given = {**absent(self.module), **self.inputs, **more}
        try:
            with torch.no_grad():
                return list(_flat(self.module(**given)))
        except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
            self.failure = f"raised {one_line(error)}"
            return []


def absent(module: nn.Module) -> dict[str, None]:
    """None for the parameters of a module that have no default."""
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        entry.name: None
        for entry in parameters
        if entry.kind in kinds and entry.default is inspect.Parameter.empty
    }


def _flat(answer: Any) -> Iterator[Tensor]:
    if isinstance(answer, Tensor):
        yield answer
    elif isinstance(answer, Mapping):
        yield from _flat(tuple(answer.values()))
    elif isinstance(answer, (tuple, list)):
        for part in answer:
            yield from _flat(part)


def first_mask(tried: Tried, name: str) -> tuple[Tensor, dict[int, str]] | None:
    """The first form of a mask that the module takes and that has an influence, with its axes.

    Tracing sees a mask that hides a part; whatever its polarity, every row keeps a key.
    """
    for letters in _letters(name):
        for one, other in _pairs(letters, tried, name):
            first, second = tried.answer({name: one}), tried.answer({name: other})
            if first is None or second is None or first.shape != second.shape:
                continue
            plain = tried.answer({})
            if plain is not None and first.shape != plain.shape:
                continue
            if not torch.equal(first, second):
                return one, {
                    axis: _EXTENT[letter]
                    for axis, letter in enumerate(letters)
                    if letter in _EXTENT
                }
    return None


def _letters(name: str) -> tuple[str, ...]:
    if "len" in name.lower():
        return _LENGTHS
    return _PADDING if "pad" in name.lower() or "key" in name.lower() else _ANY


def _pairs(letters: str, tried: Tried, name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Two masks of some letters that differ: bool, then additive, then 0 and 1; or two lengths."""
    sizes, heads = tried.sizes, max(tried.heads, 1)
    extents = {"B": sizes.batch, "Q": sizes.queries, "K": sizes.keys, "1": 1, "H": heads}
    shape = [extents.get(letter, sizes.batch * heads) for letter in letters]
    if letters in _LENGTHS:
        yield torch.full(shape, 2), torch.full(shape, sizes.keys)
        return
    if tried.heads == 0 and set(letters) & {"H", "F"}:
        return
    last = (torch.arange(sizes.keys) == sizes.keys - 1).expand(shape).clone()
    forms = [(~last, last), (last.float(), (~last).float()), ((~last).long(), last.long())]
    yield from forms[1:2] + forms[:1] + forms[2:] if "bias" in name.lower() else forms
