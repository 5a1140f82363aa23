"""What the exponentials of a row are divided by: another sum, or another sink beside them.

The sum of the weights of a row says what it was. Of sinks it says how much of the row went there:
``(1 / sum - 1) z`` is ``exp(sink)``, where ``z`` is the sum of the exponentials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ..mistakes import DeclaredCall, NamedMistake
from ..mistakes._steps import BLOCKS, admitted_by_mask, emptied, unmasked_logits, weighing
from ..mistakes.named_mistake import CoreChange, InputsChange
from .reading import ROOM, Number, Reading, numbers, statement

_FIX: Final = "divide the exponentials by their own sum over the keys that the query attends"
# The logarithm of a sum of exponentials of each row ``[B, H, Lq, 1]``.
TotalOf = Callable[[DeclaredCall, golden.Attention], Tensor]
SinkChange = Callable[[DeclaredCall, Tensor], Tensor]


def weighed_by(
    weights_of: Callable[[golden.Attention], Tensor],
    number: Number | None = None,
    *,
    empty_too: bool = False,
) -> CoreChange:
    """Other weights, times a number where one is given; rows that have none are open.

    Rows without keys stay what they are, but for ``empty_too``.
    """

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        factor = 1.0 if number is None else number.value(call.inputs.geometry)
        weights = factor * weights_of(attention)
        unknown = torch.isnan(weights).any(dim=-1)
        opened, rows = emptied(attention, unknown), attention.empty | unknown
        if empty_too:
            rows = unknown & ~attention.empty
        return weighing(opened, torch.where(rows[..., None], attention.weights, weights))

    return core


def total_not_rescaled(size: int) -> TotalOf:
    """The sum of exponentials that are relative to the largest logit up to their own tile."""

    def log_values(_call: DeclaredCall, attention: golden.Attention) -> Tensor:
        logits = attention.logits
        ends = (torch.arange(logits.shape[-1]) // size + 1) * size - 1
        running = logits.cummax(dim=-1).values[..., ends.clamp_max(logits.shape[-1] - 1)]
        relative = logits - torch.where(torch.isneginf(running), 0.0, running)
        return torch.logsumexp(relative, -1, keepdim=True) + logits.amax(-1, keepdim=True)

    return log_values


def total_of_first_keys(size: int) -> TotalOf:
    """The sum of the exponentials of so many first keys."""
    return lambda _call, a: torch.logsumexp(a.logits[..., :size], dim=-1, keepdim=True)


def total_of_last_tile(size: int) -> TotalOf:
    """The sum of the exponentials of the keys of the last tile."""

    def log_values(_call: DeclaredCall, attention: golden.Attention) -> Tensor:
        start = (attention.logits.shape[-1] - 1) // size * size
        return torch.logsumexp(attention.logits[..., start:], dim=-1, keepdim=True)

    return log_values


_SHARE: Final = "1 / (1 + exp(sink - log-sum-exp of the row))"
# Sums and factors with a sink in another place: from a row's log-sum-exp, its largest and the sink.
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
    far = (by_head - middle[:, None]).abs() > 2.0 * reading.same
    return None if bool(middle.isnan().all()) or bool(far.any()) else middle


def _alike(reading: Reading, expected: Tensor, read: Tensor) -> bool:
    told = ~read.isnan()
    return bool(((expected - read).abs() <= 2.0 * reading.same)[told].all())


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
    text = f"{words} joins the sum of the exponentials of a head as its logit"
    fix = f"let the sink of the head itself be that logit, not {words}"
    return statement(f"sinks: {words}", text, fix, inputs=_with_sinks(change))


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


@dataclass(frozen=True)
class RowNumbers:
    """A positive number for each row, as its logarithm ``[B, H, Lq, 1]``; a noun phrase for it.

    Logarithms, because exponentials of large logits are no numbers any more.
    """

    words: str
    log_values: TotalOf


def _largest(_call: DeclaredCall, attention: golden.Attention) -> Tensor:
    return attention.logits.amax(dim=-1, keepdim=True)


def _log_sum(_call: DeclaredCall, attention: golden.Attention) -> Tensor:
    total = torch.logsumexp(attention.logits, dim=-1, keepdim=True)
    sinks = attention.sinks
    return total if sinks is None else torch.logaddexp(total, sinks.double()[:, None, None])


def _visible(_call: DeclaredCall, attention: golden.Attention) -> Tensor:
    return attention.allowed.sum(dim=-1, keepdim=True).double().log()


def _hidden(_call: DeclaredCall, attention: golden.Attention) -> Tensor:
    return (~attention.allowed).sum(dim=-1, keepdim=True).double().log()


def _kept(call: DeclaredCall, attention: golden.Attention) -> Tensor:
    return _row(admitted_by_mask(call).double().mean(-1, keepdim=True).log(), attention)


def _hidden_too(_call: DeclaredCall, attention: golden.Attention) -> Tensor:
    return torch.logsumexp(unmasked_logits(attention), dim=-1, keepdim=True)


def _row(values: Tensor, attention: golden.Attention) -> Tensor:
    """A number of some rows for every row: ``[B, H, Lq, 1]``."""
    return values.expand(*attention.logits.shape[:-1], 1)


def _total_over(axis: int) -> TotalOf:
    """The sum of the exponentials of all rows along an axis."""
    return lambda call, a: _row(torch.logsumexp(_log_sum(call, a), axis, keepdim=True), a)


def _total_of_first(axis: int) -> TotalOf:
    return lambda call, a: _row(_log_sum(call, a).narrow(axis, 0, 1), a)


# What a denominator may hold besides, or instead.
ROWS: Final = (
    *(
        RowNumbers(
            f"the sum over tiles of {block} keys, not rescaled when the maximum grows,",
            total_not_rescaled(block),
        )
        for block in BLOCKS
    ),
    *(
        rows
        for block in BLOCKS[3:]
        for rows in (
            RowNumbers(
                f"the sum of the exponentials of the first {block} keys",
                total_of_first_keys(block),
            ),
            RowNumbers(
                f"the sum of the exponentials of the last tile of {block} keys",
                total_of_last_tile(block),
            ),
        )
    ),
    RowNumbers("one", lambda c, a: torch.zeros_like(_visible(c, a))),
    RowNumbers("the exponential of the row's largest logit", _largest),
    RowNumbers("the exponential of minus the row's largest logit", lambda c, a: -_largest(c, a)),
    RowNumbers("the sum of the exponentials", _log_sum),
    RowNumbers(
        "the sum of the exponentials relative to the row's largest one",
        lambda c, a: _log_sum(c, a) - _largest(c, a),
    ),
    RowNumbers("the number of keys that the query attends", _visible),
    RowNumbers(
        "the root of the number of keys that the query attends", lambda c, a: _visible(c, a) / 2
    ),
    RowNumbers("the sum of the exponentials of all keys (hidden ones too)", _hidden_too),
    RowNumbers("the number of keys that are hidden", _hidden),
    RowNumbers("the part of the keys that the mask keeps", _kept),
    RowNumbers(
        "the number of queries up to this one",
        lambda _c, a: _row(
            torch.arange(1.0, a.logits.shape[-2] + 1.0, dtype=torch.float64).log()[:, None], a
        ),
    ),
    RowNumbers(
        "the largest sum of exponentials of all queries",
        lambda c, a: _row(_log_sum(c, a).amax(-2, keepdim=True), a),
    ),
    RowNumbers("the sum of the exponentials of the first query", _total_of_first(2)),
    RowNumbers("the sum of the exponentials of the first head", _total_of_first(1)),
    RowNumbers("the sum of the exponentials of the first batch item", _total_of_first(0)),
    RowNumbers("the sum of the exponentials of all queries", _total_over(2)),
    RowNumbers("the sum of the exponentials of all heads", _total_over(1)),
    RowNumbers("the sum of the exponentials of all batch items", _total_over(0)),
    RowNumbers("the exponential of the last key's logit", lambda _c, a: a.logits[..., -1:]),
    RowNumbers("the exponential of the first key's logit", lambda _c, a: a.logits[..., :1]),
    RowNumbers(
        "the root of the sum of the squares of the exponentials",
        lambda _c, a: torch.logsumexp(2 * a.logits, -1, keepdim=True) / 2,
    ),
)


# Numbers that are the same for all rows of a call.
OF_CALLS: Final = (
    RowNumbers(
        "the part of all keys of all queries that is not hidden",
        lambda _c, a: _row(a.allowed.double().mean().log(), a),
    ),
)


@dataclass(frozen=True)
class SumForm:
    """A way in which a number of each row makes the sum of its weights what it is.

    ``read`` gives the number that is left open, from the sums that were read, the logarithm of the
    sum of the exponentials and that of the row's number; ``factor`` gives the sums of the weights.
    """

    name: str
    text: str
    read: Callable[[Tensor, Tensor, Tensor], Tensor]
    factor: Callable[[Tensor, Tensor, float], Tensor]


_FORMS: Final = (
    SumForm(
        "sum: {} added",
        "the softmax divides by the sum of the exponentials and {}",
        lambda ratio, total, x: (total - x).exp() * (1.0 / ratio - 1.0),
        lambda total, x, number: 1.0 / (1.0 + number * (x - total).exp()),
    ),
    SumForm(
        "sum: divided by {}",
        "the exponentials are divided by {} instead of their sum",
        lambda ratio, total, x: (total - x).exp() / ratio,
        lambda total, x, number: (total - x).exp() / number,
    ),
    SumForm(
        "answer: times {}",
        "the answer is multiplied by {}",
        lambda ratio, _total, x: ratio * (-x).exp(),
        lambda _total, x, number: number * x.exp(),
    ),
    SumForm(
        "answer: divided by {}",
        "the answer is divided by {}",
        lambda ratio, _total, x: 1.0 / (ratio * x.exp()),
        lambda _total, x, number: (-x).exp() / number,
    ),
)


def sum_statements(reading: Reading) -> Iterator[NamedMistake]:
    """The mistakes that make the sums of the weights what was read.

    Within each row the weights must be in the right proportion.
    """
    found = sum_ratio(reading)
    if found is None:
        return
    rows, sums = found
    ratio = sums[rows]
    if _constant(ratio, reading.same):
        for number in numbers(float(ratio.mean()), reading.sizes, reading.same):
            yield statement(
                f"answer: times {number.words}",
                f"the answer is {number.words} times what it should be",
                "do not multiply the answer: the weights of a row sum to one",
                core=weighed_by(lambda attention: attention.weights, number),
            )
    yield from _proposals(reading, rows, ratio)


def sum_ratio(reading: Reading) -> tuple[Tensor, Tensor] | None:
    """Rows whose weights are right but for their sums ``[B, H, Lq, 1]``, and all sums.

    None where some row's weights are in another proportion, and where all sums are one.
    """
    exact, read = reading.attention.weights, reading.weights
    rows = reading.attention.allowed.any(dim=-1, keepdim=True) & reading.wrong
    sums = read.sum(dim=-1, keepdim=True)
    room = reading.same * sums.abs() * exact + 4 * reading.error
    if not rows.any() or bool((((read - sums * exact).abs() > room) & rows).any()):
        return None
    ratio = sums[rows]
    right = (sums - 1.0).abs() <= ROOM * reading.error.sum(dim=-1, keepdim=True)
    if bool(right[rows].all()) or not bool(torch.isfinite(ratio).all()):
        return None
    return rows, sums


def _proposals(reading: Reading, rows: Tensor, ratio: Tensor) -> Iterator[NamedMistake]:
    """What explains a ratio that differs from row to row, by one of the numbers of the rows.

    Added to the denominator: ratio = z / (z + f x). In its place: z / (f x). As a factor: f x, or
    f / x; z is the sum of the exponentials.
    """
    call, attention = reading.call, reading.attention
    total = _log_sum(call, attention)[rows]
    for term in OF_CALLS if _constant(ratio, reading.same) else (*ROWS, *OF_CALLS):
        log_values = term.log_values(call, attention)[rows]
        some = ~torch.isneginf(log_values)  # where a number is zero, nothing is added
        if not some.any() or bool(((ratio[~some] - 1.0).abs() > reading.same).any()):
            continue
        for form in _FORMS if bool(some.all()) else _FORMS[:1]:
            read = form.read(ratio[some], total[some], log_values[some])
            if not _constant(read, reading.same):
                continue
            for number in numbers(float(read.mean()), reading.sizes, reading.same):
                yield _as_mistake(form, term, number)


def _as_mistake(form: SumForm, term: RowNumbers, number: Number) -> NamedMistake:
    words = term.words if number.words == "1" else f"{number.words} times {term.words}"
    if term.words == "one":
        words = number.words

    def factor(call: DeclaredCall, attention: golden.Attention) -> Tensor:
        total, log_values = _log_sum(call, attention), term.log_values(call, attention)
        return form.factor(total, log_values, number.value(call.inputs.geometry))

    name, text = form.name.format(words), form.text.format(words)
    return statement(name, text, _FIX, core=_each_row_times(factor))


def _constant(values: Tensor, same: float) -> bool:
    if not values.numel() or not bool(torch.isfinite(values).all()):
        return False
    middle = float(values.mean())
    return bool(((values - middle).abs() <= same * abs(middle)).all())


def _each_row_times(
    factor: Callable[[DeclaredCall, golden.Attention], Tensor | float],
) -> Callable[[DeclaredCall, golden.Attention], golden.Attention]:
    """The weights of each row times a factor; rows whose factor is no number are open."""

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        weights = attention.weights * factor(call, attention)
        opened = emptied(attention, ~torch.isfinite(weights).all(dim=-1))
        return weighing(opened, torch.where(opened.empty[..., None], attention.weights, weights))

    return core
