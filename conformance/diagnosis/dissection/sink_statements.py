"""Sinks: which logit joins the sum of each head, and where the column of the sink is cut off.

The sum of the weights of a row says how much of it went to the sink: ``(1 / sum - 1) z`` is
``exp(sink)``, where ``z`` is the sum of the exponentials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ..mistakes import DeclaredCall, NamedMistake
from ..mistakes._steps import weighing
from ..mistakes.named_mistake import CoreChange, InputsChange
from .reading import ROOM, Number, Reading, numbers, statement

SinkChange = Callable[[DeclaredCall, Tensor], Tensor]


def _of_group(call: DeclaredCall, sinks: Tensor) -> Tensor:
    sizes = call.inputs.geometry
    return sinks[torch.arange(sizes.num_heads) // (sizes.num_heads // sizes.num_kv_heads)]


def _of_group_start(call: DeclaredCall, sinks: Tensor) -> Tensor:
    sizes = call.inputs.geometry
    group = sizes.num_heads // sizes.num_kv_heads
    return sinks[torch.arange(sizes.num_heads) // group * group]


def _in_turns(call: DeclaredCall, sinks: Tensor) -> Tensor:
    sizes = call.inputs.geometry
    return sinks[torch.arange(sizes.num_heads) % sizes.num_kv_heads]


def _capped(call: DeclaredCall, sinks: Tensor) -> Tensor:
    cap = call.inputs.softcap
    return sinks if cap is None else cap * torch.tanh(sinks / cap)


# What may join the sum in place of the sink of the head.
_CHANGES: Final[tuple[tuple[str, SinkChange], ...]] = (
    ("zero", lambda _call, sinks: torch.zeros_like(sinks)),
    ("the sink of the last head", lambda _call, sinks: sinks[-1:].expand_as(sinks)),
    ("the sink of the head before", lambda _call, sinks: sinks.roll(1)),
    ("the sink of the head after", lambda _call, sinks: sinks.roll(-1)),
    ("the sink whose index is that of the head's key/value head", _of_group),
    ("the sink of the first head of the group", _of_group_start),
    ("the sink whose index is the head's modulo the number of key/value heads", _in_turns),
    ("the mean of all sinks", lambda _call, sinks: sinks.mean().expand_as(sinks)),
    ("the sink under the softcap", _capped),
    ("the sink without its sign", lambda _call, sinks: sinks.abs()),
    ("the positive part of the sink", lambda _call, sinks: sinks.relu()),
    ("the hyperbolic tangent of the sink", lambda _call, sinks: sinks.tanh()),
    ("the square of the sink", lambda _call, sinks: sinks.square()),
    ("the exponential of the sink", lambda _call, sinks: sinks.exp()),
    ("the sink divided by the scale", lambda call, sinks: sinks / call.scale),
)
_SHARE: Final = "1 / (1 + exp(sink - log-sum-exp of the row))"
# Sums and factors in which a sink stands in another way, with what to do instead, from the
# log-sum-exp of a row, its largest logit and the sink.
_ROWS: Final[tuple[tuple[str, str, Callable[[Tensor, Tensor, Tensor], Tensor]], ...]] = (
    (
        "exp(sink) joins a sum of exponentials that are relative to the row's largest logit",
        "add exp(sink - m): m, which is taken off the logits, is the largest of them and the sink",
        lambda total, most, sink: torch.sigmoid(total - most - sink),
    ),
    (
        "exp(sink) joins a sum of exponentials that are relative to the largest logit or sink",
        "add exp(sink - m), where m is what is taken off the row's logits",
        lambda total, most, sink: torch.sigmoid(total - torch.maximum(most, sink) - sink),
    ),
    (
        "the sink itself, not its exponential, joins the sum of the exponentials",
        "add exp(sink) to the sum: a sink is a logit",
        lambda total, _most, sink: 1.0 / (1.0 + sink * (-total).exp()),
    ),
    (
        "the answer without a sink is multiplied by the sigmoid of the sink",
        f"multiply it by {_SHARE}, the share of the keys",
        lambda _total, _most, sink: torch.sigmoid(sink),
    ),
    (
        "the answer without a sink is multiplied by the sigmoid of minus the sink",
        f"multiply it by {_SHARE}: the row's own sum counts",
        lambda _total, _most, sink: torch.sigmoid(-sink),
    ),
    (
        "the answer is multiplied by the sink's share, not by that of the keys",
        f"multiply it by {_SHARE}, which is one less that share",
        lambda total, _most, sink: torch.sigmoid(sink - total),
    ),
    (
        "the share of the sink is taken twice",
        "let exp(sink) join the sum, or multiply the answer by the share of the keys, not both",
        lambda total, _most, sink: torch.sigmoid(total - sink).square(),
    ),
)
_CUTS: Final[tuple[tuple[str, int], ...]] = (
    ("each value meets the weight of the key after its own, the last one that of the sink", -1),
    ("each value meets the weight of the key before its own, the first one that of the sink", 1),
)


def sink_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Other logits than the sinks in the sums of the weights, and weights cut off elsewhere."""
    sinks = reading.attention.sinks
    if sinks is None or bool((~reading.wrong).all()):
        return
    for words, step in _CUTS:
        if reading.agree(reading.weights, _cut(reading.attention, step)):
            yield statement(
                f"sinks: {words}",
                f"the column of the sink is cut off at the wrong end: {words}",
                "leave the sink's own column out when weights meet values",
                core=_cut_elsewhere(step),
            )
    for words, fix, factor in _ROWS:
        core = _with_rows(factor)
        if reading.agree(reading.weights, core(reading.call, reading.attention).weights):
            yield statement(f"sinks: {words}", words, fix, core=_beside_sinks(core))
    read = _read(reading)
    if read is None:
        return
    for words, change in _CHANGES:
        if _alike(reading, change(reading.call, sinks), read):
            yield _statement(words, change)
    yield from _multiples(reading, sinks, read)


def _with_rows(
    factor: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Callable[[DeclaredCall, golden.Attention], golden.Attention]:
    """Weights without sinks times a factor of each row."""

    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        if attention.sinks is None:
            return attention
        logits, sink = attention.logits, attention.sinks.double()[:, None, None]
        total, most = logits.logsumexp(-1, keepdim=True), logits.amax(-1, keepdim=True)
        weights = golden.softmax(logits) * factor(total, most, sink)
        weights = torch.where(attention.empty[..., None], attention.weights, weights)
        return weighing(attention, weights)

    return core


def _beside_sinks(core: CoreChange) -> CoreChange:
    return lambda call, attention: None if attention.sinks is None else core(call, attention)


def _read(reading: Reading) -> Tensor | None:
    """The logit that joins the sums of each head ``[H]``, NaN where rows do not tell it.

    None if a head has several of them, or if no head tells its own.
    """
    attention = reading.attention
    rows = attention.allowed.any(dim=-1)
    sums = reading.weights.sum(dim=-1)
    share = 1.0 - sums
    off = ROOM * reading.error.sum(dim=-1)
    telling = rows & (share > 0.0) & (sums > 0.0) & (off <= reading.same * share * sums)
    total = torch.logsumexp(attention.logits, dim=-1)
    logits = torch.where(telling, total + (share / sums).log(), torch.nan)
    by_head = logits.transpose(0, 1).flatten(1)
    middle = by_head.nanmedian(dim=1).values
    far = (by_head - middle[:, None]).abs() > _room(reading)
    return None if bool(middle.isnan().all()) or bool(far.any()) else middle


def _room(reading: Reading) -> float:
    """How far two readings of one logit may differ."""
    return 2.0 * reading.same


def _alike(reading: Reading, expected: Tensor, read: Tensor) -> bool:
    told = ~read.isnan()
    return bool(((expected - read).abs() <= _room(reading))[told].all())


def _multiples(reading: Reading, sinks: Tensor, read: Tensor) -> Iterator[NamedMistake]:
    """A number times the sink, or the sink and a number."""
    told = ~read.isnan()
    own, size = sinks[told], torch.finfo(sinks.dtype).tiny
    factor = float((read[told] @ own) / (own @ own).clamp_min(size))
    if abs(factor) > reading.same and _alike(reading, factor * sinks, read):
        for number in numbers(factor, reading.sizes, reading.same):
            yield _statement(f"{number.words} times the sink", _times(number))
    shift = float((read[told] - own).mean())
    if abs(shift) > reading.same and _alike(reading, sinks + shift, read):
        for number in numbers(shift, reading.sizes, reading.same):
            yield _statement(f"the sink and {number.words}", _and(number))


def _times(number: Number) -> SinkChange:
    return lambda call, sinks: number.value(call.inputs.geometry) * sinks


def _and(number: Number) -> SinkChange:
    return lambda call, sinks: sinks + number.value(call.inputs.geometry)


def _statement(words: str, change: SinkChange) -> NamedMistake:
    return statement(
        f"sinks: {words}",
        f"{words} joins the sum of the exponentials of a head as its logit",
        f"let the sink of the head itself be that logit, not {words}",
        inputs=_with_sinks(change),
    )


def _with_sinks(change: SinkChange) -> InputsChange:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        sinks = call.inputs.sinks
        if sinks is None:
            return None
        changed = change(call, sinks.double())
        return None if torch.equal(changed, sinks.double()) else call.inputs.replace(sinks=changed)

    return inputs_for


def _cut(attention: golden.Attention, step: int) -> Tensor:
    """Weights moved by one key, with that of the sink at the end that is left."""
    weights = attention.weights
    share = 1.0 - weights.sum(dim=-1)
    moved = weights.roll(step, -1).clone()
    moved[..., -1 if step < 0 else 0] = share
    return moved.masked_fill(~attention.allowed, 0.0)


def _cut_elsewhere(step: int) -> CoreChange:
    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        return None if attention.sinks is None else weighing(attention, _cut(attention, step))

    return core
