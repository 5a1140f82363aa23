"""What weights add up to: a factor on all of them, or another denominator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ..mistakes import DeclaredCall, NamedMistake
from ..mistakes._steps import BLOCKS, emptied, present, unmasked_logits, weighing
from ..mistakes.named_mistake import CoreChange
from .reading import ROOM, Number, Reading, numbers, statement

_TINY: Final = torch.finfo(torch.float64).tiny
# Numbers below have fewer digits in float32, in which sums are added up at the least.
_SMALLEST_SUM: Final = torch.finfo(torch.float32).tiny
_FIX: Final = "divide the exponentials by their own sum over the keys that the query attends"


RowValues = Callable[[DeclaredCall, golden.Attention], Tensor]


@dataclass(frozen=True)
class RowNumbers:
    """A positive number for each row, as its logarithm ``[B, H, Lq, 1]``; a noun phrase for it.

    Logarithms, because exponentials of large logits are no numbers any more.
    """

    words: str
    log_values: RowValues


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


def _hidden_too(_call: DeclaredCall, attention: golden.Attention) -> Tensor:
    return torch.logsumexp(unmasked_logits(attention), dim=-1, keepdim=True)


def _row(values: Tensor, attention: golden.Attention) -> Tensor:
    """A number of some rows for every row: ``[B, H, Lq, 1]``."""
    return values.expand(*attention.logits.shape[:-1], 1)


def _total_over(axis: int) -> RowValues:
    """The sum of the exponentials of all rows along an axis."""
    return lambda call, a: _row(torch.logsumexp(_log_sum(call, a), axis, keepdim=True), a)


def _total_of_first(axis: int) -> RowValues:
    return lambda call, a: _row(_log_sum(call, a).narrow(axis, 0, 1), a)


def _not_rescaled(block: int) -> RowValues:
    """The sum of exponentials that are relative to the largest logit up to their own tile."""

    def log_values(_call: DeclaredCall, attention: golden.Attention) -> Tensor:
        logits = attention.logits
        ends = (torch.arange(logits.shape[-1]) // block + 1) * block - 1
        running = logits.cummax(dim=-1).values[..., ends.clamp_max(logits.shape[-1] - 1)]
        relative = logits - torch.where(torch.isneginf(running), 0.0, running)
        return torch.logsumexp(relative, -1, keepdim=True) + logits.amax(-1, keepdim=True)

    return log_values


def _among_first(size: int) -> Callable[[Tensor, int], Tensor]:
    return lambda index, _count: index < size


def _in_last_tile(size: int) -> Callable[[Tensor, int], Tensor]:
    return lambda index, count: index >= (count - 1) // size * size


def _total_of_keys(some: Callable[[Tensor, int], Tensor]) -> RowValues:
    """The sum of the exponentials of some keys."""

    def log_values(_call: DeclaredCall, attention: golden.Attention) -> Tensor:
        count = attention.logits.shape[-1]
        chosen = some(torch.arange(count), count)
        return torch.logsumexp(attention.logits[..., chosen], dim=-1, keepdim=True)

    return log_values


# What a denominator may hold besides, or instead.
ROWS: Final = (
    *(
        RowNumbers(
            f"the sum over tiles of {block} keys, not rescaled when the maximum grows,",
            _not_rescaled(block),
        )
        for block in BLOCKS
    ),
    *(
        rows
        for block in BLOCKS[3:]
        for rows in (
            RowNumbers(
                f"the sum of the exponentials of the first {block} keys",
                _total_of_keys(_among_first(block)),
            ),
            RowNumbers(
                f"the sum of the exponentials of the last tile of {block} keys",
                _total_of_keys(_in_last_tile(block)),
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


def _softmax_of_tiles(axis: int, size: int) -> Callable[[Tensor], Tensor]:
    """A softmax of its own for each tile of queries or of keys; nothing is left of one tile."""
    return lambda logits: torch.cat(
        [torch.softmax(tile, axis) for tile in logits.split(size, axis)], axis
    )


def _divided(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of each logit, divided by the sum over the keys that are there.

    NaN in rows whose sum has lost its digits to underflow, if it is not zero altogether.
    """

    def weights(logits: Tensor) -> Tensor:
        each = function(logits).masked_fill(torch.isneginf(logits), 0.0)
        total = each.sum(dim=-1, keepdim=True)
        return each / torch.where(total < _SMALLEST_SUM, torch.nan, total)

    return weights


def _shares(weights: Tensor) -> Tensor:
    """Each divided by the row's sum; zeros where that is zero."""
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0.0, 1.0, total)


# Weights that are a function of the right ones, and weights that no softmax made of the logits.
_OF_WEIGHTS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("the square of them", torch.square),
    ("the root of them", torch.sqrt),
    ("one less each of them", lambda weights: 1.0 - weights),
    ("the sum of them up to each key", lambda weights: weights.cumsum(-1)),
    ("each divided by the row's largest", lambda w: w / w.amax(-1, keepdim=True)),
    ("their mean over the queries", lambda w: w.mean(-2, keepdim=True).expand_as(w)),
    ("their mean over the heads", lambda w: w.mean(1, keepdim=True).expand_as(w)),
)
# The same where hidden keys have what it makes of a weight of zero.
_OF_EVERY_WEIGHT: Final[tuple[tuple[str, Callable[[golden.Attention], Tensor]], ...]] = (
    ("the logarithm of them", lambda a: a.logits.log_softmax(-1)),
    ("the sum of them up to each key, hidden or not", lambda a: a.weights.cumsum(-1)),
    (
        "the sum of them up to each key, hidden or not, divided by the row's sum",
        lambda a: _shares(a.weights.cumsum(-1)),
    ),
)
_EACH: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("their sigmoids", torch.sigmoid),
    ("their positive parts", lambda logits: present(logits).relu()),
    ("the squares of their positive parts", lambda logits: present(logits).relu().square()),
    ("their softplus", torch.nn.functional.softplus),
    ("their ELU and one", lambda logits: torch.nn.functional.elu(logits) + 1.0),
    ("their squares", lambda logits: present(logits).square()),
    ("their sizes", lambda logits: present(logits).abs()),
    (
        "one, each of them and half of its square",
        lambda x: 1.0 + present(x) + present(x) ** 2 / 2.0,
    ),
)
_OF_LOGITS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("their exponentials, divided by nothing", torch.exp),
    ("their powers of two", torch.exp2),
    *_EACH,
    *((f"{words}, divided by the row's sum", _divided(function)) for words, function in _EACH),
    *(
        (f"their softmax over {what} of each tile of {size}", _softmax_of_tiles(axis, size))
        for size in BLOCKS[1:]
        for what, axis in (("the queries", -2), ("the keys", -1))
    ),
)


def _relative_over(axis: int) -> Callable[[golden.Attention], Tensor]:
    """Exponentials relative to the largest of their row, divided by their sum over another axis.

    NaN where all along it are hidden, or vanish in float32; logits of a row without keys are alike.
    """

    def weights_of(attention: golden.Attention) -> Tensor:
        logits = attention.logits.masked_fill(attention.empty[..., None], 0.0)
        powers = (logits - logits.amax(-1, keepdim=True)).exp()
        powers = powers.masked_fill(powers.float() == 0.0, 0.0)
        return powers / powers.sum(axis, keepdim=True)

    return weights_of


def weight_statements(reading: Reading) -> Iterator[NamedMistake]:
    """The mistakes that make the weights a function of the right ones, or of single logits."""
    attention, read = reading.attention, reading.weights
    if reading.nearly_right:
        return
    tables: list[tuple[str, str, Callable[[golden.Attention], Tensor]]] = [
        (f"weights: {words}", f"the weights are not used as they are, but {words}", _made(f))
        for words, f in _OF_WEIGHTS
    ]
    of_every = {f"weights: {words}": f for words, f in _OF_EVERY_WEIGHT}
    tables += [
        (
            name,
            f"the weights are not used as they are, but {name.removeprefix('weights: ')}",
            f,
        )
        for name, f in of_every.items()
    ]
    tables += [
        (
            f"weights: of the logits {words}",
            f"the weights are not the softmax of the logits, but {words}",
            _unmade(f),
        )
        for words, f in _OF_LOGITS
    ]
    relative = "exponentials relative to the largest of their row"
    for words, axis in (("queries", -2), ("heads", 1), ("batch items", 0)):
        over = f"divided by their sum over the {words}"
        tables.append((f"weights: {over}", f"{relative} are {over}", _relative_over(axis)))
    for name, text, weights_of in tables:
        weights = weights_of(attention)
        rows = torch.isfinite(weights).all(dim=-1)
        weights, got = weights[rows], read[rows]
        if reading.agree(got, weights):
            core = weighed_by(weights_of, empty_too=name in of_every)
            yield statement(name, text, _FIX, core=core)
            continue
        factor = float((weights * got).sum() / weights.square().sum().clamp_min(_TINY))
        if reading.agree(got, factor * weights):
            for number in numbers(factor, reading.sizes, reading.same):
                multiplied = weighed_by(weights_of, number)
                more = f", times {number.words}"
                yield statement(f"{name}{more}", f"{text}{more}", _FIX, core=multiplied)


def _made(function: Callable[[Tensor], Tensor]) -> Callable[[golden.Attention], Tensor]:
    """A function of the right weights, zero for hidden keys."""
    return lambda attention: function(attention.weights).masked_fill(~attention.allowed, 0.0)


def _unmade(function: Callable[[Tensor], Tensor]) -> Callable[[golden.Attention], Tensor]:
    """A function of each logit, zero for hidden keys."""
    return lambda attention: function(attention.logits).masked_fill(~attention.allowed, 0.0)


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
                core=_times(_everywhere(number)),
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


def _everywhere(number: Number) -> Callable[[DeclaredCall, golden.Attention], float]:
    return lambda call, _attention: number.value(call.inputs.geometry)


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
    return statement(name, text, _FIX, core=_times(factor))


def _constant(values: Tensor, same: float) -> bool:
    if not values.numel() or not bool(torch.isfinite(values).all()):
        return False
    middle = float(values.mean())
    return bool(((values - middle).abs() <= same * abs(middle)).all())


def _times(
    factor: Callable[[DeclaredCall, golden.Attention], Tensor | float],
) -> Callable[[DeclaredCall, golden.Attention], golden.Attention]:
    """The weights of each row times a factor; rows whose factor is no number are open."""

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        weights = attention.weights * factor(call, attention)
        opened = emptied(attention, ~torch.isfinite(weights).all(dim=-1))
        return weighing(opened, torch.where(opened.empty[..., None], attention.weights, weights))

    return core
