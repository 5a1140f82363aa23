"""Learned arguments: how they are drawn, fitted to sizes, and moved with items and heads."""

from __future__ import annotations

import torch
from examples import core

from candidates import learned
from conformance.base.geometry import FIELDS, Geometry
from conformance.problems.learned import LearnedArguments, draw_learned

SIZES = Geometry(**dict(zip(FIELDS, (3, 4, 2, 3, 5, 6, 2, 6, 7, 5, 9), strict=True)))


def drawn(candidate: object, seed: int = 0) -> LearnedArguments | None:
    """The learned arguments of one candidate's problem."""
    declared = candidate.declaration  # type: ignore[attr-defined]  # a candidate
    generator = torch.Generator().manual_seed(seed)
    return draw_learned(declared, SIZES, torch.float32, generator)


def test_without_learned_arguments_none_are_drawn() -> None:
    """A candidate that declares none gets none."""
    assert drawn(core()) is None


def test_a_norm_over_all_heads_has_a_weight_for_each_channel() -> None:
    """Of all query heads, and of all key heads; else those of one head are for all."""
    each, together = (
        drawn(one) for one in (learned.norm_weights, learned.norm_weights_of_all_heads)
    )
    assert each is not None
    assert together is not None
    assert {name: tuple(value.shape) for name, value in each.of(SIZES).items()} == {
        "query_norm_weight": (6,),
        "key_norm_weight": (6,),
    }
    assert {name: tuple(value.shape) for name, value in together.of(SIZES).items()} == {
        "query_norm_weight": (24,),
        "key_norm_weight": (12,),
    }


def test_slopes_are_those_of_heads_or_of_items_and_heads() -> None:
    """Both come, by the seed; items in another order have their own slopes."""
    made = [drawn(learned.given_slopes, seed) for seed in range(8)]
    shapes = {tuple(one.of(SIZES)["alibi_slopes"].shape) for one in made if one is not None}
    assert shapes == {(4,), (3, 4)}
    order = torch.tensor([2, 0])
    for one in made:
        assert one is not None
        slopes = one.of(SIZES)["alibi_slopes"]
        moved = one.of_items(order).of(SIZES.replace(batch=2))["alibi_slopes"]
        assert torch.equal(moved, slopes[order] if slopes.dim() > 1 else slopes)


def test_heads_take_their_arguments_with_them() -> None:
    """Query heads their temperatures, key heads their weights."""
    made = drawn(learned.norm_weights_of_all_heads)
    assert made is not None
    moved = made.of_heads(torch.tensor([2, 3, 0, 1]), torch.tensor([1, 0])).of(SIZES)
    own = made.of(SIZES)
    key = own["key_norm_weight"].unflatten(0, (2, 6)).flip(0).flatten()
    assert torch.equal(moved["key_norm_weight"], key)
    query = own["query_norm_weight"].unflatten(0, (2, 12)).flip(0).flatten()
    assert torch.equal(moved["query_norm_weight"], query)
