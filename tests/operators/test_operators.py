"""Operators: each acts on every stage whose axes allow it, and says so in words of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance._golden import golden
from conformance.operators import OF_PLACES, OF_TABLES, Operator, misread_masks, operators

SIZES = golden.Sizes(3, 4, 2, 5, 7, 6, 6)
SMALL = {"B": 3, "H": 4, "G": 2, "Q": 5, "K": 7, "D": 6, "V": 6, "E": 6, "R": 3, "1": 1}
# Long enough for each tile and each number of places, and no multiple of any.
LONG = 283
BESIDES = {
    "sizes": SIZES,
    "scale": 0.3,
    "softcap": 2.0,
    "largest": torch.tensor(1.0),
    "past": 2,
    "window": (3, 1),
    "counted": (True, True),
    "distance_bias": None,
    "inputs": SimpleNamespace(query=torch.zeros(1)),
}
# Tables, and how far keys lie ahead, of which a result is changed.
TABLES_BESIDES = ("by_mask", "by_causality", "by_window", "structure", "kept")
# Heads, by the axis of a result that has their tokens, among them some that add up to zero.
TOKENS_BESIDES = {"shared_key": -1, "shared_value": -1, "key": -1, "query": -2}
ZEROS = torch.tensor([[0.0, 0.0], [1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
STAGES = [stage for stage in golden.LAYER.stages if stage.axes]


def results(name: str, axes: str) -> Iterator[Tensor]:
    """Results with one long axis, or as many places along one axis as along another."""
    generator = torch.Generator().manual_seed(5)
    for long in dict.fromkeys(axes):
        shape = [LONG if letter == long else SMALL[letter] for letter in axes]
        yield from _drawn(name, shape, generator)
    for alike in ({"Q": "K"}, {"B": axes[1:2] or "B"}, {"B": "Q"}, {"H": "Q"}):
        shape = [SMALL[alike.get(letter, letter)] for letter in axes]
        yield from _drawn(name, shape, generator)


def _drawn(name: str, shape: list[int], generator: torch.Generator) -> Iterator[Tensor]:
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
    if name in OF_TABLES:
        yield drawn > 0.0
        yield (torch.arange(shape[-1]) < shape[-1] - 3).expand(shape)  # of lengths
    elif name in OF_PLACES:
        yield (10.0 * drawn).round().to(torch.int64)
    else:
        yield 3.0 * drawn


def changed(operator: Operator, result: Tensor) -> Tensor | None:
    """What an operator makes of a result, None where it refuses."""
    function: Callable[..., Any] = operator.change
    besides = [_beside(name, result) for name in golden.reads_besides(function)]
    try:
        made: Tensor = function(result, *besides)
    except (ValueError, RuntimeError):
        return None
    return made


def _beside(name: str, result: Tensor) -> Any:
    queries, keys = result.shape[-2:] if result.dim() > 1 else (1, 1)
    of_places: dict[str, Callable[[], Any]] = {
        "ahead": lambda: torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries),
        "attended": lambda: (torch.arange(keys) >= keys // 2).view(1, 1, 1, -1),
        "empty": lambda: torch.zeros(result.shape[:-1], dtype=torch.bool),
        "sinks": lambda: torch.linspace(-1.0, 1.0, result.shape[-3] if result.dim() > 2 else 1),
        "slopes": lambda: torch.linspace(0.5, 1.5, result.shape[-3]).unsqueeze(0),
        "products": lambda: torch.arange(result.numel()).reshape(result.shape) % 3 - 1.0,
    }
    if name in of_places:
        return of_places[name]()
    if name in TABLES_BESIDES:
        return (torch.arange(keys) % (3 + TABLES_BESIDES.index(name)) > 0).view(1, 1, 1, -1)
    if name in TOKENS_BESIDES:
        return ZEROS[torch.arange(result.shape[TOKENS_BESIDES[name]]) % len(ZEROS)]
    return BESIDES.get(name, -2.0 * result)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_each_operator_acts_on_every_stage_that_it_is_offered_for(stage: golden.Stage) -> None:
    """It keeps the shape but for axes in front, changes some result, and leaves the given one."""
    examples = list(results(stage.name, stage.axes))
    for operator in operators(stage.name, stage.axes):
        acted = False
        for result in examples:
            before = result.clone()
            made = changed(operator, result)
            assert torch.equal(result, before), operator.words
            if made is not None:
                own = made.shape[made.dim() - result.dim() :]
                assert result.expand(own).shape == own, operator.words
                acted |= not torch.equal(made.to(result.dtype), result.expand(made.shape))
        assert acted, operator.words


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_words_tell_operators_apart(stage: golden.Stage) -> None:
    """No two operators of a stage are said in the same words."""
    words = [operator.words for operator in operators(stage.name, stage.axes)]
    assert len(words) == len(set(words))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float64], ids=["table", "numbers"])
@pytest.mark.parametrize("operator", [*misread_masks()], ids=lambda operator: operator.words)
def test_a_misread_mask_is_one_for_each_score(operator: Operator, dtype: torch.dtype) -> None:
    """Of some mask, broadcast or in full, each way to read it makes another of all scores."""
    full = (SIZES.batch, SIZES.num_heads, SIZES.query_length, SIZES.key_length)
    drawn = torch.randn(full, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    acted = False
    for lacking in itertools.product((False, True), repeat=3):
        place = tuple(slice(1) if one else slice(None) for one in lacking)
        mask = drawn[place].gt(0.0).to(dtype)
        try:
            made = operator.change(mask, SIZES)
        except ValueError:
            continue
        acted |= not torch.equal(made.expand(full), mask.expand(full))
    assert acted
