"""Answers are told as a whole: axes in another order, and rows that are all one number."""

from __future__ import annotations

import math
from collections.abc import Callable

import examples
import pytest
import torch
from torch import Tensor
from unusual_attention import OfCore

import conformance
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
from conformance.diagnosis.battery import Observation


def _core(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = scores if keep is None else scores.masked_fill(~keep, -torch.inf)
    answer: Tensor = torch.softmax(scores, -1) @ value
    return answer


@pytest.mark.parametrize(
    ("ordered", "name"),
    [
        (lambda out: out.transpose(0, 1), "answer: axes are H, B, Lq, D"),
        (
            lambda out: out.reshape(*out.shape[:2], out.shape[3], out.shape[2]),
            "answer: numbers, one after another, are viewed as B, H, D, Lq",
        ),
    ],
    ids=["exchanged", "viewed"],
)
def test_axes_of_the_answer_in_another_order_are_stated(
    ordered: Callable[[Tensor], Tensor], name: str
) -> None:
    """Exchanged, or viewed in another shape; rows without keys are open wherever they lie."""

    @conformance.core(masks=["keep"], empty_rows="any")
    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        return ordered(_core(query, key, value, keep))

    (entry,) = diagnose(Subject(attend, "float32"))
    assert entry["name"] == name
    assert entry["fix"] == "return the answer as [B, H, Lq, D], in the order of the query's axes"


def test_an_answer_in_the_axes_of_another_layout_is_no_right_one() -> None:
    """Heads before tokens where tokens come first: wrong at all sizes, not where they are alike."""

    @conformance.core(layout="BSHD")
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _core(*(each.transpose(1, 2) for each in (query, key, value)))

    subject = Subject(attend, "float32")
    assert all(
        answer.margin > 1.0 for answer in Observation(subject).whole if answer.inputs.generic
    )
    assert [one["name"] for one in diagnose(subject)] == ["answer-with-tokens-before-heads"]


@pytest.mark.parametrize("lost", [0.0, math.nan], ids=["zeros", "NaN"])
def test_a_layer_whose_first_token_attends_nothing_is_read(lost: float) -> None:
    """The answer to a single token says no way of the values there; those to many say the keys."""

    def strict(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu()
        return scores.masked_fill(hidden, -math.inf).softmax(-1).nan_to_num(nan=lost) @ value

    candidate = conformance.module(OfCore(strict), causal=None)
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert entry["name"].endswith("for keys at or after the query")


@pytest.mark.parametrize(
    ("of_rows", "of_others", "name"),
    [(math.nan, 0.0, "answer: NaN in rows that have a key"), (None, 7.0, "7 in rows without keys")],
)
def test_rows_that_are_all_one_number_are_told(
    of_rows: float | None, of_others: float, name: str
) -> None:
    """Those with a key, or those without, where the others are right."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        logits = query @ key.mT / math.sqrt(query.shape[-1])
        kept = torch.ones_like(logits, dtype=torch.bool) if keep is None else keep
        rows = logits.masked_fill(~kept, -math.inf).softmax(-1) @ value
        made = rows if of_rows is None else torch.full_like(rows, of_rows)
        return torch.where(kept.any(-1, keepdim=True), made, of_others)

    promises = {"masks": ["keep"], "causal": None, "features": [], "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(examples.core(attend, **promises), "float32"))
    assert entry["name"].endswith(name)
    assert entry["fix"]
