"""Numbers that differ from head to head, and biases by distance, are read and stated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples import BARE, BARE_FLOAT32, core, layer, sizes
from torch import Tensor
from torch.nn.functional import linear
from unusual_attention import (
    scores_of,
    table_of_distances,
    talking_heads,
)

from conformance import Geometry
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
from conformance.diagnosis.battery import answer_to, plain_problem
from conformance.diagnosis.dissection.places import place_table
from conformance.diagnosis.dissection.reading import Reading, head_numbers, numbers, read
from conformance.diagnosis.mistakes import NotExpressible
from conformance.tolerance import model

THREE = {"num_heads": 3, "num_kv_heads": 3}


def subject(function: Callable[..., Tensor], **promises: Any) -> Subject:
    """A core of three heads, or of what is promised."""
    candidate = core(function, **{**BARE, "geometry": THREE, "dtypes": ["float32"], **promises})
    return Subject(candidate, "float32")


def reordered(order: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Scores of heads in another order, of a core whose heads share keys and values."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        groups = key.shape[1]
        key, value = (one.repeat_interleave(query.shape[1] // groups, 1) for one in (key, value))
        scores = order(scores_of(query, key).unflatten(1, (groups, -1))).flatten(1, 2)
        return scores.softmax(-1) @ value

    return attend


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (lambda s: s.flip(2), "those of the heads of each group in the reverse order"),
        (lambda s: s.roll(1, 1), "those of the group of heads before"),
    ],
    ids=["in groups", "of groups"],
)
def test_exchanged_heads_are_told_by_the_order(
    order: Callable[[Tensor], Tensor], said: str
) -> None:
    """Of whatever numbers of heads and groups."""
    (entry,) = diagnose(subject(reordered(order), geometry={}, features=["gqa"]))
    assert entry["name"] == f"scores: {said}"


@pytest.mark.parametrize(
    ("read", "rule"),
    [
        ([2.0, 4.0, 6.0], "2 times (h + 1) in head h"),
        ([3.0, 1.5, 0.75], "3 times 2^-h in head h"),
        ([1.0, 0.5, 1.0 / 3.0], "1/(h + 1) in head h"),
    ],
)
def test_rules_are_read_of_numbers(read: list[float], rule: str) -> None:
    """What is proposed gives the numbers that were read; the last is the list of them."""
    three = sizes(num_heads=3, num_kv_heads=3)
    *rules, listed = head_numbers(read, three, model.SAME_READ)
    assert any(one.words == rule for one in rules)
    assert all(one.of(three) == pytest.approx(read) for one in rules)
    with pytest.raises(NotExpressible):
        listed.of(sizes())


@pytest.mark.parametrize(
    ("width", "words"),
    [(10.0, "the width of all key/value heads"), (15.0, "the width of the heads of a group")],
)
def test_widths_of_heads_that_share_keys_are_read(width: float, words: str) -> None:
    """Of six heads that share the keys of two, all of size five."""
    grouped = sizes(num_heads=6, num_kv_heads=2, head_size=5)
    read = [one.words for one in numbers(width**-0.5, grouped, model.SAME_READ)]
    assert f"1/√({words})" in read


@pytest.mark.nightly
def test_other_numbers_of_heads_are_not_spoken_of() -> None:
    """Where heads may be more or fewer, numbers of three of them explain nothing."""
    wide = core(sinks_of_any, **{**BARE, "dtypes": ["float32"]})
    assert not [entry for entry in diagnose(Subject(wide, "float32")) if entry["confidence"]]


def sinks_of_any(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A sink of each head, by no rule."""
    logits = scores_of(q, k)
    more = torch.sin(torch.arange(q.shape[1]) * 2.0)[:, None, None].expand(*logits.shape[:3], 1)
    return torch.cat((logits, more), dim=-1).softmax(-1)[..., :-1] @ v


def read_plainly(one: Subject) -> Reading:
    """What the plain answer is made of."""
    problem = plain_problem(one)
    assert problem is not None
    answer = answer_to(one, one.inputs(problem))
    assert answer is not None
    reading = read(one, answer.inputs)
    assert reading is not None
    return reading


def test_a_table_of_distances_is_read() -> None:
    """The biases of each head against its own place are those of the table."""
    table = place_table(read_plainly(subject(table_of_distances)), bottom_right=False)
    assert table is not None
    made = torch.sin(torch.arange(3.0 * 41)).reshape(3, 41)[:, 20 + table.first :]
    made = made[:, : table.values.shape[-1]] - made[:, -table.first, None]
    assert torch.allclose(table.values.float(), made, atol=model.LOGIT_READ_TO)


@pytest.mark.nightly
def test_a_bias_of_a_layer_by_far_distances_is_told() -> None:
    """Buckets that grow with the distance, as T5 has them, go on behind those that are read."""

    def bucketed(sizes: Geometry, weights: Any) -> Callable[..., Tensor]:
        def forward(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            q, k, v = (
                linear(tokens, getattr(weights, name), getattr(weights, f"{name}_bias"))
                .unflatten(-1, (sizes.num_heads, -1))
                .transpose(1, 2)
                for name, tokens in zip("qkv", (query, key, value), strict=True)
            )
            apart = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
            bucket = apart.abs().clamp(min=1).log2().long() + 10 * (apart > 0)
            heads = (scores_of(q, k) + 0.1 * bucket).softmax(-1) @ v
            return linear(heads.transpose(1, 2).flatten(2), weights.o, weights.o_bias)

        return forward

    (entry,) = diagnose(Subject(layer(bucketed, **BARE_FLOAT32), "float32"))
    assert "a bias by how far the key lies ahead of the query" in entry["text"]


def times_by_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores of each head times a number of its own."""
    return (scores_of(q, k) * (torch.arange(q.shape[1]) + 2.0)[:, None, None]).softmax(-1) @ v


def test_what_contents_decide_is_no_bias_by_distance() -> None:
    """Logits that are right, and those of other products, have none."""
    for one in (times_by_head, talking_heads):
        assert place_table(read_plainly(subject(one)), bottom_right=False) is None
