"""What becomes of an additive mask, clamped, moved or multiplied, and of a bias by distance.

A clamp is read from pairs of keys: where one of them is clamped and the other is not, their logits
differ by what the other's mask has beyond the limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ...tolerance import model
from ..agreement import BatteryAnswer
from ..mistaken_answer import mistaken_attention
from ..mistakes import DeclaredCall, NamedMistake
from ..mistakes._steps import (
    admitted_by_structure,
    has_bias,
    unmasked_logits,
    weighing,
)
from ..mistakes.fills import operated
from ..mistakes.named_mistake import CoreChange
from .fills import CLEAR, Fill, filled_keys
from .reading import ROOM, Number, Reading, statement

# With how many digits a limit is said at most, and how many limits of a side are tried: those that
# most pairs of keys say.
MOST_DIGITS: Final = 5
MOST_LIMITS: Final = 3
_FIX_CLAMP: Final = "add the additive mask to the scaled scores as it is, minus infinities too"
_FIX_PLACE: Final = "add the additive mask to the scaled scores, before the softmax"

# How large a number that stands for minus infinity may be, and how often its range is halved.
_HIGHEST_FILL: Final = 2.0**18
_FILL_HALVINGS: Final = 32

Limits = tuple[float | None, float | None]


def clamped_bias_statements(reading: Reading) -> Iterator[NamedMistake]:
    """An additive mask that is clamped from below, from above or both before it is added."""
    inputs = reading.call.inputs
    if not has_bias(inputs) or not bool(reading.wrong.any()):
        return
    fit = _ClampFit(reading)
    hides = not bool((reading.visible & torch.isneginf(fit.bias)).any())
    limits = next(fit.limits(), None)
    if limits is None:
        return
    yield _clamped(limits, hides=hides, empty_too=True)
    if not hides:
        yield _clamped(limits, hides=False, empty_too=False)


class _ClampFit:
    """What the logits that were read have besides the scores, next to the additive mask."""

    def __init__(self, reading: Reading) -> None:
        attention = reading.attention
        self.bias = whole_bias(reading.call.inputs)
        finite = 0.0 if attention.bias is None else torch.nan_to_num(attention.bias, neginf=0.0)
        reached = admitted_by_structure(reading.call).expand(self.bias.shape)
        self.used = reached & (reading.weights > CLEAR * reading.error)
        scores = unmasked_logits(attention) - finite
        self.room = 3.0 * (model.LOGIT_READ_TO + ROOM * reading.error / reading.weights.abs())
        self.room = self.room + ROOM * torch.finfo(reading.given.query.dtype).eps * scores.abs()
        self.added = torch.where(self.used, reading.weights, 1.0).log() - scores

    def limits(self) -> Iterator[Limits]:
        """The limits that leave nothing over, those of few digits first."""
        lows, highs = ([None, *some] for some in self._proposed())
        for low, high in product(lows, highs):
            if low is None and high is None:
                continue
            for digits in range(1, MOST_DIGITS + 1):
                rounded = _rounded(low, digits), _rounded(high, digits)
                if self._fits(rounded):
                    yield rounded
                    break

    def _proposed(self) -> tuple[list[float], list[float]]:
        """The lower and upper limits that most pairs of keys in a row say."""
        step = self.added[..., None, :] - self.added[..., :, None]
        first, second = self.bias[..., :, None], self.bias[..., None, :]
        both = self.used[..., None, :] & self.used[..., :, None]
        room = self.room[..., None, :] + self.room[..., :, None]
        low, high = second - step, first + step
        lower = both & (first < low - room) & (low <= second + room)
        upper = both & (first - room <= high) & (high < second - room)
        return _most_frequent(low[lower]), _most_frequent(high[upper])

    def _fits(self, limits: Limits) -> bool:
        """Whether a clamped mask is what all keys that are seen have besides their scores."""
        left = torch.where(self.used, self.added - self.bias.clamp(*limits), 0.0)
        count = self.used.sum(-1, keepdim=True).clamp_min(1)
        left = torch.where(self.used, left - left.sum(-1, keepdim=True) / count, 0.0)
        worst = torch.where(self.used, self.room, 0.0).amax(-1, keepdim=True)
        return bool((left.abs() <= worst).all())


def _most_frequent(values: Tensor) -> list[float]:
    """The numbers that occur most often, to what is read of logits."""
    values = values[torch.isfinite(values)]
    steps, counts = (values / model.FILL_READ_TO).round().unique(return_counts=True)
    chosen = steps[counts.argsort(descending=True)[:MOST_LIMITS]] * model.FILL_READ_TO
    near = ((values - one).abs() <= model.FILL_READ_TO for one in chosen)
    return [float(values[some].median()) for some in near]


def _rounded(number: float | None, digits: int) -> float | None:
    return None if number is None else float(f"{number:.{digits}g}")


def whole_bias(inputs: Inputs) -> Tensor:
    """An additive mask with minus infinity at the keys that it hides: ``[B, H, Lq, Lk]``."""
    bias = torch.zeros(1, dtype=torch.float64) if inputs.bias is None else inputs.bias.double()
    if inputs.keep is not None:
        bias = torch.where(inputs.keep, bias, -math.inf)
    return bias.expand(inputs.score_shape)


def _clamped(limits: Limits, *, hides: bool, empty_too: bool) -> NamedMistake:
    """A clamped mask, whose minus infinities still hide keys or are clamped as well.

    Rows without keys have some by that, or with ``empty_too`` false stay without.
    """

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        if not has_bias(call.inputs):
            return None
        bias = whole_bias(call.inputs)
        kept = ~torch.isneginf(bias)
        clamped = torch.where(kept, bias, 0.0).clamp(*limits) if hides else bias.clamp(*limits)
        if not hides:
            left = (kept & admitted_by_structure(call)).any(-1, keepdim=True)
            kept = left.expand_as(bias) if not empty_too else torch.ones_like(kept)
        return call.inputs.replace(keep=kept, bias=clamped)

    low, high = limits
    words = " and ".join(
        f"at {side} {limit:g}"
        for side, limit in (("least", low), ("most", high))
        if limit is not None
    )
    text = f"the additive mask is clamped to {words} before it is added"
    if not hides:
        text += ", so that keys that it hides with minus infinity have a weight"
    rows = "" if empty_too else ", in rows with other keys"
    name = f"bias: clamped to {words}{'' if hides else ', minus infinity too'}{rows}"
    return statement(name, text + rows, _FIX_CLAMP, inputs=inputs_for)


@dataclass(frozen=True)
class Place:
    """What weights and an additive mask are made into, behind the softmax.

    The mask is zero at hidden keys, or with ``minus_infinity`` that. Rows without keys are spared,
    but for ``empty_too``. Unless it ``hides``, the softmax knows nothing of it.
    """

    words: str
    join: Callable[[Tensor, Tensor], Tensor]
    minus_infinity: bool = False
    empty_too: bool = False
    hides: bool = True


def fill_of_layer_statements(answer: BatteryAnswer) -> Iterator[NamedMistake]:
    """The logit of hidden keys where they win over the only kept one, from a layer's answer.

    The larger it is the more of the answer is theirs: halving finds the number.
    """
    call = DeclaredCall(inputs=answer.inputs, semantics=answer.subject.declaration.semantics)
    _, attention = mistaken_attention(call, (), every_key=True)
    fills = [Fill(0.0, added=added) for added in (True, False)]
    for fill in filter(None, (_read_fill(fill, call, attention, answer) for fill in fills)):
        yield from filled_keys([fill])
        if fill.added and has_bias(call.inputs):
            for empty_too in (True, False):
                yield _clamped((fill.number, None), hides=False, empty_too=empty_too)


def _read_fill(
    form: Fill, call: DeclaredCall, attention: golden.Attention, answer: BatteryAnswer
) -> Fill | None:
    """The number that explains an answer; None where none does."""

    def made(number: float) -> Tensor:
        change = operated("both", Fill(number, added=form.added).instead)(call, attention)
        return call.answer_of(attention.output if change is None else change.output)

    least, most = -_HIGHEST_FILL, _HIGHEST_FILL
    right = made(least)
    towards = made(most) - right
    size = towards.square().sum()
    if not bool(size > 0.0) or answer.output.shape != right.shape:
        return None

    def share(output: Tensor) -> float:
        return float(((output - right) * towards).sum() / size)

    wanted = share(answer.output)
    if not model.LEAST_PART / 2.0 < wanted < 1.0 - model.LEAST_PART:
        return None  # all or nothing says no number
    for _ in range(_FILL_HALVINGS):
        middle = (least + most) / 2.0
        least, most = (middle, most) if share(made(middle)) < wanted else (least, middle)
    number = float(round(most)) if abs(most - round(most)) < model.FILL_READ_TO else most
    room = model.FILL_READ_TO * towards.abs().amax()
    close = bool(((answer.output - made(number)).abs() <= room).all())
    return Fill(number, added=form.added) if close else None


def _over_sum(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


_DIVIDED: Final = "the weights, which are divided by their sum then"
_PLACES: Final = (
    Place("added to the weights", torch.add, minus_infinity=True),
    Place(
        "added to the weights, in rows without keys, too",
        torch.add,
        minus_infinity=True,
        empty_too=True,
    ),
    Place(
        "added to the weights with its minus infinities, and hides no key from the softmax",
        torch.add,
        hides=False,
    ),
    *(
        place
        for words, join in (
            (f"added to {_DIVIDED}", lambda w, b: _over_sum(w + b)),
            (f"multiplied with {_DIVIDED}", lambda w, b: _over_sum(w * b)),
        )
        for place in (
            Place(words, join),
            Place(f"{words}, in rows without keys, too", join, empty_too=True),
        )
    ),
    Place("multiplied with the weights", torch.mul),
    Place("added to one and multiplied with the weights", lambda w, b: w * (1.0 + b)),
    Place("multiplied with the weights as its exponential", lambda w, b: w * b.exp()),
)


def misplaced_bias_statements(reading: Reading) -> Iterator[NamedMistake]:
    """An additive mask that meets the weights, behind the softmax, in place of the logits."""
    if reading.call.inputs.bias is None or not bool(reading.wrong.any()):
        return
    rows = torch.isfinite(reading.weights).all(dim=-1)
    for place in _PLACES:
        core = _joined(place)
        made = core(reading.call, reading.attention)
        if made is not None and reading.agree(reading.weights[rows], made.weights[rows]):
            words = place.words
            if place.minus_infinity:
                words += ", with its minus infinities"
            yield statement(
                f"bias: {words}",
                f"the additive mask is {words}, behind the softmax",
                _FIX_PLACE,
                core=core,
            )


def _joined(place: Place) -> CoreChange:
    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        if not has_bias(call.inputs):
            return None
        if not place.hides:
            return weighing(
                attention, place.join(_unbiased(call, attention), whole_bias(call.inputs))
            )
        bias = call.inputs.bias
        given = torch.zeros(1, dtype=torch.float64) if bias is None else bias.double()
        given = torch.where(attention.allowed, given, 0.0)
        logits = (unmasked_logits(attention) - given).masked_fill(~attention.allowed, -math.inf)
        empty = attention.empty[..., None]
        plain = torch.where(empty, attention.weights, golden.softmax(logits))
        if place.minus_infinity:
            given = torch.where(attention.allowed, given, -math.inf)
        weights = place.join(plain, given)
        if not place.empty_too:
            weights = torch.where(empty, attention.weights, weights)
        return weighing(attention, weights)

    return core


def _unbiased(call: DeclaredCall, attention: golden.Attention) -> Tensor:
    """The weights of a call without its additive mask; zero in rows from which all is hidden."""
    reached = admitted_by_structure(call).expand_as(attention.weights)
    finite = 0.0 if attention.bias is None else torch.nan_to_num(attention.bias, neginf=0.0)
    logits = (unmasked_logits(attention) - finite).masked_fill(~reached, -math.inf)
    return torch.where(reached.any(-1, keepdim=True), golden.softmax(logits), 0.0)


def additive_mask_times(number: Number) -> NamedMistake:
    """The finite numbers of the additive mask multiplied by one."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        bias = call.inputs.bias
        if bias is None:
            return None
        factor = number.value(call.inputs.geometry)
        times = torch.where(torch.isneginf(bias), bias.double(), factor * bias.double())
        return call.inputs.replace(bias=times)

    return statement(
        f"logits: the additive mask multiplied by {number.words}",
        f"the additive mask is multiplied by {number.words} before it is added",
        "add the additive mask to the scaled scores as it is",
        inputs=inputs_for,
    )
