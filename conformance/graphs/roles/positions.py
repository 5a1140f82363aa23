"""Whether the place of a key matters, though every key may be attended."""

from __future__ import annotations

from typing import Final

import numpy as np

from ..process import Array
from .assigning import Assignment
from .traits import Base

_SAID: Final = (
    "exchanging two keys changes the answer of a third token: positions are mixed in, or tokens "
    'are not kept apart; if positions are meant to be, declare them (such as position = "rotary")'
)
_LEAST: Final = 3


def about_positions(base: Base, assignment: Assignment) -> list[str]:
    """A sentence when the order of the first two keys matters to the last token.

    A softmax over keys sums over them in any order, under a causal rule, too: the last token
    attends to both.
    """
    at = assignment.length_axis
    lengths = {base.feeds[name].shape[at] for name in assignment.roles}
    if min(lengths) < _LEAST:
        return []
    exchanged = {name: _exchanged(base.feeds[name], at) for name in assignment.attended}
    answer = base.ask_with(exchanged)
    if answer is None or answer.ndim <= at or answer.shape != base.answer.shape:
        return []
    before, after = (np.take(one, [-1], axis=at) for one in (base.answer, answer))
    return [_SAID] if base.probe.changed(before, after).any() else []


def _exchanged(tokens: Array, at: int) -> Array:
    order = [1, 0, *range(2, tokens.shape[at])]
    return np.take(tokens, order, axis=at)
