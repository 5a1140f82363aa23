"""Rotary tables of a call: which are drawn, how they are handed over, what refuses them."""

# ruff: noqa: ARG001, ARG005 (parameters are what is declared)
from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import conformance
from candidates.rotary_tables import (
    HALVES,
    complex_tables,
    half_tables,
    tables_by_halves,
    tables_by_neighbours,
    tables_of_a_part,
)
from conformance.base.geometry import Geometry
from conformance.calls.calling import arguments
from conformance.declare.candidate import Candidate
from conformance.errors import DeclarationError
from conformance.problems.caching import cached
from conformance.problems.inputs import Inputs
from conformance.problems.materialise import materialise
from conformance.problems.problem import Problem

SIZES: dict[str, int] = {
    "batch": 3,
    "num_heads": 2,
    "num_kv_heads": 2,
    "query_length": 5,
    "key_length": 5,
    "head_size": 8,
    "value_head_size": 3,
    "query_size": 1,
    "key_size": 1,
    "value_size": 1,
    "output_size": 1,
}
SEEDS = range(24)


def drawn(candidate: Candidate, seed: int = 0, dtype: str = "float32", **sizes: int) -> Inputs:
    """The inputs of one problem."""
    geometry = Geometry(**{**SIZES, **sizes})
    return materialise(Problem(geometry=geometry, dtype=dtype, seed=seed), candidate)


@pytest.mark.parametrize(
    ("candidate", "shapes"),
    [
        (tables_by_halves, {"cos": (5, 8), "sin": (5, 8)}),
        (tables_by_neighbours, {"cos": (3, 1, 5, 8), "sin": (3, 1, 5, 8)}),
        (half_tables, {"cos": (3, 5, 4), "sin": (3, 5, 4)}),
        (complex_tables, {"freqs_cis": (5, 4)}),
        (tables_of_a_part, {"cos": (1, 1, 5, 4), "sin": (1, 1, 5, 4)}),
    ],
    ids=["halves", "neighbours", "half as wide", "complex", "a part"],
)
def test_tables_come_in_their_declared_axes(
    candidate: Candidate, shapes: dict[str, tuple[int, ...]]
) -> None:
    """Cut to the tokens of the call: of a call with a cache, to the new ones."""
    inputs = drawn(candidate)
    keywords = arguments(inputs)[1]
    assert {name: tuple(keywords[name].shape) for name in shapes} == shapes
    (later,) = (arguments(cached(inputs, 2, candidate))[1],)
    for name, whole in keywords.items():
        axis = -2
        assert torch.equal(later[name], whole.narrow(axis, 2, 3))


def test_both_entries_of_a_pair_are_equal_and_what_the_golden_reads() -> None:
    """Half by half, or side by side, in the dtype of the call."""
    for candidate, dtype in ((tables_by_halves, "bfloat16"), (tables_by_neighbours, "float16")):
        inputs = drawn(candidate, dtype=dtype)
        keywords = arguments(inputs)[1]
        table = torch.complex(keywords["cos"].double(), keywords["sin"].double())
        table = table.reshape(-1, 5, 8)
        one, two = (
            (table[..., :4], table[..., 4:])
            if candidate is tables_by_halves
            else (table[..., ::2], table[..., 1::2])
        )
        assert torch.equal(one, two)
        assert torch.equal(one, inputs.rotary_tables)


def test_tables_are_legal_and_most_are_no_table_of_positions_from_zero() -> None:
    """All entries of a table have one length, which some tables have other than one."""
    lengths, usual = [], 0
    for seed in SEEDS:
        tables = drawn(tables_by_halves, seed, dtype="float64").rotary_tables
        assert tables is not None
        lengths.append(float(tables[0, 0, 0].abs()))
        torch.testing.assert_close(tables.abs(), torch.full(tables.shape, lengths[-1]).double())
        frequencies = 10000.0 ** -(torch.arange(4).double() / 4)
        own = torch.arange(5)[:, None] * frequencies
        usual += bool(torch.allclose(tables[0] / lengths[-1], torch.polar(own * 0 + 1, own)))
    assert 0 < usual < len(SEEDS) / 3
    assert sum(abs(length - 1.0) < 1e-9 for length in lengths) in range(12, 24)


def test_cached_keys_come_turned() -> None:
    """No call has a table for the tokens of another."""
    inputs = drawn(tables_by_halves, seed=1, dtype="float64")
    whole = arguments(inputs)[1]
    turned = tables_by_halves.function.turn(inputs.key, whole["cos"], whole["sin"])
    later = arguments(cached(inputs, 2, tables_by_halves))[1]
    torch.testing.assert_close(later["past_key"], turned[:, :, :2])


def test_rows_stay_where_tokens_do() -> None:
    """A longer or shorter call has the same rows for the same tokens, another item its own."""
    inputs = drawn(half_tables, seed=3)
    tables = inputs.rotary_tables
    assert tables is not None
    shorter = inputs.with_tokens(key=inputs.key[:, :, :3], value=inputs.value[:, :, :3])
    assert torch.equal(shorter.rotary_tables, tables[:, :3])  # type: ignore[arg-type]  # it has some
    order = torch.tensor([2, 0, 1])
    assert inputs.tables is not None
    moved = inputs.replace(tables=inputs.tables.of_items(order)).rotary_tables
    assert torch.equal(moved, tables[order])  # type: ignore[arg-type]  # it has some


@pytest.mark.parametrize(
    ("promises", "words"),
    [
        ({"rotary_tables": "cos-sin"}, "semantics says not which channels turn together"),
        ({"rotary_tables": "cos"}, "rotary_tables is 'cos', which is unknown"),
        ({"rotary_table_shape": "LR"}, "'LR' without rotary_tables"),
        (
            {"rotary_tables": "cos-sin", "semantics": HALVES, "rotary_table_shape": "RL"},
            "write the axes in the order B, L, R",
        ),
        (
            {"rotary_tables": "cos-sin", "semantics": HALVES, "layout": "varlen"},
            "layout='varlen', which is judged without",
        ),
        (
            {
                "rotary_tables": "cos-sin",
                "semantics": HALVES,
                "rotary_table_shape": "BLR",
                "batched": False,
            },
            "batched=False leaves no axis B",
        ),
    ],
)
def test_what_cannot_be_declared_is_said(promises: dict[str, Any], words: str) -> None:
    """In one sentence that names the promise."""
    with pytest.raises(DeclarationError, match=re.escape(words)):
        conformance.core(**promises)(lambda query, key, value, **_more: query)


def test_the_width_of_tables_is_asked() -> None:
    """A table "BLR" has an entry a pair of channels where calls with one a channel raise."""
    width = conformance.core(
        semantics=half_tables.declaration.semantics,
        geometry={"value_head_size": "head_size"},
        rotary_tables="cos-sin",
        rotary_table_shape="BLR",
    )
    own = width(
        lambda query, key, value, *, cos, sin: half_tables(query, key, value, cos=cos, sin=sin)
    )
    report = conformance.check(own, profile="smoke", only=("position.tables", "numerics.golden"))
    assert report.conforms


def test_tables_may_be_one_parameter() -> None:
    """Keywords that share a parameter are handed over as a tuple, in their order."""
    seen = []

    def layer(query: Any, key: Any, value: Any, *, position_embeddings: Any) -> Any:
        seen.append(position_embeddings)
        return query

    declared = conformance.core(
        semantics=HALVES,
        rotary_tables="cos-sin",
        keywords={"cos": "position_embeddings", "sin": "position_embeddings"},
    )(layer)
    inputs = drawn(tables_by_halves)
    positional, keywords = arguments(inputs)
    declared(*positional, cos=keywords["cos"], sin=keywords["sin"])
    assert [torch.equal(*pair) for pair in zip(seen[0], keywords.values(), strict=True)] == [
        True,
        True,
    ]
