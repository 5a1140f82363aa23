"""Logits shifted by another number than the row maximum, or with a number added.

Numbers are subtracted before the exponentials, join the sums of plain ones, or are added for each
pair of query and key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, product
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ...tolerance import model
from ..agreement import BatteryAnswer
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import row_largest
from ..mistakes.named_mistake import Edits, answer_stage, read_every_key, run_of_call
from ..mistakes.softmaxes import Shift, shifted
from .places import added_to_logits
from .reading import Reading, digits_of, statement

# Below this magnitude of logits no exponential vanishes or overflows in any format.
_LEAST_LOST: Final = math.log(torch.finfo(torch.float16).max)
_FEWEST_ITEMS: Final = 2  # of a batch, to show independence of the inputs


def _over_every_key(_logits: Tensor, every: Tensor, _kept: Tensor) -> Tensor:
    return every.amax(dim=-1, keepdim=True)


def _over_kept_by_bias(_logits: Tensor, every: Tensor, kept: Tensor) -> Tensor:
    return row_largest(every.masked_fill(~kept, -math.inf))


def _mean(logits: Tensor, _every: Tensor, _kept: Tensor) -> Tensor:
    hidden = torch.isneginf(logits)
    return logits.masked_fill(hidden, 0.0).mean(dim=-1, keepdim=True)


def _floored(floor: float) -> Shift:
    def largest(logits: Tensor, _every: Tensor, _kept: Tensor) -> Tensor:
        return row_largest(logits).maximum(torch.tensor(floor).to(logits))  # minus infinity in half

    return largest


def _largest_along(*axes: int, hidden_too: bool = False) -> Shift:
    def largest(logits: Tensor, every: Tensor, _kept: Tensor) -> Tensor:
        most = (every if hidden_too else logits).amax(dim=axes, keepdim=True)
        return torch.where(torch.isneginf(most), 0.0, most)

    return largest


# Numbers subtracted from the logits of a row in place of their largest, with their words.
_SHIFTS: Final[tuple[tuple[str, Shift], ...]] = (
    ("the largest one of hidden keys as well", _over_every_key),
    (
        "the largest one of keys that a mask of truth values hides as well",
        _over_kept_by_bias,
    ),
    ("their mean, with zeros for hidden keys", _mean),
    *(
        (f"the largest one over the {axes}", _largest_along(axis))
        for axes, axis in (("queries", -2), ("heads", 1), ("batch items", 0))
    ),
    *(
        (f"the largest one {of}{more}", _largest_along(*axes, hidden_too=hidden_too))
        for of, axes in (
            ("of the head", (2, 3)),
            ("of the batch item", (1, 2, 3)),
            ("of the whole tensor", (0, 1, 2, 3)),
        )
        for more, hidden_too in (("", False), (", hidden keys included", True))
    ),
    *(
        (
            f"the number {number:g}",
            lambda logits, _every, _kept, by=number: torch.full_like(logits[..., :1], by),
        )
        for number in (5.0, 10.0, 20.0, 30.0, 50.0, 80.0, 100.0)
    ),
    *(
        (f"the largest one, or {floor:g} where that is larger", _floored(floor))
        for floor in (-1e2, -1e3, -1e4, -3e4, -1e5)
    ),
)
_ADDED: Final = (1e-30, 1e-20, 1e-12, 1e-10, 1e-9, 1e-8, 1e-6)
# Divisors of the exponentials, as functions of their sum.
_DIVISORS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("", lambda total: total),
    ("", lambda total: torch.where(total == 0.0, 1.0, total)),
    *(
        (f", and their sum is no smaller than {least:g}", lambda t, least=least: t.clamp_min(least))
        for least in (1e-37, 1e-30, 1e-20, 1e-12, 1e-10, 1e-9, 1e-8, 1e-6)
    ),
    *((f", and {more:g} is added to their sum", lambda t, more=more: t + more) for more in _ADDED),
)


def shift_statements(answer: BatteryAnswer) -> Iterator[NamedMistake]:
    """Yield numbers that may be subtracted before the exponentials, if rows vanish or overflow.

    Each is acted out on this answer; only matching ones are proposed.
    """
    exact, inputs = answer.exact, answer.inputs
    if not answer.fits or not answer.output.numel():
        return
    lost = (answer.output == 0.0).all(-1) & ~(exact.output == 0.0).all(-1)
    lost |= ~torch.isfinite(answer.output).all(-1) & torch.isfinite(exact.output).all(-1)
    if not bool(lost.any()) or not bool((exact.core.scores.abs() >= _LEAST_LOST).any()):
        return
    run = _run_of(answer)
    half = inputs.query.dtype.itemsize < torch.float32.itemsize

    def is_made(edits: Edits) -> bool:
        made = run.edited(*edits)[answer_stage(run)]
        apart = (answer.output - made).abs().nan_to_num(nan=math.inf)
        apart = apart.masked_fill(answer.output.isnan() & made.isnan(), 0.0)
        size = model.SAME_READ * float(exact.output.nan_to_num(0.0).abs().amax())
        return bool((apart <= size).all())

    for (words, shift), more in product(_PLAIN_SHIFTS, _ADDED):  # no row may have a part left
        if is_made(shifted(shift, partial(torch.add, other=more), wide=False)):
            yield _number_statement(words, shift, more)
    for wide in (False, True)[: 1 + half]:
        for (words, shift), (added, divisor) in product(_SHIFTS, _DIVISORS):
            edits = shifted(shift, divisor, wide=wide)
            if is_made(edits):
                yield statement(
                    f"exponentials: less {words}{added}",
                    f"what is subtracted before the exponentials are taken is {words}{added}: low "
                    "rows vanish, or high ones overflow",
                    "subtract each row's largest logit of the keys that are attended",
                    edits=edits,
                )


# Statements of answers with lost rows, and the number of extreme answers that are read.
_OF_LOST_ROWS: Final[WeakKeyDictionary[BatteryAnswer, list[NamedMistake]]] = WeakKeyDictionary()
_FEW_EXTREME: Final = 6


def lost_row_statements(wrong: Sequence[BatteryAnswer]) -> list[NamedMistake]:
    """Return the subtracted numbers that the first answers to extreme values show.

    Remembered: these answers are the same in each round of a search.
    """
    extreme = [one for one in wrong if not one.inputs.generic][:_FEW_EXTREME]
    for one in extreme:
        if one not in _OF_LOST_ROWS:
            _OF_LOST_ROWS[one] = list(shift_statements(one))
    return list(chain.from_iterable(_OF_LOST_ROWS[one] for one in extreme))


def _number_statement(words: str, shift: Shift, number: float) -> NamedMistake:
    return statement(
        f"exponentials: {words}, divided by their sum and {number:g}",
        f"the exponentials are {words}, and divided by their sum and {number:g}",
        "subtract each row's largest logit first: the sum is then at least one, and needs no "
        "number beside it",
        edits=shifted(shift, partial(torch.add, other=number), wide=False),
    )


def _run_of(answer: BatteryAnswer) -> golden.Run:
    """Return the right run of an answer's call, with keys that no query reads."""
    declared = answer.subject.declaration.semantics
    return read_every_key(run_of_call(DeclaredCall(inputs=answer.inputs, semantics=declared)))


def _nothing(logits: Tensor, _every: Tensor, _kept: Tensor) -> Tensor:
    return torch.zeros_like(logits[..., :1])


def _nothing_of_any(logits: Tensor, every: Tensor, _kept: Tensor) -> Tensor:
    """Return NaN where the exponential of a hidden logit is infinite: infinity times zero."""
    powers = every.to(logits.dtype).exp()
    return torch.where(torch.isinf(powers).any(-1, keepdim=True), torch.nan, 0.0).to(logits.dtype)


_PLAIN_SHIFTS: Final[tuple[tuple[str, Shift], ...]] = (
    ("those of the logits as they are", _nothing),
    ("those of the logits as they are, hidden ones too until multiplied by zero", _nothing_of_any),
)


def pair_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Yield a number of each head for each pair of places, whatever the inputs are.

    It is read from several batch items, and known for these heads and lengths alone.
    """
    shown = reading.legible & reading.attention.allowed
    count, always = shown.sum(dim=0), shown.all(dim=0)
    read = bool((count > 0).all() & always.any(-1).all())
    if len(shown) < _FEWEST_ITEMS or not read:
        return

    def against_mean(table: Tensor, sign: float) -> Tensor:
        """Subtract or add a row's mean: weights do not show a constant of their row."""
        mean = torch.where(always, table, 0.0).sum(-1, keepdim=True) / always.sum(-1, keepdim=True)
        return torch.where(shown, table + sign * mean, 0.0)

    more = against_mean(reading.logits - reading.run["biased"], -1.0)
    room = 6.0 * against_mean(model.LOGIT_READ_TO + reading.logit_error, 1.0)
    table = more.sum(dim=0) / count
    alike = ((more - table).abs() <= room) | ~shown
    if not bool(alike.all()) or not bool((shown & (table.abs() > room)).any()):
        return

    def added(inputs: Inputs) -> Tensor:
        if inputs.score_shape[1:] != table.shape:
            raise NotExpressible
        return table.expand(inputs.score_shape)

    heads, queries, keys = table.shape
    head, query, key = (int(one) for one in torch.unravel_index(table.abs().argmax(), table.shape))
    largest = digits_of(float(table[head, query, key]))
    words = (
        "a number of each head for each pair of query and key that no input changes, "
        f"{largest} at query {query} and key {key} of head {head} "
        f"(against the mean of the row; with {heads} heads, {queries} queries and {keys} keys)"
    )
    fix = "add nothing to the scaled scores, or declare what is added: score_mod of the semantics"
    yield added_to_logits(words, fix, added)
