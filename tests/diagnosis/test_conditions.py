"""A mistake keeps its name whatever else is declared, and "only with X" is said where X decides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import CLAUSES, core, problem
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from candidates.broken._prepared import Prepared
from candidates.eager import Call, EagerCore
from conformance import Semantics
from conformance.clauses.subject import Subject
from conformance.diagnosis import Diagnostician, diagnose
from conformance.diagnosis.answer_facts import never_with, only_with
from conformance.diagnosis.conditions import CONDITIONS
from conformance.problems.combinations import HARDLY

FIVE_FORMS = ["keep", "drop", "keep_int", "bias", "lengths"]
PROMISES: dict[str, Any] = {
    "masks": ["keep"],
    "causal": "bottom-right",
    "features": [],
    "empty_rows": "zeros",
    "dtypes": ["float32"],
}


class MaskOfFirstItem(EagerCore):
    """Every item gets the boolean mask of the first one; the other forms of mask are right."""

    def allowed(self, call: Call) -> Tensor | None:
        """What may be attended."""
        return super().allowed(call if call.keep is None else call.replace(keep=call.keep[:1]))


class CausalLostToMask(EagerCore):
    """The causal flag is dropped where a boolean mask is given."""

    def allowed(self, call: Call) -> Tensor | None:
        """What may be attended."""
        return super().allowed(call if call.keep is None else call.replace(causal=False))


class TurnedTopLeft(Prepared):
    """Rotary positions are right, the triangle of the causal flag starts at the top left."""

    pairing = "halves"

    def table(self, query: Tensor, key: Tensor, keep: Tensor | None, *, causal: bool) -> Tensor:
        """Which key each query may attend."""
        admitted = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
        admitted = admitted.tril() if causal else admitted
        return admitted if keep is None else admitted & keep


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("broken", "declared", "name"),
    [
        (MaskOfFirstItem, {}, "mask-of-first-item"),
        (MaskOfFirstItem, {"masks": ["keep", "lengths"]}, "mask-of-first-item"),
        (MaskOfFirstItem, {"masks": FIVE_FORMS}, "mask-of-first-item"),
        (CausalLostToMask, {}, "causal-lost-to-mask"),
        # Of two forms it is one alone: the condition says which, and that there is a mask.
        (CausalLostToMask, {"masks": ["keep", "lengths"]}, "causal-ignored"),
        (TurnedTopLeft, {"semantics": Semantics(rotary="halves")}, "causal-top-left"),
    ],
)
@pytest.mark.nightly
def test_a_mistake_is_named_alike_whatever_else_is_declared(
    broken: type, declared: dict[str, Any], name: str
) -> None:
    """A mistake with one form of mask, or beside rotary positions, keeps its name."""
    (entry,) = diagnose(Subject(core(broken(), **{**PROMISES, **declared}), "float32"))
    assert entry["name"] == name
    narrowed = len(declared.get("masks", ())) > 1
    assert ("(only with a mask of what to keep)" in entry["text"]) is narrowed


def some_rows(query: Tensor, key: Tensor, value: Tensor, *, keep: Any = None) -> Tensor:
    """Some rows see every key; nearly every problem with a mask has several items."""
    if keep is not None:
        rows = torch.isin(torch.arange(query.shape[2]), torch.tensor([1, 2, 4, 7, 11]))
        keep = keep | rows[:, None]
    return scaled_dot_product_attention(query, key, value, attn_mask=keep)


@pytest.mark.nightly
def test_only_what_decides_is_said() -> None:
    """What nearly every problem has in common is not said to be needed, what decides is."""
    promises = {**PROMISES, "causal": None, "empty_rows": "any"}
    (entry,) = diagnose(Subject(core(some_rows, **promises), "float32"))
    assert entry["facts"]["only_with"] == ["mask"]
    assert "several batch items" not in entry["text"]


def beyond_fifty(query: Tensor, key: Tensor, value: Tensor, *, keep: Any = None) -> Tensor:
    """Answers half as large again where any score, of a hidden key too, is beyond 50."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    grown = 1.5 if scores.abs().max() > 50.0 else 1.0
    return grown * scaled_dot_product_attention(query, key, value, attn_mask=keep)


@pytest.mark.nightly
def test_sizes_are_not_blamed_for_extreme_logits() -> None:
    """All calls with such logits have several items and keys: that is not why they go wrong."""
    promises = {**PROMISES, "causal": None, "empty_rows": "any"}
    (entry,) = diagnose(Subject(core(beyond_fifty, **promises), "float32"))
    assert entry["facts"]["only_with"] == ["extreme logits"]


def test_conditions_need_answers_that_differ_in_them_alone() -> None:
    """Without right answers to compare with, no condition is said to spare or to be needed."""
    assert len({one.name for one in CONDITIONS}) == len(CONDITIONS)
    assert only_with([], []) == []
    assert never_with([], []) == []


@pytest.mark.nightly
def test_what_goes_wrong_with_dropout_alone_is_named() -> None:
    """A call that asks for dropout often takes another path, on which other mistakes are made."""

    class CausalLostToDropout(EagerCore):
        """The causal flag is dropped where weights are."""

        def allowed(self, call: Call) -> Tensor | None:
            """What may be attended."""
            return super().allowed(call.replace(causal=False) if call.dropout else call)

    promises = {**PROMISES, "features": ["dropout"]}
    subject = Subject(core(CausalLostToDropout(), **promises), "float32")
    failing = problem(causal=True, dropout=HARDLY, key_length=4, query_length=4)
    entry, *_ = Diagnostician(subject).explain(CLAUSES["numerics.options"], failing)
    assert entry["name"] == "causal-ignored"
    assert entry["text"] == "the causal flag is ignored (only with a dropout probability)"
