"""The problems that a diagnosis asks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import conformance
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
from conformance.diagnosis.battery import battery


@conformance.core(masks=["keep"], causal="bottom-right")
def promises_nothing(
    query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None, causal: bool = False
) -> Tensor:
    """NaN for a row without keys, and the causal diagonal at the wrong corner."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    if causal:
        seen = torch.ones(scores.shape[-2:]).tril().bool()
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ value


@pytest.mark.parametrize(("rows", "asked"), [("any", False), ("zeros", True)])
def test_rows_without_keys_are_asked_where_promised(rows: str, asked: bool) -> None:  # noqa: FBT001
    """Where nothing is promised about rows without keys, no problem has one."""
    declare = conformance.core(masks=["keep"], causal="bottom-right", empty_rows=rows)
    subject = Subject(declare(promises_nothing.function), "float32")
    semantics = subject.declaration.semantics
    empty = [~inputs.allowed(semantics).any(dim=-1) for inputs in battery(subject)]
    assert any(bool(rows.any()) for rows in empty) == asked


def test_what_is_not_promised_is_not_named() -> None:
    """NaN in a row without keys, about which nothing is promised, is no part of the diagnosis."""
    found = diagnose(Subject(promises_nothing, "float32"))
    assert [entry["name"] for entry in found] == ["causal-top-left"]


def test_single_keys_are_asked_with_logits_far_off() -> None:
    """A finite fill shows where the only key of a row has a logit of at least ten million."""
    subject = Subject(promises_nothing, "float32")
    alone = [
        inputs
        for inputs in battery(subject)
        if inputs.keep is not None and bool((inputs.keep.sum(dim=-1) == 1).all())
    ]
    largest = max(float(subject.golden(inputs).core.scores.abs().max()) for inputs in alone)
    assert largest > 1e7
