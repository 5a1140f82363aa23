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
from .named_mistake import DeclaredCall, InputsChange, NamedMistake, named

_BLOCKS: Final = (2, 4, 8, 16, 32)


def _in_place_of_triangle(table: Callable[[DeclaredCall], Tensor]) -> InputsChange:
    """Another table in place of the triangle."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if not inputs.causal:
            return None
        admitted = table(call)
        keep = admitted[None, None] if inputs.keep is None else inputs.keep & admitted
        return inputs.replace(keep=keep, causal=False)

    return inputs_for


def _by_blocks(size: int) -> Callable[[DeclaredCall], Tensor]:
    def table(call: DeclaredCall) -> Tensor:
        ahead = keys_ahead(call)
        keys = torch.arange(ahead.shape[1])
        places = keys - ahead
        return keys.div(size, rounding_mode="floor") <= places.div(size, rounding_mode="floor")

    return table


def _either(call: DeclaredCall) -> Inputs | None:
    inputs = call.inputs
    if not inputs.causal or inputs.keep is None:
        return None
    return inputs.replace(keep=inputs.keep | (keys_ahead(call) <= 0), causal=False)


def _positions_count(point: golden.Semantics, alignment: str) -> bool:
    """Whether places of tokens change heads or scores, queries aligned in one way."""
    return mixed_in(point) is not None and point.causal_alignment == alignment


CAUSALITY: Final[tuple[NamedMistake, ...]] = (
    *named("causal-ignored", "mask.causal")(
        "the causal flag is ignored",
        "hide the keys after each query when it is set, whether a mask is given or not",
        {"inputs": changed(has_causal, causal=False)},
    ),
    *named("causal-needs-mask", "mask.causal", special_of="causal-ignored", needs="mask")(
        "the causal flag takes effect only where a mask is given too",
        "hide the keys after each query whether a mask is given or not",
        {"inputs": changed(lambda inputs: inputs.causal and not inputs.masked, causal=False)},
    ),
    *named("causal-only-when-square", "mask.causal-alignment", special_of="causal-ignored")(
        "the causal flag is dropped where there are more or fewer keys than queries",
        "align the triangle as declared and apply it to every shape",
        {
            "inputs": changed(
                lambda inputs: (
                    inputs.causal and inputs.geometry.query_length != inputs.geometry.key_length
                ),
                causal=False,
            )
        },
    ),
    *named("causal-sees-only-the-future", "mask.causal")(
        "the triangle is the upper one: a query sees the future and not the past",
        "hide the keys after each query: tril, not triu",
        {"inputs": _in_place_of_triangle(lambda call: keys_ahead(call) >= 0)},
        {"inputs": _in_place_of_triangle(lambda call: keys_ahead(call) > 0)},
        {"inputs": _in_place_of_triangle(lambda call: keys_ahead(call, bottom_right=False) >= 0)},
        {"inputs": _in_place_of_triangle(lambda call: keys_ahead(call, bottom_right=False) > 0)},
    ),
    *named("causal-by-blocks", "mask.causal", special_of="causal-ignored")(
        "causality is kept between blocks of tokens and forgotten inside a block",
        "compare positions of tokens, not of blocks",
        *({"inputs": _in_place_of_triangle(_by_blocks(size))} for size in _BLOCKS),
    ),
    # Where positions are turned into queries and keys, the triangle alone may stand elsewhere.
    *named("causal-top-left", "mask.causal-alignment")(
        "the causal diagonal starts at the first query and key (top-left)",
        "align it at the last query and key (bottom-right), as declared: diagonal=Lk - Lq",
        {
            "inputs": _in_place_of_triangle(lambda call: keys_ahead(call, bottom_right=False) <= 0),
            "fits": lambda point: _positions_count(point, "bottom-right"),
            "base": {"rotary": "halves"},
        },
    ),
    *named("causal-bottom-right", "mask.causal-alignment")(
        "the causal diagonal ends at the last query and key (bottom-right)",
        "align it at the first query and key (top-left), as declared: diagonal=0",
        {
            "inputs": _in_place_of_triangle(lambda call: keys_ahead(call, bottom_right=True) <= 0),
            "fits": lambda point: _positions_count(point, "top-left"),
            "base": {"rotary": "halves", "causal_alignment": "top-left"},
        },
    ),
    *named("causal-or-mask", "mask.causal-and-mask")(
        "a key is attended when causality or the mask admits it",
        "combine the two with and, not or",
        {"inputs": _either},
    ),
)


_ALIGN: Final = "align the diagonal as declared"


def _rewindowed(change: Callable[[int, int], tuple[int, int] | None]) -> InputsChange:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        window = call.inputs.window
        return None if window is None else call.inputs.replace(window=change(*window))

    return inputs_for


def _window_at(*, bottom_right: bool) -> InputsChange:
    """The window is placed by an alignment, causality stays as declared."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if inputs.window is None:
            return None
        left, right = inputs.window
        ahead = keys_ahead(call, bottom_right=bottom_right)
        admitted = ((ahead >= -left) | (left < 0)) & ((ahead <= right) | (right < 0))
        keep = admitted[None, None] if inputs.keep is None else inputs.keep & admitted
        return inputs.replace(window=None, keep=keep)

    return inputs_for


def _narrower(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
    """One key fewer on the left: a window of n shows n keys, the query's own among them."""
    window = call.inputs.window
    if window is None or window[0] < 0:
        return None
    hidden = keys_ahead(call) <= -window[0]
    return relogited(attention, attention.logits.masked_fill(hidden, -math.inf))


WINDOWS: Final[tuple[NamedMistake, ...]] = (
    *named("window-ignored", "mask.golden")(
        "the window is ignored",
        "hide the keys outside of it",
        {"inputs": changed(has_window, window=None)},
    ),
    *named("window-one-wider", "mask.golden")(
        "the window shows one key more before the query than asked for",
        "a window of n shows n keys before the query's own place and n after",
        {"inputs": _rewindowed(lambda left, right: (left + (left >= 0), right))},
        {
            "sentence": "the window shows one key more than asked for on both sides of the query",
            "changes": {"window_offset": 1},
        },
    ),
    *named("window-one-narrower", "mask.golden", where=has_window)(
        "the window shows one key fewer before the query than asked for",
        "a window of n shows n keys beside the query's own",
        {"core": _narrower},
        {"inputs": _rewindowed(lambda left, right: (left - (left > 0), right))},
        {
            "sentence": "the window shows one key fewer than asked for on both sides of the query",
            "changes": {"window_offset": -1},
        },
    ),
    *named("window-sides-swapped", "mask.golden")(
        "the left and right sides of the window are swapped",
        "window=(left, right): keys before the query's place, and after",
        {"inputs": _rewindowed(lambda left, right: (right, left))},
    ),
    *named("window-left-ignored", "mask.golden", special_of="window-ignored")(
        "the left side of the window is ignored",
        "hide the keys outside of it",
        {"inputs": _rewindowed(lambda _left, right: (-1, right))},
    ),
    *named("window-right-ignored", "mask.golden", special_of="window-ignored")(
        "the right side of the window is ignored",
        "hide the keys outside of it",
        {"inputs": _rewindowed(lambda left, _right: (left, -1))},
    ),
    *named("window-top-left", "mask.golden", special_of="causal-top-left")(
        "the window is placed as if the first query stood at the first key",
        _ALIGN,
        {"inputs": _window_at(bottom_right=False)},
    ),
    *named("window-bottom-right", "mask.golden", special_of="causal-bottom-right")(
        "the window is placed as if the last query stood at the last key",
        _ALIGN,
        {"inputs": _window_at(bottom_right=True)},
    ),
)
