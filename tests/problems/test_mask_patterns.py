from __future__ import annotations

import pytest
import torch

from conformance.problems.mask_patterns import LENGTH_PATTERNS, PATTERNS

EMPTYING = ("empty-rows", "empty-lengths", "full-and-empty")
SHAPES = [(2, 3, 5, 7), (1, 1, 1, 4), (3, 1, 1, 1), (1, 2, 6, 1), (2, 1, 4, 33)]


def make(name: str, shape: tuple[int, int, int, int], seed: int = 0) -> torch.Tensor:
    """One mask."""
    return PATTERNS[name](shape, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", [name for name in PATTERNS if name not in EMPTYING])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_row_keeps_a_key(name: str, shape: tuple[int, int, int, int]) -> None:
    """Only the emptying patterns leave a row without keys."""
    for seed in range(20):
        kept = make(name, shape, seed)
        assert kept.shape == shape
        assert kept.dtype == torch.bool
        assert bool(kept.any(dim=-1).all())


@pytest.mark.parametrize("name", EMPTYING)
@pytest.mark.parametrize("shape", SHAPES)
def test_some_row_is_empty(name: str, shape: tuple[int, int, int, int]) -> None:
    """An emptying pattern always has an empty row, even with one row alone."""
    for seed in range(20):
        kept = make(name, shape, seed)
        assert kept.shape == shape
        assert not bool(kept.any(dim=-1).all())


@pytest.mark.parametrize("name", EMPTYING)
def test_not_every_row_is_empty(name: str) -> None:
    """With many rows some keep their keys: both kinds meet in one mask."""
    assert bool(make(name, (2, 3, 5, 7)).any(dim=-1).any())


@pytest.mark.parametrize("name", ["padding", "empty-lengths"])
def test_padding_is_a_prefix(name: str) -> None:
    """What padding keeps are the first keys of a row, so that a length can say it."""
    for seed in range(20):
        kept = make(name, (2, 3, 5, 9), seed)
        assert bool((kept[..., :-1] | ~kept[..., 1:]).all())


def test_every_length_occurs() -> None:
    """Padding reaches from one kept key to all of them."""
    lengths = {int(n) for seed in range(30) for n in make("padding", (4, 1, 1, 5), seed).sum(-1)}
    assert lengths == {1, 2, 3, 4, 5}


def test_single_keeps_one_key() -> None:
    """Exactly one key a row, not always the same one."""
    kept = make("single", (2, 3, 20, 6))
    assert bool((kept.sum(dim=-1) == 1).all())
    assert bool(kept.any(dim=(0, 1, 2)).all())


def test_full_keeps_all() -> None:
    """Every key is kept."""
    assert bool(make("full", (2, 3, 5, 7)).all())


def test_densities_are_as_named() -> None:
    """A sparse mask keeps fewer keys than a random one, and that fewer than a dense one."""
    sparse, random, dense = (
        float(make(name, (4, 4, 20, 50)).double().mean()) for name in ("sparse", "random", "dense")
    )
    assert sparse < 0.2 < random < 0.7 < dense < 1.0


@pytest.mark.parametrize("name", PATTERNS)
def test_no_keys_at_all(name: str) -> None:
    """A mask over zero keys has nothing to keep."""
    assert make(name, (2, 1, 3, 0)).shape == (2, 1, 3, 0)


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_is_decided_by_its_seed(name: str) -> None:
    """The same generator makes the same mask."""
    assert torch.equal(make(name, (2, 3, 5, 7), 4), make(name, (2, 3, 5, 7), 4))


def test_lengths_know_a_pattern_for_each() -> None:
    """Every pattern has one that lengths can say; those that empty rows empty them there too."""
    assert set(LENGTH_PATTERNS) == set(PATTERNS)
    assert set(LENGTH_PATTERNS.values()) <= {"full", "padding", "empty-lengths", "full-and-empty"}
    assert all(LENGTH_PATTERNS[name] in EMPTYING for name in EMPTYING)


def test_one_hidden_and_full_and_empty() -> None:
    """All keys but one, and all or none; the single key of a row stays."""
    hidden = ~make("one-hidden", (3, 2, 4, 7))
    assert bool((hidden.sum(dim=-1) == 1).all())
    kept = make("full-and-empty", (3, 2, 4, 7)).sum(dim=-1)
    assert {int(count) for count in kept.flatten()} == {0, 7}


def test_left_padding_hides_the_first_keys() -> None:
    """What left padding keeps are the last keys of a row."""
    kept = make("left-padding", (2, 3, 5, 9))
    assert bool((kept[..., 1:] | ~kept[..., :-1]).all())
    assert not bool(kept[..., 0].all())


def test_mixed_rows_keep_from_few_to_most() -> None:
    """Rows of one mask keep different parts of the keys: nearly none and nearly all."""
    counts = make("mixed", (2, 3, 20, 30)).sum(dim=-1)
    assert int(counts.min()) <= 3
    assert int(counts.max()) >= 27
