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
    MIXTURE,
    leaning_by_head,
    scores_of,
    sinks,
    table_of_distances,
    talking_heads,
    talking_weights,
)

from candidates.broken._prepared import Prepared
from candidates.broken.linear_biases import SlopesFromOne
from candidates.eager import Call, EagerCore, EagerLayer
from conformance import Geometry, Semantics
from conformance._golden import golden
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis import diagnose
from conformance.diagnosis.battery import answer_to, plain_problem
from conformance.diagnosis.dissection import readings
from conformance.diagnosis.dissection.by_head import head_statements, place_table
from conformance.diagnosis.dissection.reading import Reading, head_numbers, numbers, read
from conformance.diagnosis.mistakes import NotExpressible
from conformance.problems.problem import MaskPlan
from conformance.tolerance import model

THREE = {"num_heads": 3, "num_kv_heads": 3}


def subject(function: Callable[..., Tensor], **promises: Any) -> Subject:
    """A core of three heads, or of what is promised."""
    candidate = core(function, **{**BARE, "geometry": THREE, "dtypes": ["float32"], **promises})
    return Subject(candidate, "float32")


def times_by_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores times one, two and seven: by no rule."""
    return (torch.tensor([1.0, 2.0, 7.0])[:, None, None] * scores_of(q, k)).softmax(-1) @ v


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (times_by_head, "the scores times 1 in head 0, 2 in head 1, 7 in head 2"),
        (leaning_by_head, "times -0.5 times 2^-h in head h"),
        (sinks, "exp(0.5) in head 0, exp(-1) in head 1, exp(2) in head 2"),
        (talking_heads, "head 0: 1, 0.5, "),
        (talking_weights, "head 0: 1, 0.5, "),
    ],
)
def test_each_head_has_its_number(function: Callable[..., Tensor], said: str) -> None:
    """They are told where the heads are always so many, confirmed on problems not read."""
    (entry,) = diagnose(subject(function))
    assert said in entry["text"]


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


def growing(tensor: Tensor) -> Tensor:
    """Each head times one and half of its index."""
    return tensor * (1.0 + 0.5 * torch.arange(tensor.shape[1]))[:, None, None]


def test_slopes_that_are_right_at_some_numbers_of_heads_are_not_accused() -> None:
    """What is said is of a number of heads at which they are wrong."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads = query.shape[1]
        slopes = golden.alibi_slopes(heads).clone()
        if heads == 2:
            slopes = torch.tensor([0.31, 0.07], dtype=torch.float64)
        places = torch.arange(query.shape[2]) + key.shape[2] - query.shape[2]
        apart = (torch.arange(key.shape[2]) - places[:, None]).abs()
        scores = query @ key.mT * query.shape[-1] ** -0.5
        return (scores - slopes[:, None, None].to(query.dtype) * apart).softmax(-1) @ value

    alibi = core(attend, **{**BARE, "semantics": Semantics(alibi=True), "dtypes": ["float32"]})
    (entry,) = diagnose(Subject(alibi, "float32"))
    assert entry["text"] == (
        "the slope of the bias by distance is 0.31 in head 0, 0.07 in head 1 of 2 heads"
    )


class GrowingHeads(EagerLayer):
    """The answers of heads are multiplied by one and half of their index."""

    def merge(self, heads: Tensor) -> Tensor:
        """Side by side."""
        return super().merge(growing(heads))


class GrowingKeys(EagerCore):
    """Keys are multiplied so before the heads of a group share them."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        """With these keys in place of those given."""
        del key
        return super().scores(call, self.share(growing(call.key), call.query.shape[1]))


class SlopesOfHalves(Prepared):
    """Each half of the heads has the slopes of ALiBi."""

    linear = True

    def slopes(self, heads: int) -> Tensor:
        """Of each head."""
        return super().slopes(heads // 2).repeat(2) if heads % 2 == 0 else super().slopes(heads)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (
            layer(GrowingHeads, **BARE),
            "the answer of each head is multiplied by 1 + 1/2 times h in head h",
        ),
        (
            core(GrowingKeys(), **{**BARE, "features": ["gqa"]}),
            "1 + 1/2 times h in heads of key/value head h",
        ),
        (
            core(SlopesOfHalves(), **BARE, semantics=Semantics(alibi=True)),
            "the slope of ALiBi counted anew in each half of the heads",
        ),
        (SlopesFromOne, "2^(8/H) times the slope of ALiBi"),
    ],
)
def test_a_rule_of_the_heads_holds_for_any_number_of_them(candidate: Candidate, said: str) -> None:
    """Factors of heads, and of those that share a key, and slopes, are told by a rule."""
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert said in entry["text"]


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


def test_a_mean_over_any_number_of_heads_is_read() -> None:
    """Weights mixed with their mean over the heads are stated for all numbers of heads."""

    def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = scores_of(q, k).softmax(-1)
        return (0.75 * weights + 0.25 * weights.mean(1, keepdim=True)) @ v

    wide = core(mixed, **{**BARE, "dtypes": ["float32"]})
    (entry,) = diagnose(Subject(wide, "float32"))
    assert "0.75 times its own and 0.25 times the mean of those of all heads" in entry["text"]


def test_heads_are_mixed_where_rows_without_keys_are_nan() -> None:
    """Rows that are no numbers, as declared, tell nothing of the others."""

    def mixed(q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> Tensor:
        logits = scores_of(q, k)
        logits = logits if keep is None else logits.masked_fill(~keep, -torch.inf)
        return torch.einsum("gh,bhqk->bgqk", MIXTURE, logits.softmax(-1)) @ v

    one = subject(mixed, masks=["keep"], empty_rows="nan")
    plainest = plain_problem(one)
    assert plainest is not None
    mask = MaskPlan(pattern="empty-rows", form="keep", shape="BHQK")
    reading = read(one, one.inputs(plainest.replace(mask=mask)), finite=False)
    assert reading is not None
    assert not bool(torch.isfinite(reading.weights).all())
    assert "head 0: 1, 0.5, " in " ".join(stated.sentence for stated in head_statements(reading))


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
    return next(readings(one, [answer]))


def test_a_table_of_distances_is_read() -> None:
    """The biases of each head against its own place are those of the table."""
    table = place_table(read_plainly(subject(table_of_distances)), bottom_right=False)
    assert table is not None
    made = torch.sin(torch.arange(3.0 * 41)).reshape(3, 41)[:, 20 + table.first :]
    made = made[:, : table.values.shape[-1]] - made[:, -table.first, None]
    assert torch.allclose(table.values.float(), made, atol=model.LOGIT_READ_TO)


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


def test_what_contents_decide_is_no_bias_by_distance() -> None:
    """Logits that are right, and those of other products, have none."""
    for one in (times_by_head, talking_heads):
        assert place_table(read_plainly(subject(one)), bottom_right=False) is None


def test_slopes_that_no_rule_gives_are_read_of_each_number_of_heads() -> None:
    """What is said of one number of heads is acted out at the others with their own slopes."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads = torch.arange(query.shape[1]) + 2.0
        places = torch.arange(query.shape[2]) + key.shape[2] - query.shape[2]
        apart = (torch.arange(key.shape[2]) - places[:, None]).abs()
        scores = query @ key.mT * query.shape[-1] ** -0.5
        return (scores - heads.pow(-1.7)[:, None, None] * apart).softmax(-1) @ value

    alibi = core(attend, **{**BARE, "semantics": Semantics(alibi=True), "dtypes": ["float32"]})
    (entry,) = diagnose(Subject(alibi, "float32"))
    assert entry["text"] == (
        "the slope of the bias by distance is 0.3078 in head 0, 0.1545 in head 1, 0.09473 in head "
        "2, 0.06483 in head 3 of 4 heads, and others of other numbers"
    )
