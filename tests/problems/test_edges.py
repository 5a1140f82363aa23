from __future__ import annotations

from declared import CANDIDATES

from conformance.problems.edges import edge_problems
from conformance.problems.space import Space

CORE = CANDIDATES["core with everything"]


def test_edges_are_always_the_same() -> None:
    """Edges are picked by hand: the same list, without repetition."""
    space = Space(mask="maybe", causal="maybe", extras="maybe")
    edges = edge_problems(CORE, space, dtype="float32")
    assert edges == edge_problems(CORE, space, dtype="float32")
    assert len(edges) == len(set(edges)) >= 8


def test_edges_hold_what_inequality_hides_and_what_equality_hides() -> None:
    """Edges of nothing but ones, of equal sizes, of sizes all different, of more queries."""
    made = [p.geometry for p in edge_problems(CORE, Space(), dtype="float32")]
    shapes = [
        (g.batch, g.num_heads, g.query_length, g.key_length, g.head_size, g.value_head_size)
        for g in made
    ]
    assert (1,) * 6 in shapes
    assert any(len(set(shape)) == 1 and shape[0] > 1 for shape in shapes)
    assert any(len(set(shape)) == len(shape) for shape in shapes)
    assert any(g.query_length > g.key_length for g in made)
    assert any(g.num_kv_heads not in (1, g.num_heads) for g in made)


def test_edges_take_turns() -> None:
    """Edges with and without a mask, in several forms, with and without causality and biases."""
    space = Space(mask="maybe", causal="maybe", extras="maybe", finite_bias="maybe")
    edges = edge_problems(CORE, space, dtype="float32")
    assert {p.mask is None for p in edges} == {True, False}
    assert len({p.mask.form for p in edges if p.mask}) >= 2
    assert {p.causal for p in edges} == {True, False}
    assert {p.biases for p in edges} == {True, False}
    assert len({p.values for p in edges}) >= 6
    assert {p.scale is None for p in edges} == {True, False}
