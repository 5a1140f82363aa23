"""Attention sinks lost, shared, scaled, or given a value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ._given import changed
from .named import Asked, CoreChange, NamedMistake, Question, mistakes

_SINKS: Final = "sinks.golden"
_FIX: Final = "add exp(sink of the head) to the sum of each row's exponentials, and nothing else"


def has_sinks(inputs: Inputs) -> bool:
    """Whether heads have sinks."""
    return inputs.sinks is not None


def _sunk(change: Callable[[Asked, Tensor], Tensor]) -> Question:
    def question(asked: Asked) -> Inputs | None:
        sinks = asked.inputs.sinks
        if sinks is None:
            return None
        return asked.inputs.replace(sinks=change(asked, sinks.double()))

    return question


def _valued(value_of: Callable[[Tensor], Tensor]) -> CoreChange:
    """The sink's weight goes to a value ``[B, H, 1, Dv]`` made of the others."""

    def core(asked: Asked, attention: golden.Attention) -> golden.Attention | None:
        if asked.inputs.sinks is None or attention.value.shape[-2] == 0:
            return None
        share = 1.0 - attention.weights.sum(dim=-1, keepdim=True)
        output = attention.output + share * value_of(attention.value)
        return dataclasses.replace(attention, output=output)

    return core


SINKS: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "sinks-ignored",
        _SINKS,
        "the sinks are ignored",
        _FIX,
        {"question": changed(has_sinks, sinks=None)},
    ),
    *mistakes(
        "sink-of-first-head",
        _SINKS,
        "the sink of the first head is used for all",
        _FIX,
        {"question": _sunk(lambda _asked, sinks: sinks[:1].expand(sinks.shape))},
    ),
    *mistakes(
        "sinks-reversed",
        _SINKS,
        "sinks are given to the heads in the opposite order",
        _FIX,
        {"question": _sunk(lambda _asked, sinks: sinks.flip(0))},
    ),
    *mistakes(
        "sink-scaled",
        _SINKS,
        "the sink is scaled like a dot product",
        _FIX,
        {"question": _sunk(lambda asked, sinks: asked.scale * sinks)},
    ),
    *mistakes(
        "sink-not-exponentiated",
        _SINKS,
        "the sink itself, not its exponential, joins the sum",
        _FIX,
        {"question": _sunk(lambda _asked, sinks: sinks.abs().log())},
    ),
    *mistakes(
        "sink-with-value",
        _SINKS,
        "the weight of the sink goes to a value",
        _FIX,
        {"core": _valued(lambda value: value.mean(dim=2, keepdim=True))},
        {"core": _valued(lambda value: value[:, :, :1])},
        where=has_sinks,
    ),
)
