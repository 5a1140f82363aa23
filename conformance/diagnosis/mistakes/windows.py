"""Windows lost, placed elsewhere, or of another width."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from ..._golden import golden
from ...problems.inputs import Inputs
from ._given import changed, has_window, keys_ahead
from ._steps import relogited
from .named import Asked, NamedMistake, Question, mistakes

_ALIGN: Final = "align the diagonal as declared"


def _rewindowed(change: Callable[[int, int], tuple[int, int] | None]) -> Question:
    def question(asked: Asked) -> Inputs | None:
        window = asked.inputs.window
        return None if window is None else asked.inputs.replace(window=change(*window))

    return question


def _window_at(*, bottom_right: bool) -> Question:
    """The window is placed by an alignment, causality stays as declared."""

    def question(asked: Asked) -> Inputs | None:
        inputs = asked.inputs
        if inputs.window is None:
            return None
        left, right = inputs.window
        ahead = keys_ahead(asked, bottom_right=bottom_right)
        seen = ((ahead >= -left) | (left < 0)) & ((ahead <= right) | (right < 0))
        keep = seen[None, None] if inputs.keep is None else inputs.keep & seen
        return inputs.replace(window=None, keep=keep)

    return question


def _narrower(asked: Asked, attention: golden.Attention) -> golden.Attention | None:
    """One key fewer on the left: a window of n shows n keys, the query's own among them."""
    window = asked.inputs.window
    if window is None or window[0] < 0:
        return None
    hidden = keys_ahead(asked) <= -window[0]
    return relogited(attention, attention.logits.masked_fill(hidden, -math.inf))


WINDOWS: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "window-ignored",
        "mask.golden",
        "the window is ignored",
        "hide the keys outside of it",
        {"question": changed(has_window, window=None)},
    ),
    *mistakes(
        "window-one-wider",
        "mask.golden",
        "the window shows one key more than asked for, on one side or on both",
        "a window of n shows n keys before the query's own place and n after",
        {"changes": {"window_offset": 1}},
        {"question": _rewindowed(lambda left, right: (left + (left >= 0), right))},
    ),
    *mistakes(
        "window-one-narrower",
        "mask.golden",
        "the window shows one key fewer than asked for on a side",
        "a window of n shows n keys beside the query's own",
        {"changes": {"window_offset": -1}},
        {"core": _narrower},
        {"question": _rewindowed(lambda left, right: (left - (left > 0), right))},
        where=has_window,
    ),
    *mistakes(
        "window-sides-swapped",
        "mask.golden",
        "the left and right sides of the window are swapped",
        "window=(left, right): keys before the query's place, and after",
        {"question": _rewindowed(lambda left, right: (right, left))},
    ),
    *mistakes(
        "window-left-ignored",
        "mask.golden",
        "the left side of the window is ignored",
        "hide the keys outside of it",
        {"question": _rewindowed(lambda _left, right: (-1, right))},
        special_of="window-ignored",
    ),
    *mistakes(
        "window-right-ignored",
        "mask.golden",
        "the right side of the window is ignored",
        "hide the keys outside of it",
        {"question": _rewindowed(lambda left, _right: (left, -1))},
        special_of="window-ignored",
    ),
    *mistakes(
        "window-top-left",
        "mask.golden",
        "the window is placed as if the first query stood at the first key",
        _ALIGN,
        {"question": _window_at(bottom_right=False)},
        special_of="causal-top-left",
    ),
    *mistakes(
        "window-bottom-right",
        "mask.golden",
        "the window is placed as if the last query stood at the last key",
        _ALIGN,
        {"question": _window_at(bottom_right=True)},
        special_of="causal-bottom-right",
    ),
)
