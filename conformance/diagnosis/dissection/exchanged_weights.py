"""Weights of another head, item or query: axes that are dealt out otherwise, or exchanged."""

from __future__ import annotations

from collections.abc import Iterator

from ..._golden import golden
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import weighing
from .reading import Reading, statement
from .terms import in_turns


def turned_weight_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Weights of another head of a group: heads are dealt out in turns."""
    order = in_turns(reading.sizes)
    weights = reading.attention.weights
    if order is None or not reading.agree(reading.weights, weights[:, order]):
        return

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        order = in_turns(call.inputs.geometry)
        return None if order is None else weighing(attention, attention.weights[:, order])

    yield statement(
        "weights: of the head dealt out in turns over the groups",
        "values meet the weights of the head that follows if heads are dealt out in turns over "
        "the groups",
        "let the weights of each head meet the values that this head reads",
        core=core,
    )


def exchanged_weight_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Weights whose items and heads are exchanged, which only as many of both allow."""
    weights = reading.attention.weights
    if weights.shape[0] == weights.shape[1] and reading.agree(
        reading.weights, weights.transpose(0, 1)
    ):
        yield statement(
            "weights: with items and heads exchanged",
            "values of head h of item b meet the weights of head b of item h",
            "let the weights of each head and item meet the values of the same head and item",
            core=_exchanged,
        )


def _exchanged(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
    if attention.weights.shape[0] != attention.weights.shape[1]:
        raise NotExpressible
    return weighing(attention, attention.weights.transpose(0, 1))
