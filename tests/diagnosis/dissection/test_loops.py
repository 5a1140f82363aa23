"""Loops over tiles with wrong corrections are stated, and weights that no softmax makes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from examples import core
from torch import Tensor

from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
from conformance.diagnosis.battery import Observation
from conformance.diagnosis.dissection import read, readable
from conformance.diagnosis.dissection.influence import influence_facts
from conformance.diagnosis.dissection.loops import loop_statements
from conformance.diagnosis.mistaken_answer import DiagnosedSubject

# Weights, from the scaled scores and which keys are hidden.
Weights = Callable[[Tensor, Tensor], Tensor]


def weighing(weights: Weights, scale: Callable[[int], float] = lambda d: d**-0.5) -> Subject:
    """A core with other weights or another scale, by the head size."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        hidden = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
        return weights(query @ key.mT * scale(query.shape[-1]), hidden & causal) @ value

    candidate = core(attend, masks=[], causal="bottom-right", features=[], dtypes=["float32"])
    return Subject(candidate, "float32")


def softmax(scores: Tensor, hidden: Tensor) -> Tensor:
    """The right weights; rows without keys are zeros."""
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return weights.masked_fill(hidden.all(-1, keepdim=True), 0.0)


def no_softmax(scores: Tensor, hidden: Tensor) -> Tensor:
    """Logits that meet the values, minus infinities too."""
    return scores.masked_fill(hidden, -math.inf)


def reciprocal(scores: Tensor, hidden: Tensor) -> Tensor:
    """The scale divided by the dot products."""
    return softmax(scores.reciprocal(), hidden)


def of_last_tile(scores: Tensor, hidden: Tensor) -> Tensor:
    """Exponentials divided by the sum of the last tile of five keys."""
    powers = softmax(scores, hidden)
    start = (scores.shape[-1] - 1) // 5 * 5
    total = powers[..., start:].sum(-1, keepdim=True)
    return powers / torch.where(total == 0.0, 1.0, total)


def looping(correct: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Subject:
    """A core that goes over tiles of four keys, and corrects the weighted sum in another way.

    From the sum so far, the largest logit before a tile and the largest after it.
    """

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        old = torch.full_like(scores[..., :1], -math.inf)
        total, mixed = torch.zeros_like(old), torch.zeros(*scores.shape[:-1], value.shape[-1])
        for tile, values in zip(scores.split(4, -1), value.split(4, 2), strict=True):
            new = torch.maximum(old, tile.amax(-1, keepdim=True))
            powers = (tile - new).exp()
            total = total * (old - new).exp() + powers.sum(-1, keepdim=True)
            mixed = correct(mixed, old, new) + powers @ values
            old = new
        return mixed / total

    candidate = core(attend, masks=[], causal=None, features=[], dtypes=["float32"])
    return Subject(candidate, "float32")


SUM = "tiles of 4: the weighted sum so far is"
RIGHT = "exp(old maximum - new maximum)"
STATED: dict[str, tuple[Subject, str]] = {
    "no softmax": (weighing(no_softmax), "weights: made with the logits in place of the softmax"),
    "the last tile": (
        weighing(of_last_tile),
        "weights: the exponentials divided by the sum of the last tile of 5 keys alone",
    ),
    "another factor": (
        looping(lambda mixed, _old, new: mixed * new.exp()),
        f"{SUM} multiplied by exp(the new maximum), not by {RIGHT}",
    ),
    "added in place of multiplied": (
        looping(lambda mixed, old, new: mixed + (old - new).exp()),
        f"{SUM} added to {RIGHT}, not multiplied",
    ),
    "the reciprocal": (weighing(reciprocal), "scores: replaced by their reciprocals"),
    "half of the head size": (
        weighing(softmax, lambda d: 2.0 / d),
        "logits: scaled by 2 times the head size to the power of -1",
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("wrong", STATED, ids=str)
def test_formulas_of_the_weights_are_stated(wrong: str) -> None:
    """Logits in place of weights, their reciprocal, and powers of the head size."""
    subject, name = STATED[wrong]
    (entry,) = diagnose(subject)
    assert entry["name"] == name
    assert entry["fix"]


def test_no_loop_is_read_from_right_weights() -> None:
    """The weights of a right candidate give no statement."""
    subject = DiagnosedSubject(weighing(softmax))
    answers = [one for one in Observation(subject, None).whole if readable(one.inputs)]
    readings = [read(subject, one.inputs) for one in answers]
    assert len(list(filter(None, readings))) > 1
    for one in filter(None, readings):
        assert not list(loop_statements(one))


def test_tiles_of_an_unknown_correction_are_a_fact() -> None:
    """Of a factor that no statement knows it is said between which tiles weights go wrong."""
    unknown = DiagnosedSubject(looping(lambda mixed, old, new: mixed * (0.3 + (old - new).exp())))
    answers = [one.inputs for one in Observation(unknown, None).whole if readable(one.inputs)]
    fact = (
        "within each tile of 4 keys weights are in the right proportion, but not from one tile to "
        "another"
    )
    assert [fact] in [influence_facts(unknown, one) for one in answers if one.generic]
