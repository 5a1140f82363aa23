"""Causality and windows lost, turned round, placed elsewhere, or of another width."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...declare.declaration import mixed_in
from ...problems.inputs import Inputs
from ._steps import changed, has_causal, has_window, keys_ahead, relogited
from .named import Asked, NamedMistake, Question, mistakes

_BLOCKS: Final = (2, 4, 8, 16, 32)


def _seen(table: Callable[[Asked], Tensor]) -> Question:
    """Another table in place of the triangle."""

    def question(asked: Asked) -> Inputs | None:
        inputs = asked.inputs
        if not inputs.causal:
            return None
        seen = table(asked)
        keep = seen[None, None] if inputs.keep is None else inputs.keep & seen
        return inputs.replace(keep=keep, causal=False)

    return question


def _by_blocks(size: int) -> Callable[[Asked], Tensor]:
    def table(asked: Asked) -> Tensor:
        ahead = keys_ahead(asked)
        keys = torch.arange(ahead.shape[1])
        places = keys - ahead
        return keys.div(size, rounding_mode="floor") <= places.div(size, rounding_mode="floor")

    return table


def _either(asked: Asked) -> Inputs | None:
    inputs = asked.inputs
    if not inputs.causal or inputs.keep is None:
        return None
    return inputs.replace(keep=inputs.keep | (keys_ahead(asked) <= 0), causal=False)


def _positions_count(point: golden.Semantics, alignment: str) -> bool:
    """Whether places of tokens change heads or scores, queries aligned in one way."""
    return mixed_in(point) is not None and point.causal_alignment == alignment


CAUSALITY: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "causal-ignored",
        "mask.causal",
        "the causal flag is ignored",
        "hide the keys after each query when it is set, whether a mask is given or not",
        {"question": changed(has_causal, causal=False)},
    ),
    *mistakes(
        "causal-needs-mask",
        "mask.causal",
        "the causal flag takes effect only where a mask is given too",
        "hide the keys after each query whether a mask is given or not",
        {"question": changed(lambda inputs: inputs.causal and not inputs.masked, causal=False)},
        special_of="causal-ignored",
    ),
    *mistakes(
        "causal-only-when-square",
        "mask.causal-alignment",
        "the causal flag is dropped where there are more or fewer keys than queries",
        "align the triangle as declared and apply it to every shape",
        {
            "question": changed(
                lambda inputs: (
                    inputs.causal and inputs.geometry.query_length != inputs.geometry.key_length
                ),
                causal=False,
            )
        },
        special_of="causal-ignored",
    ),
    *mistakes(
        "causal-sees-only-the-future",
        "mask.causal",
        "the triangle is the upper one: a query sees the future and not the past",
        "hide the keys after each query: tril, not triu",
        {"question": _seen(lambda asked: keys_ahead(asked) >= 0)},
        {"question": _seen(lambda asked: keys_ahead(asked) > 0)},
        {"question": _seen(lambda asked: keys_ahead(asked, bottom_right=False) >= 0)},
        {"question": _seen(lambda asked: keys_ahead(asked, bottom_right=False) > 0)},
    ),
    *mistakes(
        "causal-by-blocks",
        "mask.causal",
        "causality is kept between blocks of tokens and forgotten inside a block",
        "compare positions of tokens, not of blocks",
        *({"question": _seen(_by_blocks(size))} for size in _BLOCKS),
        special_of="causal-ignored",
    ),
    # Where positions are turned into queries and keys, the triangle alone may stand elsewhere.
    *mistakes(
        "causal-top-left",
        "mask.causal-alignment",
        "the causal diagonal starts at the first query and key (top-left)",
        "align it at the last query and key (bottom-right), as declared: diagonal=Lk - Lq",
        {
            "question": _seen(lambda asked: keys_ahead(asked, bottom_right=False) <= 0),
            "fits": lambda point: _positions_count(point, "bottom-right"),
            "base": {"rotary": "halves"},
        },
    ),
    *mistakes(
        "causal-bottom-right",
        "mask.causal-alignment",
        "the causal diagonal ends at the last query and key (bottom-right)",
        "align it at the first query and key (top-left), as declared: diagonal=0",
        {
            "question": _seen(lambda asked: keys_ahead(asked, bottom_right=True) <= 0),
            "fits": lambda point: _positions_count(point, "top-left"),
            "base": {"rotary": "halves", "causal_alignment": "top-left"},
        },
    ),
    *mistakes(
        "causal-or-mask",
        "mask.causal-and-mask",
        "a key is attended when causality or the mask admits it",
        "combine the two with and, not or",
        {"question": _either},
    ),
)


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
