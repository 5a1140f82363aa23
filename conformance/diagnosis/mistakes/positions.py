"""Rotary positions and linear biases turned, counted or weighed otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from .named import Asked, Heads, HeadsChange, NamedMistake, Question, mistakes

_ROTARY: Final = "position.rotary"
_ALIBI: Final = "bias.alibi"
_TURN: Final = "turn query and key by position times base^(-2i/R), each at its own position"
_SLOPES: Final = "take slope times distance off the scaled scores"
# The rotations at which such a mistake is acted out, and the biases.
_HALVES: Final = {"rotary": "halves"}
_INTERLEAVED: Final = {"rotary": "interleaved"}
_LINEAR: Final = {"alibi": True}


def _turns(point: golden.Semantics) -> bool:
    return point.rotary != "none"


def _places(query: Tensor, key: Tensor, point: golden.Semantics) -> tuple[Tensor, Tensor]:
    lengths = query.shape[-2], key.shape[-2]
    return golden.query_positions(*lengths, point), torch.arange(lengths[1])


def _turned(
    query: Callable[[Tensor], Tensor] | None = None,
    key: Callable[[Tensor], Tensor] | None = None,
    value: Callable[[Tensor], Tensor] | None = None,
) -> HeadsChange:
    """Heads that are turned by so much more before they are turned as declared.

    Each function gets the positions of its tokens.
    """

    def heads(asked: Asked, given: Heads) -> Heads:
        here, there = _places(given[0], given[1], asked.semantics)
        changes = zip(given, (query, key, value), (here, there, there), strict=True)
        one, two, three = (
            tokens if more is None else golden.rotate_heads(tokens, more(place), asked.semantics)
            for tokens, more, place in changes
        )
        return one, two, three

    return heads


def _from_the_other_end(asked: Asked, given: Heads) -> Heads:
    """Queries stand where the other alignment has them."""
    query, key, value = given
    shift = key.shape[-2] - query.shape[-2]
    shift = -shift if asked.semantics.causal_alignment == "bottom-right" else shift
    moved = torch.full((query.shape[-2],), float(shift))
    return golden.rotate_heads(query, moved, asked.semantics), key, value


def _linear(change: Callable[[Asked, Tensor], Tensor]) -> Question:
    """Another bias by distance: what it lacks to the declared one joins the given bias."""

    def question(asked: Asked) -> Inputs | None:
        inputs, sizes = asked.inputs, asked.inputs.geometry
        lengths = sizes.query_length, sizes.key_length
        places = golden.query_positions(*lengths, asked.semantics)
        right = golden.alibi_bias(sizes.num_heads, places, sizes.key_length)
        more = change(asked, right) - right
        return inputs.replace(bias=more if inputs.bias is None else inputs.bias.double() + more)

    return question


def _of_slopes(slopes: Callable[[int], Tensor]) -> Callable[[Asked, Tensor], Tensor]:
    def change(asked: Asked, right: Tensor) -> Tensor:
        heads = asked.inputs.geometry.num_heads
        return right * (slopes(heads) / golden.alibi_slopes(heads))[:, None, None]

    return change


def _one_sequence(heads: int) -> Tensor:
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)


def _from_the_first_query(asked: Asked, _right: Tensor) -> Tensor:
    sizes = asked.inputs.geometry
    places = torch.arange(sizes.query_length)
    return golden.alibi_bias(sizes.num_heads, places, sizes.key_length)


def _signed(asked: Asked, right: Tensor) -> Tensor:
    sizes = asked.inputs.geometry
    places = golden.query_positions(sizes.query_length, sizes.key_length, asked.semantics)
    return torch.where(torch.arange(sizes.key_length) > places[:, None], -right, right)


def _rotary(name: str, text: str, *ways: dict[str, Any]) -> list[NamedMistake]:
    """A mistake that either pairing may make; acted out with halves."""
    shared = {"base": _HALVES, "fits": _turns}
    return mistakes(name, _ROTARY, text, _TURN, *({**shared, **way} for way in ways))


def _alibi(name: str, text: str, *ways: dict[str, Any]) -> list[NamedMistake]:
    return mistakes(name, _ALIBI, text, _SLOPES, *({"base": _LINEAR, **way} for way in ways))


POSITIONS: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "rotary-pairing",
        _ROTARY,
        "other channels are turned together: halves for neighbours, or the reverse",
        "pair channel i with i + R/2 (halves) or channel 2i with 2i + 1, as declared",
        {"base": _HALVES, "changes": {"rotary": "interleaved"}},
        {"base": _INTERLEAVED, "changes": {"rotary": "halves"}},
    ),
    *_rotary(
        "rotary-base",
        "the base of the rotary frequencies is another",
        *({"changes": {"rotary_base": base}} for base in (1000.0, 500000.0, 1000000.0)),
    ),
    *_rotary("rotary-missing", "queries and keys are not turned", {"changes": {"rotary": "none"}}),
    *_rotary(
        "rotary-query-only",
        "queries are turned and keys are not",
        {"heads": _turned(key=lambda place: -place)},
    ),
    *_rotary(
        "rotary-key-only",
        "keys are turned and queries are not",
        {"heads": _turned(query=lambda place: -place)},
    ),
    *_rotary(
        "rotary-backwards",
        "queries and keys are turned in opposite directions",
        {"heads": _turned(key=lambda place: -2 * place)},
        {"heads": _turned(query=lambda place: -2 * place)},
    ),
    *_rotary(
        "rotary-twice",
        "queries and keys are turned twice",
        {"heads": _turned(query=lambda place: place, key=lambda place: place)},
    ),
    *_rotary(
        "rotary-value-too",
        "values are turned like keys",
        {"heads": _turned(value=lambda place: place)},
    ),
    *_rotary(
        "rotary-off-by-one",
        "positions of queries and keys are counted from different numbers",
        {"heads": _turned(key=torch.ones_like)},
        {"heads": _turned(query=torch.ones_like)},
    ),
    *_rotary(
        "rotary-offset",
        "queries are counted from the other end of the keys, as if nothing were cached",
        {"heads": _from_the_other_end},
    ),
    *mistakes(
        "rotary-fraction",
        "position.rotary-partial",
        "all channels are turned, not the declared fraction",
        "leave the channels beyond the fraction as they are",
        {
            "base": {"rotary": "interleaved", "rotary_fraction": 0.5},
            "fits": lambda point: point.rotary != "none" and point.rotary_fraction < 1.0,
            "changes": {"rotary_fraction": 1.0},
        },
    ),
    *_alibi("alibi-missing", "the linear biases are left out", {"changes": {"alibi": False}}),
    *_alibi(
        "alibi-one-sequence",
        "slopes follow one geometric sequence though the heads are no power of two",
        {"question": _linear(_of_slopes(_one_sequence))},
    ),
    *_alibi(
        "alibi-reversed",
        "slopes are given to the heads in the opposite order",
        {"question": _linear(_of_slopes(lambda heads: golden.alibi_slopes(heads).flip(0)))},
    ),
    *_alibi(
        "alibi-sign",
        "slope times distance is added",
        {"question": _linear(lambda _asked, right: -right)},
    ),
    *_alibi(
        "alibi-signed",
        "the distance has a sign: later keys gain",
        {"question": _linear(_signed)},
    ),
    *_alibi(
        "alibi-scaled",
        "the linear biases join before the scale",
        {"question": _linear(lambda asked, right: asked.scale * right)},
    ),
    *_alibi(
        "alibi-offset",
        "distances are counted as if the first query stood at the first key",
        {"question": _linear(_from_the_first_query)},
    ),
)
