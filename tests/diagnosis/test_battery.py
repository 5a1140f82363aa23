"""The problems that a diagnosis asks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import core, layer
from torch import Tensor

import conformance
from candidates.eager import EagerCore, EagerLayer
from conformance.clauses.subject import Subject
from conformance.diagnosis import Diagnostician, diagnose
from conformance.diagnosis.battery import Observation, battery


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


RIGHT = EagerCore()


def test_the_first_answers_of_a_long_battery_have_every_feature() -> None:
    """They are a part of all answers, and the candidate is called once for each of these."""
    called: list[int] = []

    def counted(*tensors: Tensor, **options: Any) -> Any:
        called.append(1)
        return RIGHT(*tensors, **options)

    observation = Observation(Subject(core(counted), "float32"))
    first = observation.first
    assert observation.is_long
    assert 0 < len(called) == len(first) < len(observation.whole) / 2
    assert len(called) == len(observation.whole)
    assert {id(one) for one in first} <= {id(one) for one in observation.whole}
    others = Observation(observation.subject).others
    assert len(called) == len(observation.whole)  # nothing is asked before it is taken
    rest = [one for one in observation.whole if id(one) not in set(map(id, first))]
    assert [one.problem for one in others] == [one.problem for one in rest]
    forms = {one.inputs.mask_form for one in first}
    assert forms == {None, "keep", "drop", "keep_int", "bias", "lengths"}
    for option in ("scale", "softcap", "window"):
        assert any(getattr(one.inputs, option) is not None for one in first)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_exponentials_of_half_precision_overflow_as_those_of_float32(dtype: str) -> None:
    """Logits past the range of the exponential are asked for, and taken in float32 by kernels."""

    def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query.float() @ key.float().mT * query.shape[-1] ** -0.5
        weights = scores.exp()
        weights = weights / weights.sum(-1, keepdim=True)
        return (weights @ value.float()).to(query.dtype)

    made = conformance.core(dtypes=[dtype], scores="fused")(fused)
    (entry,) = Diagnostician(Subject(made, dtype)).explain()
    assert entry["name"] == "maximum-not-subtracted"


class Zeroing(EagerLayer):
    """Zeroes the matrix and bias that it is given for its output, to fill them later."""

    def __init__(self, geometry: conformance.Geometry, weights: Any) -> None:
        super().__init__(geometry, weights)
        weights.o.zero_()
        if weights.o_bias is not None:
            weights.o_bias.zero_()


def test_a_layer_that_writes_into_its_weights_is_not_judged_by_them() -> None:
    """The zeros that it leaves are its answer, not the weights of the golden or of other layers."""
    promises: dict[str, Any] = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}
    (entry,) = diagnose(Subject(layer(Zeroing, **promises), "float32"))
    assert entry["name"] == "answer-zero"
    assert not diagnose(Subject(layer(**promises), "float32"))


class Lying(Tensor):
    """A tensor of which nothing can be taken off."""

    def __sub__(self, other: object) -> Any:
        """No tensor at all."""
        del other
        return 0


def test_no_operator_of_an_answer_is_called() -> None:
    """A tensor of a class of the candidate's own is looked at as the numbers that it holds."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return ((query @ key.mT).softmax(-1) @ value).as_subclass(Lying)

    (entry,) = diagnose(Subject(conformance.core(attend), "float32"))
    assert entry["name"] == "scale-missing"
