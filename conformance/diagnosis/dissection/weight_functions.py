"""What weights are in place of the softmax: a function of the right ones, or of the logits.

A function may drop the small ones, limit all, or add a share of every key. Answers have gates.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...tolerance import model
from ..agreement import BatteryAnswer
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import (
    BLOCKS,
    admitted_by_mask,
    admitted_by_structure,
    emptied,
    present,
    relogited,
    weighing,
)
from ..mistakes.named_mistake import CoreChange
from .cells import Cells
from .reading import ROOM, Number, Reading, in_digits, numbers, roundest, statement
from .visibility import CLEAR, keys_at_steps

# The logarithm of a sum of exponentials of each row ``[B, H, Lq, 1]``.
TotalOf = Callable[[DeclaredCall, golden.Attention], Tensor]
_TINY: Final = torch.finfo(torch.float64).tiny
# Numbers below have fewer digits in float32, in which sums are added up at the least.
_SMALLEST_SUM: Final = torch.finfo(torch.float32).tiny
_HIDE: Final = "hide keys before the softmax: then their weights are zero, and stay so"
_FIX: Final = "divide the exponentials by their own sum over the keys that the query attends"


def _softmax_of_tiles(axis: int, size: int) -> Callable[[Tensor], Tensor]:
    """A softmax of its own for each tile of queries or of keys; nothing is left of one tile."""
    return lambda logits: torch.cat(
        [torch.softmax(tile, axis) for tile in logits.split(size, axis)], axis
    )


def _divided(function: Callable[[Tensor], Tensor], more: float = 0.0) -> Callable[[Tensor], Tensor]:
    """A function of each logit, divided by the sum over the keys that are there and ``more``.

    NaN in rows whose sum has lost its digits to underflow, if it is not zero altogether.
    """

    def weights(logits: Tensor) -> Tensor:
        each = function(logits).masked_fill(torch.isneginf(logits), 0.0)
        total = each.sum(dim=-1, keepdim=True) + more
        return each / torch.where(total < _SMALLEST_SUM, torch.nan, total)

    return weights


def _divided_by_more(reading: Reading) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Functions of each logit over their sum and a number, which the smallest sum says best."""
    logits, got = reading.attention.logits, reading.weights.sum(dim=-1)
    for words, function in _EACH:
        total = function(logits).masked_fill(torch.isneginf(logits), 0.0).sum(dim=-1)
        added = total / got - total
        told = torch.isfinite(added) & (total > _SMALLEST_SUM)
        if not bool(told.any()):
            continue
        more = float(f"{float(added[told][total[told].argmin()]):.1g}")
        if more > 0.0:
            yield f"{words}, divided by the row's sum and {more:g}", _divided(function, more)


def _shares(weights: Tensor) -> Tensor:
    """Each divided by the row's sum; zeros where that is zero."""
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0.0, 1.0, total)


def _shares_of_keys() -> Iterator[tuple[str, Callable[[golden.Attention], Tensor], bool]]:
    """Shares that are added to weights, and whether rows without keys have them, too."""
    for hidden_too in (False, True):
        among = " for each key" if hidden_too else " for each key that is not hidden"
        yield among, partial(_share, hidden_too=hidden_too), hidden_too
        divided = partial(_share, divided=True, hidden_too=hidden_too)
        yield f" divided by the number of keys,{among}", divided, hidden_too
    yield (
        " divided by the number of keys that are not hidden, for each of these",
        lambda a: a.allowed / a.allowed.sum(-1, keepdim=True).clamp_min(1),
        False,
    )


def _share(
    attention: golden.Attention, *, divided: bool = False, hidden_too: bool = False
) -> Tensor:
    of_one = 1.0 / attention.weights.shape[-1] if divided else 1.0
    return torch.full_like(attention.weights, of_one).masked_fill(
        ~attention.allowed & (not hidden_too), 0.0
    )


_SHARES: Final = tuple(_shares_of_keys())
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
    ("the mean of all, for every key", lambda a: a.weights.mean().expand_as(a.weights)),
    ("the logarithm of them", lambda a: a.logits.log_softmax(-1)),
    ("with one for every hidden key", lambda a: torch.where(a.allowed, a.weights, 1.0)),
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
        for words, f in (*_OF_LOGITS, *_divided_by_more(reading))
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
            yield statement(name, text, _HIDE if "hidden key" in name else _FIX, core=core)
            continue
        factor = float((weights * got).sum() / weights.square().sum().clamp_min(_TINY))
        if reading.agree(got, factor * weights):
            for number in numbers(factor, reading.sizes, reading.same):
                multiplied = weighed_by(weights_of, number)
                more = f", times {number.words}"
                yield statement(f"{name}{more}", f"{text}{more}", _FIX, core=multiplied)


def share_statements(reading: Reading) -> Iterator[NamedMistake]:
    """The mistakes that limit the weights, or add a share of every key to a part of them."""
    attention, read = reading.attention, reading.weights
    seen = read[attention.allowed.expand(read.shape)]
    finite = bool(torch.isfinite(read).all() and torch.isfinite(attention.weights).all())
    if reading.nearly_right or not seen.numel() or not finite:
        return
    found: list[tuple[str, Callable[[golden.Attention], Tensor], bool]] = []
    for limit, words, clamp in (
        (seen.max(), "at most", torch.clamp_max),
        (seen.min(), "at least", torch.clamp_min),
    ):
        number = float(f"{limit:.3g}")
        clamped = _made(partial(_called_with, clamp, number))
        found.append((f"clamped to {words} {in_digits(number)}", clamped, False))
    for words, share, empty_too in _SHARES:
        columns = [attention.weights.expand(read.shape), share(attention).expand(read.shape)]
        table = torch.stack(columns, dim=-1).flatten(0, -2)
        fitted = torch.linalg.lstsq(table, read.flatten()[:, None]).solution
        part, added = (float(f"{number:.3g}") for number in fitted.flatten())
        said = f"{in_digits(part)} times the right ones plus {in_digits(added)}{words}"
        found.append((said, partial(_with_share, share, part, added), empty_too))
    for said, weights_of, empty_too in found:
        if reading.agree(read, weights_of(attention).expand(read.shape)):
            core = weighed_by(weights_of, empty_too=empty_too)
            yield statement(f"weights: {said}", f"the weights are {said}", _FIX, core=core)


def _called_with(clamp: Callable[[Tensor, float], Tensor], limit: float, of: Tensor) -> Tensor:
    return clamp(of, limit)


def _with_share(
    share: Callable[[golden.Attention], Tensor],
    part: float,
    added: float,
    attention: golden.Attention,
) -> Tensor:
    return part * attention.weights + added * share(attention)


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


def dropped_weight_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Weights of keys that count as zero because they are small, or not among the largest."""
    exact, allowed = reading.attention.weights, reading.attention.allowed
    clear = allowed & (exact > 4 * reading.error)
    lost, kept = clear & ~reading.visible, clear & reading.visible
    if not lost.any() or not kept.any():
        return
    least, most = float(exact[lost].max()), float(exact[kept].min())
    if least < most:
        number = roundest(least, most)
        yield from _dropped(reading, f"below {number:g}", lambda weights: weights < number)
    counts = reading.visible.sum(dim=-1)[lost.any(dim=-1)]
    count = int(counts[0])
    if count and bool((counts == count).all()):
        yield from _dropped(
            reading, f"that are not among the {count} largest of a row", _not_largest(count)
        )


def _not_largest(count: int) -> Callable[[Tensor], Tensor]:
    def holds(weights: Tensor) -> Tensor:
        if weights.shape[-1] <= count:
            return torch.zeros_like(weights, dtype=torch.bool)
        return weights < weights.topk(count, dim=-1).values[..., -1:]

    return holds


def _dropped(
    reading: Reading, words: str, dropped: Callable[[Tensor], Tensor]
) -> Iterator[NamedMistake]:
    for late in (False, True):
        weights_of = _without(dropped, renormalised=not late)
        if reading.agree(reading.weights, weights_of(reading.attention)):
            left = "" if late else ", and the others sum to one"
            yield statement(
                f"weights: those {words} are zero{left}",
                f"weights {words} count as zero{left}",
                "let every key that is not hidden have its weight, however small",
                core=weighed_by(weights_of),
            )


def _without(
    dropped: Callable[[Tensor], Tensor], *, renormalised: bool
) -> Callable[[golden.Attention], Tensor]:
    def weights_of(attention: golden.Attention) -> Tensor:
        weights = attention.weights
        left = weights.masked_fill(dropped(weights), 0.0)
        if not renormalised:
            return left
        total = left.sum(dim=-1, keepdim=True)
        return left * weights.sum(dim=-1, keepdim=True) / torch.where(total == 0.0, 1.0, total)

    return weights_of


def lowest_added_statements(answer: BatteryAnswer) -> Iterator[NamedMistake]:
    """Lowest numbers that two rules add to hidden logits, where rows without keys have means."""
    inputs, declared = answer.inputs, answer.subject.declaration.semantics
    two = inputs.masked and (inputs.causal or inputs.window is not None)
    if two and not inputs.is_layer and declared.empty_rows == "mean-of-all":
        yield statement(
            "visibility: no weight for keys that two rules hide, in rows without keys",
            "mask and causality each add the lowest number to the logits of hidden keys: where "
            "both do, the sum is minus infinity, and a row of such keys alone is NaN",
            "join what hides keys first, and let the lowest number take the place of their logits",
            core=_lowest_added,
        )


def _lowest_added(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
    """Rows without keys have the mean of those that one rule hides, NaN where there is none."""
    once = (admitted_by_mask(call) ^ admitted_by_structure(call)).expand(attention.weights.shape)
    mean = once.double() / once.sum(-1, keepdim=True)
    weights = torch.where(attention.empty[..., None], mean, attention.weights)
    return weighing(attention, weights)


def repeated_key_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Keys at regular indices that count twice, as those do that two tiles share."""
    exact = reading.attention.weights
    clear = reading.legible & (exact > CLEAR * reading.error)
    ratio = torch.where(clear, reading.weights / exact, torch.inf)
    least = ratio.argmin(-1, keepdim=True)
    # A part of each number, and of the least that all are divided by.
    room = ROOM * reading.error / exact.clamp_min(model.SMALLEST_READ) + reading.same
    room = room + room.gather(-1, least)
    ratio = ratio / ratio.gather(-1, least)
    twice = clear & ((ratio - 2.0).abs() <= 2.0 * room)
    if not twice.any() or not bool((twice | ~clear | ((ratio - 1.0).abs() <= room)).all()):
        return
    for cells in keys_at_steps(twice):
        table = cells.holds(reading.call)
        if table is not None and bool((twice == (table & clear)).all()):
            yield statement(
                f"visibility: keys {cells.words} twice",
                f"keys {cells.words} count twice",
                "let tiles of keys begin where the one before ends",
                core=_twice(cells),
            )


def _twice(cells: Cells) -> CoreChange:
    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        table = cells.holds(call)
        more = math.log(2.0) * (0.0 if table is None else table.double())
        return relogited(attention, attention.logits + more)

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


# What answers may be multiplied by: a function of tensors of their shape.
_GATES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("", torch.Tensor.clone),
    ("the sigmoid of ", torch.sigmoid),
    ("the SiLU of ", torch.nn.functional.silu),
    ("the GELU of ", torch.nn.functional.gelu),
    ("the hyperbolic tangent of ", torch.tanh),
    ("the positive part of ", torch.relu),
)


def _tokens(call: DeclaredCall) -> Tensor:
    if not call.inputs.is_layer:
        raise NotExpressible
    return call.inputs.query.double()


# With whether it is behind the output projection of a layer.
_SOURCES: Final[tuple[tuple[str, bool, Callable[[DeclaredCall], Tensor]], ...]] = (
    ("its query", False, lambda call: call.projected_heads()[0]),
    (
        "the query's token",
        False,
        lambda call: golden.split_heads(_tokens(call), call.inputs.geometry.num_heads),
    ),
    ("the query's token", True, _tokens),
)


def gated_answer_statements(answer: BatteryAnswer) -> Iterator[NamedMistake]:
    """The answers of heads, or of a layer, times a function of their query or its token."""
    exact = answer.exact
    call = DeclaredCall(inputs=answer.inputs, semantics=answer.subject.declaration.semantics)
    if not answer.fits or not answer.output.numel():
        return
    for (of_source, behind, source), (of_gate, gate) in product(_SOURCES, _GATES):
        change = partial(_gated, source, gate)
        with suppress(NotExpressible, ValueError):
            made = change(call, exact.output if behind else exact.core.output)
            apart = (answer.output - (made if behind else call.answer_of(made))).abs()
            size = model.SAME_READ * float(exact.output.nan_to_num(0.0).abs().amax())
            if bool((apart <= size).all()):
                yield _times(f"{of_gate}{of_source}", change, behind=behind)


def _gated(
    source: Callable[[DeclaredCall], Tensor],
    gate: Callable[[Tensor], Tensor],
    call: DeclaredCall,
    output: Tensor,
) -> Tensor:
    number = source(call)
    if number.shape != output.shape:
        raise NotExpressible
    return output * gate(number)


def _times(words: str, change: Callable[..., Tensor], *, behind: bool) -> NamedMistake:
    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        return dataclasses.replace(attention, output=change(call, attention.output))

    of, steps = ("the layer", {"output": change}) if behind else ("each head", {"core": core})
    return statement(
        f"answer: that of {of} times {words}",
        f"the answer of {of} is multiplied by {words}, channel by channel",
        "return the weighted sums of the values: a gate is no part of attention",
        **steps,
    )
