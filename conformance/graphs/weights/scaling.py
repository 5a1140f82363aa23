"""The factor between raw projections and logits, and what may be said of it."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from .answers import Answers
from .probing import ROUNDINGS

Array = np.ndarray[Any, Any]

FOLDED: Final = (
    "no factor between the graph's own weights and its logits: a scale that was folded into the "
    "weights cannot be told from one that is missing"
)
# The share of the scores that must agree on a factor, 1 in so many: what a graph that is always
# causal leaves of more keys than queries, while factors that are none agree by chance in 1 of 50.
FEWEST: Final = 8
UNKNOWN: Final = "attention up to gauge; scale and head layout not verified"


def measured_factor(answers: Answers) -> float | None:
    """What lies between the product of query and key and the softmax, as a factor.

    Entries that a mask fills agree on no factor; a bias that depends on no token cancels between
    two calls. None where no factor explains enough of the entries.
    """
    if not answers.products:
        return None
    return _voted(answers.scores[0], answers.products[0], answers) or _voted(
        answers.scores[0] - answers.scores[1], answers.products[0] - answers.products[1], answers
    )


def _voted(scores: Array, products: Array, answers: Answers) -> float | None:
    if scores.size != products.size:
        return None
    scores, products = scores.reshape(-1), products.reshape(-1)
    live = np.isfinite(scores) & (np.abs(products) > np.sqrt(answers.roundoff))
    if not live.any():
        return None
    ratios = np.sort(scores[live] / products[live])
    ratios = ratios[ratios > 0]
    upper = ratios * (1 + 2 * ROUNDINGS * answers.roundoff)
    votes = np.searchsorted(ratios, upper, side="right") - np.arange(len(ratios))
    if not len(votes) or votes.max() * FEWEST < live.sum():
        return None
    first = int(votes.argmax())
    return float(np.median(ratios[first : first + votes[first]]))


def snapped(factor: float, head_size: int, roundoff: float) -> float:
    """A measured factor, exactly 1 or ``1/sqrt(D)`` where it is one of them but for roundings."""
    for exact in (1 / math.sqrt(head_size), 1.0):
        if abs(factor - exact) <= 2 * ROUNDINGS * roundoff * exact:
            return exact
    return factor


def gauge_of(scale: float | None, head_size: int) -> str:
    """What is not verified of a scale between the graph's own weights and its logits."""
    if scale is None:
        return "the factor between projections and logits was not found: scale not verified"
    return FOLDED if scale == 1.0 and head_size > 1 else ""
