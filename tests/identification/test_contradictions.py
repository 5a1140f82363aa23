"""``check`` warns where a declaration contradicts its candidate, and nowhere else."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import candidates
import conformance
from conformance.base.record import Reading
from conformance.identification.contradictions import contradictions
from conformance.identification.opening import resolve
from conformance.running.workers.messages import RunOptions
from conformance.session.checking import check

pytestmark = pytest.mark.usefixtures("warm_workers")


def attend(scores: Tensor, value: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Softmax and weighted sum, hidden logits at -1e9."""
    filled = scores if hidden is None else scores.masked_fill(hidden, -1e9)
    return filled.softmax(-1) @ value


def scores_of(query: Tensor, key: Tensor) -> Tensor:
    """Scaled dot products."""
    return query @ key.mT / query.shape[-1] ** 0.5


def drops(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
    """True ignores."""
    return attend(scores_of(query, key), value, keep)


def top_left(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """The triangle from the first query and key."""
    scores = scores_of(query, key)
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return attend(scores, value, ~seen if causal else None)


def averages(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
    """A finite fill: an empty row is the mean of all values."""
    return attend(scores_of(query, key), value, None if keep is None else ~keep)


def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """No scale."""
    return attend(query @ key.mT, value)


def always_top_left(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The triangle that nothing turns off."""
    return top_left(query, key, value, causal=True)


UNASKED = {"causal": "top-left", "always_causal": True}


@pytest.mark.parametrize(
    ("function", "promises", "said"),
    [
        (drops, {"masks": ["keep"]}, "True in it ignores a key"),
        (top_left, {"causal": "bottom-right"}, "the diagonal is top-left"),
        (averages, {"masks": ["keep"], "empty_rows": "zeros"}, "the mean of all values"),
        (unscaled, {}, "it is none: the dot products are not scaled"),
        (always_top_left, {**UNASKED, "causal": "bottom-right"}, "the diagonal is top-left"),
        (averages, UNASKED, "plain answers are those without causality"),
    ],
)
def test_contradictions(function: object, promises: dict[str, object], said: str) -> None:
    """Polarity, alignment, empty rows and scale: the other convention is named."""
    candidate = conformance.core(**promises)(function)  # type: ignore[arg-type]  # a function
    (sentence,) = contradictions(candidate)
    assert said in sentence


@pytest.mark.parametrize(
    ("function", "promises"),
    [
        (drops, {"masks": ["drop"]}),
        (top_left, {"causal": "top-left"}),
        (averages, {"masks": ["keep"], "empty_rows": "mean-of-all"}),
        (unscaled, {"semantics": conformance.STANDARD.replace(scale="none")}),
        (always_top_left, UNASKED),
    ],
)
def test_true_declarations_are_left_alone(function: object, promises: dict[str, object]) -> None:
    """The same functions under what they really do give no warning."""
    if promises.get("masks") == ["drop"]:
        promised = conformance.core(**promises)(  # type: ignore[arg-type]  # promises
            lambda query, key, value, *, drop=None: drops(query, key, value, keep=drop)
        )
    else:
        promised = conformance.core(**promises)(function)  # type: ignore[arg-type]  # a function
    assert contradictions(promised) == []


def test_no_warning_for_what_is_correct() -> None:
    """None of some shipped candidates, all of which do as they declare, is warned about."""
    for candidate in resolve([candidates.__name__])[::6]:
        assert contradictions(candidate) == [], candidate.name


def test_check_warns(workspace: object) -> None:
    """The record of ``check`` holds the warning of a candidate that fails by it."""
    del workspace
    options = RunOptions(
        targets=(f"{__file__}:inverted",), profile="quick", only=("mask.golden", "numerics.golden")
    )
    (entry,) = check(options)["candidates"]
    assert entry["verdict"] == "fails"
    (warning,) = entry["warnings"]
    assert "True in it ignores a key" in warning


inverted = conformance.core(masks=["keep"], name="inverted")(drops)


def test_of_undeclared_code_nothing_is_promised() -> None:
    """The same is said as an expectation, since nobody declared it."""
    declared = conformance.core()(unscaled)
    (promised,) = contradictions(declared)
    (expected,) = contradictions(dataclasses.replace(declared, reading=Reading(unread="")))
    assert promised.startswith("declared scale ")
    assert expected == promised.replace("declared", "expected")
