"""Logits that are clamped or less another number than their largest are stated."""

from __future__ import annotations

import torch
from examples import BARE_FLOAT32, core
from torch import Tensor
from unusual_attention import layer_window

import conformance
from candidates.eager import EagerCore
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
from conformance.diagnosis.battery import answer_to, can_be_asked, plain_problem
from conformance.diagnosis.dissection.changed_logits import shift_statements
from conformance.diagnosis.mistaken_answer import DiagnosedSubject


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
