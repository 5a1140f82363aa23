"""Logits that are clamped or less another number than their largest are stated."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from examples import BARE_FLOAT32, CLAUSES, core, problem
from torch import Tensor
from unusual_attention import layer_window

import conformance
from candidates.broken.bias import MaximumFlooredAtMinusTenThousand
from candidates.broken.masking import MaximumOverIgnoredKeys
from candidates.broken.reported.mask_reads import ConstantForMaximum
from candidates.eager import EagerCore
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis import Diagnostician, diagnose
from conformance.diagnosis.battery import answer_to, can_be_asked, plain_problem
from conformance.diagnosis.dissection.changed_logits import shift_statements
from conformance.diagnosis.mistaken_answer import DiagnosedSubject


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (ConstantForMaximum, "the number 10"),
        (MaximumFlooredAtMinusTenThousand, "the largest one, or -10000 where that is larger"),
    ],
)
@pytest.mark.nightly
def test_what_stands_in_place_of_the_largest_logit_is_read(candidate: Candidate, said: str) -> None:
    """It shows where exponentials vanish or overflow, and is confirmed elsewhere."""
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert entry["name"] == f"exponentials: less {said}"


@pytest.mark.nightly
def test_what_an_additive_mask_hides_is_no_largest_logit() -> None:
    """Minus infinity is lower than all others, where a mask of truth values leaves the logit."""
    failing = problem(
        batch=2,
        num_heads=3,
        num_kv_heads=1,
        query_length=4,
        key_length=4,
        head_size=16,
        value_head_size=1,
        seed=964,
        values="integers",
        causal=True,
        scale=1.7,
    )
    diagnostician = Diagnostician(Subject(MaximumOverIgnoredKeys, "float32"))
    entry, *_ = diagnostician.explain(CLAUSES["mask.causal-combined"], failing)
    assert entry["name"].endswith("keys that a mask of truth values hides as well")


def test_nothing_is_read_where_no_row_is_lost() -> None:
    """Wrong answers of usual logits are not looked at: no exponential vanishes there."""

    class Doubled(EagerCore):
        """The weights count twice."""

        def mix(self, weights: Tensor, value: Tensor) -> Tensor:
            """Twice the weighted sum."""
            return 2.0 * super().mix(weights, value)

    subject = Subject(core(Doubled(), **BARE_FLOAT32), "float32")
    plain = plain_problem(subject)
    assert plain is not None
    answer = answer_to(subject, subject.inputs(plain))
    assert answer is not None
    assert not list(shift_statements(answer))


def test_a_floor_that_half_precision_cannot_hold_is_none() -> None:
    """It is tried like the others where rows of float16 vanish."""

    def nothing(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return query.new_zeros(*query.shape[:-1], value.shape[-1]) * key.shape[-1]

    subject = Subject(core(nothing, **{**BARE_FLOAT32, "dtypes": ["float16"]}), "float16")
    plain = plain_problem(subject)
    assert plain is not None
    answer = answer_to(subject, subject.inputs(plain.replace(values="large-logits")))
    assert answer is not None
    assert not list(shift_statements(answer))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (lambda total: total + 3e-6, "their sum and 3e-06"),
        (lambda total: total.clamp(min=0.2), "their sum, or 0.2 if larger"),
        (lambda total: total + 1e-20, "their sum and 1e-20"),
    ],
    ids=["added", "at least", "tiny"],
)
@pytest.mark.nightly
def test_a_number_beside_the_sum_of_plain_exponentials_is_read(
    more: Callable[[Tensor], Tensor], said: str
) -> None:
    """Of those that no largest logit is taken off."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        scores = scores if keep is None else scores.masked_fill(~keep, -torch.inf)
        powers = scores.exp()
        return powers / more(powers.sum(-1, keepdim=True)) @ value

    declare = conformance.core(dtypes=["float32"], masks=["keep"], empty_rows="any")
    (entry,) = diagnose(Subject(declare(attend), "float32"))
    plain = "exponentials: those of the logits as they are, divided by "
    assert entry["name"] == plain + said


NEAR = torch.tensor([0.3, -0.2, 0.5, 0.0, -0.4, 0.1, 0.7])


def test_a_bias_by_place_is_read_as_a_table() -> None:
    """As relative positions that are learnt have it, the same beyond an end."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ahead = torch.arange(key.shape[2]) - torch.arange(query.shape[2])[:, None]
        scores = query @ key.mT * query.shape[-1] ** -0.5
        return (scores + NEAR[ahead.clamp(-3, 3) + 3]).softmax(-1) @ value

    (entry,) = diagnose(Subject(core(attend, **BARE_FLOAT32), "float32"))
    assert (
        "0.3 at -3, -0.2 at -2, 0.5 at -1, 0 at 0, -0.4 at 1, 0.1 at 2, 0.7 at 3" in entry["text"]
    )
    assert "counted from the first query and key" in entry["text"]


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ((0, 1, 2, 3), "the largest one of the whole tensor, hidden keys included"),
        ((1, 2, 3), "the largest one of the batch item, hidden keys included"),
    ],
)
@pytest.mark.nightly
def test_the_largest_logit_of_many_rows_lets_low_ones_vanish(
    axes: tuple[int, ...], said: str
) -> None:
    """One maximum for all rows, taken before the mask is applied to the exponentials."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if not scores.numel():
            return scores @ value
        powers = (scores - scores.amax(axes, keepdim=True)).exp()
        powers = powers if keep is None else powers * keep
        return powers / powers.sum(-1, keepdim=True).clamp_min(1e-38) @ value

    declared = {**BARE_FLOAT32, "masks": ["keep"], "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(attend, **declared), "float32"))
    assert f" is {said}: low rows vanish" in entry["text"]


def test_a_table_of_all_pairs_of_places_is_read_of_a_window() -> None:
    """It holds for the only lengths that can be asked; calls of fewer tokens are nobody's fault."""
    window = conformance.module(
        layer_window, inputs="self", geometry={"query_length": 9, "key_length": 9}
    )
    (entry,) = diagnose(Subject(window, "float32"))
    said = "logits: a number of each head for each pair of query and key that no input changes"
    assert entry["name"].startswith(said)
    assert "with 3 heads, 9 queries and 9 keys" in entry["name"]


def test_a_call_of_lengths_that_are_not_declared_is_no_raised_one() -> None:
    """What a window makes of one token is not counted among the calls that raised."""
    window = conformance.module(
        layer_window, inputs="self", geometry={"query_length": 9, "key_length": 9}
    )
    subject = DiagnosedSubject(Subject(window, "float32"))
    asked = subject.inputs(plain_problem(subject))
    one = asked.map_tokens(lambda tokens: tokens[:, :1].contiguous())
    assert can_be_asked(subject, asked)
    assert not can_be_asked(subject, one)
    assert answer_to(subject, one) is None
    assert not any(subject.calls.values())


@pytest.mark.nightly
def test_what_extreme_values_alone_show_is_told() -> None:
    """Of the battery alone: rows vanish, or lose a part that a small number in the sum takes."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if not scores.numel():
            return scores @ value
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        powers = powers if keep is None else powers.masked_fill(~keep, 0.0)
        return powers / (powers.sum(-1, keepdim=True) + 1e-20) @ value

    declared = {**BARE_FLOAT32, "masks": ["keep"], "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(attend, **declared), "float32"))
    assert "the largest one of hidden keys as well, and 1e-20 is added" in entry["text"]
