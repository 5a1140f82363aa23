from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from examples import core, layer, plan, problem
from torch import Tensor

import conformance
from conformance.clauses.subject import Subject
from conformance.oracle.long_sequences import LongGolden
from conformance.problems.inputs import Inputs
from conformance.problems.materialise import materialise
from conformance.problems.problem import Problem
from conformance.tolerance.model import UNIT_ROUNDOFF

LENGTHS = {"query_length": 37, "key_length": 53, "head_size": 8, "value_head_size": 5}
LONG: dict[str, Problem] = {
    "plain": problem(**LENGTHS),
    "causal": problem(**LENGTHS, causal=True),
    "more queries than keys": problem(**{**LENGTHS, "query_length": 71}, causal=True),
    "window": problem(**LENGTHS, window=(5, 3)),
    "causal window": problem(**LENGTHS, causal=True, window=(7, 0)),
    "softcap and scale": problem(**LENGTHS, softcap=3.0, scale=0.7),
    "groups": problem(**LENGTHS, num_kv_heads=2),
    "large logits": problem(**LENGTHS, values="large-logits"),
    "one dominant key": problem(**LENGTHS, values="dominant-key", causal=True),
    "keys that few rows see": problem(**LENGTHS, mask=plan("sparse")),
    "padding": problem(**LENGTHS, mask=plan("padding", shape="B11K")),
    "rows without keys": problem(**LENGTHS, mask=plan("empty-rows"), causal=True),
    "bias": problem(**LENGTHS, mask=plan(form="bias", finite_bias=True)),
}


def long_problem(name: str) -> tuple[Subject, Inputs]:
    """A core that promises everything, and one problem for it."""
    subject = Subject(core(), "float32")
    return subject, materialise(LONG[name], subject.candidate)


def blocked(subject: Subject, inputs: Inputs, block: int, **more: Any) -> LongGolden:
    """The golden in blocks of so many rows."""
    batch, heads, _, keys = inputs.score_shape
    pairs = batch * heads * keys * block
    return LongGolden(inputs, subject.declaration, subject.dtype, most_pairs=pairs, **more)


def joined(blocks: LongGolden, name: str) -> Tensor:
    """One field of all blocks, row after row."""
    return torch.cat([getattr(rows, name) for rows in blocks.blocks()], dim=2)


def near(answer: Tensor, other: Tensor) -> bool:
    """Whether float64 in another order of sums, differences of squares among them, explains it."""
    size = torch.maximum(answer.abs(), other.abs()).amax(dim=-1, keepdim=True).clamp_min(1e-9)
    return bool(((answer - other).abs() <= 2**20 * UNIT_ROUNDOFF["float64"] * size).all())


@pytest.mark.parametrize("block", [5, 64])
@pytest.mark.parametrize("name", LONG)
def test_blocks_are_the_whole(name: str, block: int) -> None:
    """Output, bound and judged rows of blocks are those of one evaluation, whatever the mask."""
    subject, inputs = long_problem(name)
    blocks, whole = blocked(subject, inputs, block), subject.golden(inputs)
    assert torch.equal(joined(blocks, "judged"), whole.judged.expand(*whole.output.shape[:3], 1))
    assert near(joined(blocks, "output"), whole.output)
    assert near(joined(blocks, "bound"), whole.bound)


def test_sampled_rows_get_the_statistical_bound() -> None:
    """On independent inputs the sample's bound is the yardstick's, sharper than the worst case."""
    long = problem(**{**LENGTHS, "query_length": 130, "key_length": 150})
    subject = Subject(core(), "float32")
    inputs = materialise(long, subject.candidate)
    sample, whole = blocked(subject, inputs, 16).statistical(), subject.yardstick(inputs)
    assert sample is not None
    assert near(sample.bound, whole.bound[:, :, sample.rows])
    assert bool((sample.bound < subject.golden(inputs).bound[:, :, sample.rows]).any())
    structured = inputs.replace(generic=False)
    assert blocked(subject, structured, 16).statistical() is None


def test_the_worst_element_is_found_where_it_is() -> None:
    """A single wrong element in any block is reported by its place in the whole answer."""
    subject, inputs = long_problem("causal")
    long_golden = blocked(subject, inputs, 8)
    answer = subject.answer(inputs)
    right = long_golden.compare(answer)
    assert right.violation is None
    assert 0.0 < right.margin < 1.0
    answer[1, 2, 29, 3] += 1.0
    comparison = long_golden.compare(answer)
    assert comparison.index == (1, 2, 29, 3)
    assert comparison.violation is not None


def test_some_rows_are_enough() -> None:
    """Only the chosen rows are held against their bounds."""
    subject, inputs = long_problem("plain")
    inputs = inputs.replace(generic=False)
    long_golden = blocked(subject, inputs, 8)
    answer = subject.answer(inputs)
    answer[:, :, 20] += 1.0
    assert long_golden.compare(answer, rows=torch.tensor([0, 19, 21])).violation is None
    assert long_golden.compare(answer, rows=torch.tensor([19, 20])).violation is not None


def test_rows_of_a_softmax_over_queries_are_not_apart() -> None:
    """What mixes rows, or is a layer, is refused in one sentence."""
    point = dataclasses.replace(conformance.Semantics(), softmax_axis="query")
    mixing = Subject(core(semantics=point, empty_rows="any", causal=None), "float32")
    of_layer = Subject(layer(), "float32")
    for subject in (mixing, of_layer):
        inputs = materialise(problem(), subject.candidate)
        with pytest.raises(ValueError, match="in blocks of rows"):
            LongGolden(inputs, subject.declaration, "float32")
