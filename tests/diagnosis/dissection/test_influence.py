"""What an answer is made of besides its own values: other keys, heads and batch items."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from examples import core
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as attend

from candidates.eager import EagerCore
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
from conformance.diagnosis.battery import plain_problem
from conformance.diagnosis.dissection.influence import influence_facts, tile_sizes
from conformance.diagnosis.dissection.reading import read


def subject(function: Callable[..., Tensor]) -> Subject:
    """A core without masks."""
    promises = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}
    return Subject(core(function, dtypes=["float32"], **promises), "float32")


def dealt(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Values at even places first, then those at odd ones."""
    count = value.shape[2]
    order = torch.cat([torch.arange(0, count, 2), torch.arange(1, count, 2)])
    return attend(query, key, value[:, :, order])


def paged(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Pages of four keys in the reverse order; those of the values are in their own."""
    return attend(query, torch.cat([*reversed(key.split(4, 2))], 2), value)


def of_the_first(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The values of the first item for all items from the third on."""
    return attend(query, key, torch.cat([value[:2], value[:1].expand_as(value[2:])]))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (dealt, "the values are with even keys first, odd ones behind"),
        (paged, "the keys are with tiles of 4 keys in the reverse order"),
        pytest.param(
            of_the_first, "(only for batch items from index 2 on)", marks=pytest.mark.nightly
        ),
    ],
)
def test_stray_influence_is_a_cause_where_it_is_confirmed(
    function: Callable[..., Tensor], said: str
) -> None:
    """Orders, mixtures and the items that they are made in are read and confirmed."""
    (entry,) = diagnose(subject(function))
    assert said in entry["text"]


def at_random(tensor: Tensor, axis: int) -> Tensor:
    """Another order of an axis that no rule gives, each time the same."""
    shuffled = torch.Generator().manual_seed(5)
    return tensor.index_select(axis, torch.randperm(tensor.shape[axis], generator=shuffled))


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        (0, "values that are not theirs: those of batch item 0 with 1, 1 with 0"),
        (1, "values that are not theirs: those of head "),
        (2, "of 7 keys values have each other's weights: value "),
    ],
)
def test_stray_influence_without_a_rule_is_a_fact(axis: int, said: str) -> None:
    """Which place reads which other is read at one problem, whatever the cause."""
    made = subject(lambda query, key, value: attend(query, key, at_random(value, axis)))
    problem = plain_problem(made)
    assert problem is not None
    (fact,) = influence_facts(made, made.inputs(problem.replace(seed=problem.seed + 1)))
    assert said in fact


@pytest.mark.parametrize("sharing", [False, True])
def test_right_answers_have_no_stray_influence(sharing: bool) -> None:  # noqa: FBT001
    """A correct core reads its own values alone, which several heads may share."""
    made = Subject(core(EagerCore()), "float32")
    problem = plain_problem(made)
    assert problem is not None
    sizes = problem.geometry.replace(num_heads=4, num_kv_heads=2 if sharing else 4)
    assert influence_facts(made, made.inputs(problem.replace(geometry=sizes))) == []


def test_where_one_tile_ends_is_no_size_of_tiles() -> None:
    """Keys that are lost behind the fifth are no second tile of as many."""

    def cut(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
        return weights[..., :5] @ value[:, :, :5]

    made = subject(cut)
    problem = plain_problem(made)
    assert problem is not None
    inputs = made.inputs(problem)
    reading = read(made, inputs)
    assert reading is not None
    assert tile_sizes(reading) == [5]
    assert influence_facts(made, inputs) == []


def test_a_cache_whose_pages_are_in_another_order_than_the_mask_is_told() -> None:
    """Keys and values of it are exchanged alike, which shows beside a causal mask alone."""

    def rotated(tensor: Tensor) -> Tensor:
        *pages, last = tensor.split(2, 2)
        return torch.cat([last, *pages], 2)

    def attending(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
        logits = query @ rotated(key).mT / math.sqrt(query.shape[-1])
        if causal:
            later = torch.ones(logits.shape[-2:], dtype=torch.bool)
            logits = logits.masked_fill(later.triu(key.shape[2] - query.shape[2] + 1), -math.inf)
        return logits.softmax(-1) @ rotated(value)

    promises = {"masks": [], "causal": "bottom-right", "features": [], "dtypes": ["float32"]}
    (entry,) = diagnose(Subject(core(attending, empty_rows="any", **promises), "float32"))
    assert entry["name"] == ("keys and values: with tiles of 2 keys of which the last comes first")
