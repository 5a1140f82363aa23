from __future__ import annotations

import pytest
import torch
from examples import core, layer, plan, problem

from conformance import Semantics
from conformance.clauses.rearranging import (
    one_item,
    permutation,
    permute_heads,
    permuted_heads_view,
    take,
)
from conformance.clauses.subject import Subject


@pytest.mark.parametrize("size", [2, 3, 7])
def test_permutation_moves_something(size: int) -> None:
    """A permutation of several is never the identity, and never loses anyone."""
    for seed in range(30):
        order = permutation(size, torch.Generator().manual_seed(seed))
        assert sorted(order.tolist()) == list(range(size))
        assert order.tolist() != list(range(size))


def test_permutation_of_one_or_none() -> None:
    """One stays where it is, and none is none."""
    generator = torch.Generator().manual_seed(0)
    assert permutation(1, generator).tolist() == [0]
    assert permutation(0, generator).tolist() == []


@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("kind", ["core", "layer"])
def test_exchanged_heads_have_the_same_golden(kv_heads: int, kind: str) -> None:
    """Exchanging heads, weights and masks together moves the golden answer as the view says."""
    candidate = {"core": core, "layer": layer}[kind](features=["gqa"])
    subject = Subject(candidate, "float64")
    inputs = subject.inputs(problem(num_kv_heads=kv_heads, dtype="float64", mask=plan()))
    moved, order = permute_heads(subject, inputs, torch.Generator().manual_seed(1))
    groups = order.reshape(kv_heads, -1) // (4 // kv_heads)
    assert bool((groups == groups[:, :1]).all())
    view = permuted_heads_view(inputs, order)
    apart = view(subject.oracle.output(inputs)) - subject.oracle.output(moved)
    assert float(apart.abs().max()) < 1e-12


def test_one_item_alone() -> None:
    """An item is cut out with its own mask; a mask for all items stays."""
    subject = Subject(core(), "float32")
    inputs = subject.inputs(problem(mask=plan()))
    alone, view = one_item(subject, inputs, 1)
    assert alone.geometry.batch == 1
    assert torch.equal(view(inputs.query), alone.query)
    assert torch.equal(alone.keep[0], inputs.keep[1])  # type: ignore[index]  # both have a mask
    shared = subject.inputs(problem(mask=plan(shape="11QK")))
    assert one_item(subject, shared, 1)[0].keep is shared.keep


def test_one_item_fills_a_pinned_batch() -> None:
    """A candidate that cannot be called with one item gets a batch of nothing but that item."""
    subject = Subject(core(geometry={"batch": [2, 4]}), "float32")
    inputs = subject.inputs(problem(mask=plan()))
    alone, _ = one_item(subject, inputs, 1)
    assert alone.geometry.batch == inputs.geometry.batch
    assert all(torch.equal(item, inputs.query[1]) for item in alone.query)


def test_tiled_groups_move_with_their_query_heads() -> None:
    """At the declared order of groups too, exchanging heads only exchanges the golden answers."""
    tiled = core(features=["gqa"], semantics=Semantics(group_order="tile"))
    subject = Subject(tiled, "float64")
    inputs = subject.inputs(problem(num_kv_heads=2, dtype="float64", mask=plan()))
    moved, order = permute_heads(subject, inputs, torch.Generator().manual_seed(1))
    view = permuted_heads_view(inputs, order)
    apart = view(subject.oracle.output(inputs)) - subject.oracle.output(moved)
    assert float(apart.abs().max()) < 1e-12


def test_axis_of_size_one_is_not_reordered() -> None:
    """What does not vary along an axis stays; no mask stays no mask."""
    mask = torch.arange(6).reshape(1, 6)
    assert take(mask, 0, torch.tensor([2, 0, 1])) is mask
    assert take(None, 0, torch.tensor([0])) is None
