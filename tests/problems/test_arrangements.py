"""Heads in the candidate's own axes, and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import conformance
from conformance.base.geometry import Geometry
from conformance.calls.calling import arguments
from conformance.clauses.registry import all_clauses
from conformance.clauses.subject import Subject
from conformance.declare.head_layouts import HEAD_LAYOUTS
from conformance.errors import DeclarationError
from conformance.problems.arrangements import (
    canonical_output,
    canonical_tokens,
    present_output,
    presented_shape,
    there,
    with_equal_sequences,
)
from conformance.problems.combinations import options_together
from conformance.problems.fitting import fitted_geometry
from conformance.problems.inputs import Inputs
from conformance.problems.problem import MaskPlan, Problem
from conformance.problems.space import Space

SIZES = Geometry(
    batch=3,
    num_heads=2,
    num_kv_heads=2,
    query_length=5,
    key_length=7,
    head_size=4,
    value_head_size=6,
    query_size=1,
    key_size=1,
    value_size=1,
    output_size=1,
)
RAGGED = MaskPlan(pattern="random", form="sequences", shape="B")


def never(*_tensors: torch.Tensor, **_options: object) -> torch.Tensor:
    """A core that is never called."""
    raise AssertionError


# A latent has no axis of heads: see test_latent, test_served.
_OF_HEADS = {name: each for name, each in HEAD_LAYOUTS.items() if not each.value_in_key}
CACHED = [name for name, layout in _OF_HEADS.items() if layout.cache_axes]
WITH_HEADS = [name for name, layout in _OF_HEADS.items() if not layout.cache_axes]


def inputs_of(
    layout: str,
    *,
    causal: str = "bottom-right",
    mask: MaskPlan = RAGGED,
    seed: int = 3,
    geometry: Any = None,
) -> Inputs:
    """Some inputs of a core with a layout; the sequences of varlen differ in length."""
    candidate = conformance.core(layout=layout, causal=causal, geometry=geometry)(never)
    geometry = fitted_geometry(SIZES, candidate, Space())
    plan = mask if HEAD_LAYOUTS[layout].has_sequences else None
    problem = Problem(geometry=geometry, dtype="float32", seed=seed, mask=plan)
    return Subject(candidate, "float32").inputs(problem)


@pytest.mark.parametrize("layout", WITH_HEADS)
def test_tokens_come_back_as_they_were(layout: str) -> None:
    """What is arranged and taken apart again is query, key and value; absent tokens are zero."""
    inputs = inputs_of(layout)
    positional = arguments(inputs)[0]
    query, key, value = canonical_tokens(positional, inputs)
    if HEAD_LAYOUTS[layout].has_sequences:
        assert inputs.keep is not None
        there = inputs.keep.any(dim=-1).unsqueeze(-1)
        assert torch.equal(query, inputs.query * there)
        assert positional[0].shape[0] == presented_shape(inputs)[0]
        return
    assert torch.equal(query, inputs.query)
    assert torch.equal(key, inputs.key)
    assert torch.equal(value, inputs.value)


@pytest.mark.parametrize("layout", [*WITH_HEADS, *CACHED])
def test_answer_comes_back_as_it_was(layout: str) -> None:
    """An answer in the candidate's axes has the shape that is asked for and is read as heads."""
    inputs = inputs_of(layout)
    output = torch.randn(inputs.output_shape)
    if inputs.absent is not None:
        output = output.masked_fill(inputs.absent.unsqueeze(-1), 0.0)
    presented = present_output(output, inputs)
    assert tuple(presented.shape) == presented_shape(inputs)
    assert torch.equal(canonical_output(presented, inputs), output)


@pytest.mark.parametrize("causal", ["bottom-right", "top-left"])
def test_sequences_lie_where_their_diagonal_needs_them(causal: str) -> None:
    """Absent tokens come first where the diagonal ends at the last token, and last elsewhere."""
    inputs = inputs_of("varlen", causal=causal)
    assert inputs.absent is not None
    rows = ~inputs.absent[:, 0]
    ends = rows[:, -1] if causal == "bottom-right" else rows[:, 0]
    assert bool(ends.all())
    assert not bool(rows.all())


@pytest.mark.parametrize(("pattern", "letter"), [("no-keys", "k"), ("no-queries", "q")])
def test_sequences_that_have_the_one_without_the_other(pattern: str, letter: str) -> None:
    """Over some seeds the first, one in the middle and the last; what there is is handed over."""
    plan = RAGGED.replace(pattern=pattern)
    lacking = set()
    for seed in range(8):
        inputs = inputs_of("varlen", mask=plan, seed=seed)
        (query, key, _), keywords = arguments(inputs)
        counts = {name: keywords[f"cu_seqlens_{name}"].diff() for name in "qk"}
        assert [int(counts["q"].sum()), int(counts["k"].sum())] == [len(query), len(key)]
        assert 0 < int((counts[letter] == 0).sum()) < 3
        assert bool((counts["q" if letter == "k" else "k"] > 0).all())
        lacking |= set((counts[letter] == 0).nonzero().flatten().tolist())
        output = torch.ones(presented_shape(inputs))
        assert torch.equal(present_output(canonical_output(output, inputs), inputs), output)
    assert lacking == {0, 1, 2}


@pytest.mark.parametrize("pattern", ["random", "full", "single", "no-keys", "empty-lengths"])
@pytest.mark.parametrize(
    "rule",
    [
        {"key_length": "query_length"},
        {"query_length": "key_length"},
        lambda sizes: sizes.replace(key_length=sizes.query_length),
    ],
    ids=["keys", "queries", "function"],
)
def test_lengths_that_a_geometry_ties_are_tied_in_each_sequence(rule: Any, pattern: str) -> None:
    """One set of offsets serves queries and keys, whichever lengths there are."""
    plan = RAGGED.replace(pattern=pattern)
    keywords = arguments(inputs_of("varlen", mask=plan, geometry=rule))[1]
    assert torch.equal(keywords["cu_seqlens_q"], keywords["cu_seqlens_k"])
    assert keywords["max_seqlen_q"] == keywords["max_seqlen_k"]
    differ = len(keywords["cu_seqlens_q"].diff().unique()) > 1
    assert differ == (pattern not in ("full", "single"))


def test_sequences_without_keys_alone_are_not_asked_of_tied_lengths() -> None:
    """Nor is a combination with sequences that have keys and no queries."""
    tied = conformance.core(layout="varlen", geometry={"key_length": "query_length"})(never)
    slugs = ("varlen.no-keys", "varlen.no-queries", "varlen.no-queries-gradients")
    clauses = {clause.id: clause for clause in all_clauses()}
    reason = "its geometry gives each sequence as many keys as queries"
    assert {clauses[slug].not_applicable(tied) for slug in slugs} == {reason}
    patterns = {
        problem.mask.pattern
        for problem in options_together(tied, clauses["numerics.options"].space, dtype="float32")
        if problem.mask is not None
    }
    assert patterns
    assert "no-queries" not in patterns


def test_tokens_that_some_head_has_are_there() -> None:
    """A mistake that is acted out may hide other keys of a sequence in each head."""
    inputs = inputs_of("varlen").replace(present=None)
    assert inputs.keep is not None
    of_heads = inputs.keep.repeat(1, 2, 1, 1)
    of_heads[:, 1] = False
    changed = inputs.replace(keep=of_heads)
    for name in ("query", "key"):
        heads = getattr(inputs, name)
        assert torch.equal(there(changed, name, heads), there(inputs, name, heads))


def test_query_and_key_are_one_object_only_where_their_offsets_are_one() -> None:
    """What holds other tokens of the same sequences is another tensor; equal sequences share."""
    inputs = inputs_of("varlen")
    shared = inputs.with_tokens(query=inputs.key, value=inputs.key).replace(shared=True)
    sizes = shared.geometry.replace(query_length=7)
    padded = torch.zeros(3, 1, 7, 7, dtype=torch.bool)
    padded[:, :, 2:] = shared.keep
    apart = shared.replace(keep=padded, geometry=sizes)
    query, key, value = arguments(apart)[0]
    assert query.shape != key.shape
    assert value is key
    query, key, value = arguments(with_equal_sequences(apart))[0]
    assert query is key is value


def test_offsets_count_the_tokens_of_each_sequence() -> None:
    """cu_seqlens are int32, begin at zero and end at all tokens; max_seqlen is the longest."""
    inputs = inputs_of("varlen")
    (query, key, value), keywords = arguments(inputs)
    for letter, tensor in (("q", query), ("k", key), ("k", value)):
        offsets = keywords[f"cu_seqlens_{letter}"]
        assert offsets.dtype == torch.int32
        assert [int(offsets[0]), int(offsets[-1])] == [0, len(tensor)]
        assert keywords[f"max_seqlen_{letter}"] == int(offsets.diff().max())


@pytest.mark.parametrize(
    ("promises", "message"),
    [
        ({"layout": "varlen", "masks": ["keep"]}, "cu_seqlens say which keys"),
        ({"layout": "varlen", "features": ["weights"]}, "cannot be had with layout='varlen'"),
        ({"layout": "varlen", "empty_rows": "mean-of-all"}, "write 'mean-of-valid'"),
        ({"layout": "packed-qkv", "features": ["gqa"]}, "as many key heads as query heads"),
        (
            {"layout": "packed-qkv", "geometry": {"num_heads": 4, "num_kv_heads": 2}},
            "makes them one size",
        ),
        ({"padded": True}, "padded is True with layout='BHSD'"),
        ({"layout": "SBHD"}, "layout is 'SBHD', which is unknown"),
    ],
)
def test_promise_that_a_layout_cannot_keep_is_refused(
    promises: dict[str, object], message: str
) -> None:
    """One sentence says what a layout has no room for."""
    with pytest.raises(DeclarationError, match=message):
        conformance.core(**promises)(never)


def test_rows_between_sequences_are_poison_and_are_not_read_back() -> None:
    """Offsets say at which row a sequence begins; NaN lies between, where no answer is read."""
    inputs = inputs_of("varlen-padded")
    (query, key, value), keywords = arguments(inputs)
    own = {}
    for letter, tensor in (("q", query), ("k", key), ("k", value)):
        counts = keywords[f"cu_seqlens_{letter}"].diff().tolist()
        begins = keywords[f"cu_seqlens_{letter}_padded"].tolist()
        rows = torch.zeros(len(tensor), dtype=torch.bool)
        for begin, count in zip(begins[:-1], counts, strict=True):
            rows[begin : begin + count] = True
        assert int(rows.sum()) < len(tensor) == begins[-1]
        assert torch.equal(tensor.isnan().all(dim=(1, 2)), ~rows)
        own[letter] = rows
    output = torch.randn(presented_shape(inputs))
    other = output.masked_fill(~own["q"][:, None, None], 7.0)
    assert torch.equal(canonical_output(output, inputs), canonical_output(other, inputs))
