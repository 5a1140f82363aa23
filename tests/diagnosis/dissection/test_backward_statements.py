"""Which gradients are computed instead is read for each of them, and checked before it is said."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from examples import core, problem
from torch import Tensor

from candidates.broken._backward import HandWritten, Steps
from candidates.broken._prepared import Prepared
from candidates.broken.reported.training import BiasGradientIsZero
from conformance import Semantics
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis.backward import BackwardDiagnostician
from conformance.diagnosis.dissection import backward
from conformance.diagnosis.dissection.backward import _OF_CATALOGUE
from conformance.diagnosis.dissection.backward_variants import RIGHT, Variant
from conformance.diagnosis.dissection.read_gradients import read_variants
from conformance.diagnosis.mistakes import BACKWARD


class QueryHalved(HandWritten):
    """The gradient of the query is halved."""

    def query_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        """Of the query."""
        return super().query_gradient(steps, scores) / 2.0


class Shifted(HandWritten):
    """A hundredth is added to each weight of the values: no variant does so."""

    def value_gradient(self, steps: Steps, weights: Tensor) -> Tensor:
        """Of the value, for each query head."""
        return (weights + 0.01).mT @ steps.gradient


def entry(candidate: Candidate) -> dict[str, Any]:
    """The only thing that is said of a candidate's gradients."""
    diagnostician = BackwardDiagnostician(Subject(candidate, "float32"))
    (only,) = diagnostician.explain("gradients.golden", problem())
    return only


class KeyCut(Prepared):
    """Keys and queries are normalised, and no gradient flows back to the key."""

    norm = "layer"

    def prepare(
        self, query: Tensor, key: Tensor, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Normalised."""
        query, key = super().prepare(query, key, here, there)
        return query, key.detach() + 0.0 * key


def test_behind_norm_and_rotation_mistakes_have_their_usual_names() -> None:
    """Preparation is passed by every backward pass that is acted out."""
    point = Semantics(qk_norm="layer")
    wrong = core(KeyCut(), semantics=point, features=["scale"], masks=[])
    assert entry(wrong)["name"] == "gradient-of-key-cut"


def test_what_fits_no_variant_stays_unknown() -> None:
    """No statement is made that does not hold in all problems."""
    unknown = entry(core(Shifted()))
    assert unknown["name"] == "unknown-mistake"
    assert unknown["facts"]["gradients"] == ["value"]


def test_of_zeros_no_variant_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any variant times 0 is zero: the right pass says as much."""
    tried: list[Any] = []
    multiples = backward._multiples

    def counted(variant: Variant, role: str, wrong: Any) -> Any:
        tried.append(variant)
        return multiples(variant, role, wrong)

    monkeypatch.setattr(backward, "_multiples", counted)
    assert entry(BiasGradientIsZero)["name"] == "gradient of additive mask: zero"
    assert set(tried) == {RIGHT}


def test_one_number_is_said_before_variants_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right gradients times a number are simpler than any variant: they are checked first."""

    def read(_readings: Any) -> Any:
        pytest.fail("variants are read")

    monkeypatch.setattr(backward, "_read_variants", read)
    assert entry(core(QueryHalved()))["name"] == "gradient of query: 1/2 times what it must be"


def test_names_of_numbers_are_in_the_catalogue() -> None:
    """A number that has a name in the catalogue takes sentence and fix from there."""
    assert set(_OF_CATALOGUE.values()) <= {mistake.name for mistake in BACKWARD}


@pytest.mark.parametrize("number", [math.inf, math.nan, 0.0])
def test_no_length_is_read_of_gradients_that_have_none(number: float) -> None:
    """Infinite gradients, and none at all, are cut to no length; reading them raises nothing."""
    exact = torch.ones(1, 1, 2, 3).double()
    observed = [(number * exact, exact), (number * exact, 2.0 * exact)]
    assert not list(read_variants("query", observed))
