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
from ...base.geometry import Geometry
from ...problems.inputs import Inputs
from ...tolerance import model
from ..agreement import BatteryAnswer
from ..mistaken_answer import mistaken_attention
from ..mistakes import DeclaredCall, NamedMistake
from ..mistakes._steps import (
    admitted_by_structure,
    capped_scores,
    has_bias,
    keys_ahead,
    unmasked_logits,
    weighing,
)
from ..mistakes.fills import operated
from ..mistakes.named_mistake import CoreChange, InputsChange
from .cells import BIAS_MOVES
from .reading import ROOM, Number, Reading, statement
from .terms import Term, TermValues
from .visibility import CLEAR, Fill, filled_keys

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


_OF_ITS_OWN: Final = (
    "add the number of each query and key of each head and batch item to its own score"
)
# What is read at another place, and what follows the words for it.
_MOVED_PARTS: Final = {
    "both": "",
    "numbers": ", of which the numbers count and its own minus infinities",
    "numbers, hides more": ", whose minus infinities count beside its own",
    "hides": ", of which the minus infinities count and its own numbers",
}


def additive_mask_statements(reading: Reading) -> Iterator[NamedMistake]:
    """The additive mask of another item, head, query or key in place of its own."""
    call = reading.call
    if not has_bias(call.inputs) or bool((~reading.wrong).all()):
        return
    heads = call.projected_heads()
    for words, move in BIAS_MOVES:
        for part, which in _MOVED_PARTS.items():
            change = _with_moved(move, part)
            moved = change(call)
            if moved is None:
                continue
            other = DeclaredCall(inputs=moved, semantics=call.semantics)
            weights = other.attend(heads).weights
            if reading.agree(reading.weights, weights):
                yield statement(
                    f"bias: the additive mask {words}{which}",
                    f"the additive mask {words} is added in place of its own{which}",
                    _OF_ITS_OWN,
                    inputs=change,
                )


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


def _with_moved(move: Callable[[Tensor], Tensor], part: str) -> InputsChange:
    """The inputs with numbers or table of an additive mask at another place; None if alike."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if not has_bias(inputs):
            return None
        bias = whole_bias(inputs)
        kept = ~torch.isneginf(bias)
        bias = bias.masked_fill(~kept, 0.0)
        moved, seen = move(bias), move(kept)
        if moved.shape != bias.shape:
            return None
        if part == "hides":
            moved = bias
        if part == "numbers":
            seen = kept
        elif part == "numbers, hides more":
            seen = seen & kept
        if torch.equal(moved, bias) and torch.equal(seen, kept):
            return None
        return inputs.replace(keep=seen, bias=moved)

    return inputs_for


def _geometric(heads: int, first: int, count: int) -> Tensor:
    """Slopes ``2 ** (-8 i / count)`` of so many heads, i counted from a first number."""
    exponents = torch.arange(first, first + heads, dtype=torch.float64)
    return 2.0 ** (-8.0 * exponents / count)


def _by_key_head(sizes: Geometry) -> Tensor:
    group = sizes.num_heads // sizes.num_kv_heads
    return golden.alibi_slopes(sizes.num_kv_heads).repeat_interleave(group)


# Slopes of the heads ``[H]`` and functions of distances in place of the declared ones.
_SLOPES: Final[tuple[tuple[str, Callable[[Geometry], Tensor]], ...]] = (
    ("as declared", lambda sizes: golden.alibi_slopes(sizes.num_heads)),
    ("counted from 2 ** 0", lambda sizes: _two_sequences(sizes, 0, 1)),
    ("counted from 2 ** 0 in both sequences", lambda sizes: _two_sequences(sizes, 0, 0)),
    ("that go on with every other one from the second", lambda s: _two_sequences(s, 1, 2)),
    (
        "2 ** (-8 h / n), counted from 1",
        lambda sizes: _geometric(sizes.num_heads, 0, sizes.num_heads),
    ),
    (
        "2 ** (-8 (h + 1) / n) for every number n of heads",
        lambda sizes: _geometric(sizes.num_heads, 1, sizes.num_heads),
    ),
    ("in reversed order", lambda sizes: golden.alibi_slopes(sizes.num_heads).flip(0)),
    ("of the head before", lambda sizes: golden.alibi_slopes(sizes.num_heads).roll(1)),
    ("of the head after", lambda sizes: golden.alibi_slopes(sizes.num_heads).roll(-1)),
    (
        "of the first head",
        lambda sizes: golden.alibi_slopes(sizes.num_heads)[:1].expand(sizes.num_heads),
    ),
    ("of the key/value heads", _by_key_head),
    ("of one", lambda sizes: torch.ones(sizes.num_heads, dtype=torch.float64)),
    ("twice as large", lambda sizes: 2.0 * golden.alibi_slopes(sizes.num_heads)),
    ("half as large", lambda sizes: golden.alibi_slopes(sizes.num_heads) / 2.0),
    ("squared", lambda sizes: golden.alibi_slopes(sizes.num_heads).square()),
    ("as roots of the declared ones", lambda sizes: golden.alibi_slopes(sizes.num_heads).sqrt()),
)
_DISTANCES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("", torch.abs),
    ("distances with their sign", lambda ahead: -ahead),
    ("distances with the other sign", lambda ahead: ahead),
    ("negative distances", lambda ahead: -ahead.abs()),
    ("squares of distances", torch.square),
    ("roots of distances", lambda ahead: ahead.abs().sqrt()),
    ("logarithms of one and the distance", lambda ahead: ahead.abs().log1p()),
    ("distances less one", lambda ahead: ahead.abs() - 1.0),
    ("distances one too large but for the query's own place", lambda a: a.abs() + (a != 0)),
    ("distances one too small but for the query's own place", lambda a: (a.abs() - 1.0).relu()),
    ("distances of keys before the query alone", lambda ahead: (-ahead).relu()),
    ("distances of keys after the query alone", lambda ahead: ahead.relu()),
    *(
        (f"distances of at most {most}", lambda ahead, most=most: ahead.abs().clamp_max(most))
        for most in (1, 2, 3, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128)
    ),
)


def _two_sequences(sizes: Geometry, first: int, further: int) -> Tensor:
    """Slopes whose first exponents, and those for heads beyond a power of two, start otherwise."""
    power = 2 ** (max(sizes.num_heads, 1).bit_length() - 1)
    finer = _geometric(2 * power, further, 2 * power)[::2]
    return torch.cat([_geometric(power, first, power), finer])[: sizes.num_heads]


def _no_slopes(sizes: Geometry) -> Tensor:
    return torch.zeros(sizes.num_heads, dtype=torch.float64)


def _other_slopes() -> Iterator[Term]:
    """The scores with another linear bias than the declared one, or with its distances changed."""
    without = "the scores without the bias by distance"
    fix = "take the declared slope of each head times the distance off the scaled scores"
    yield Term(without, without, _with_slopes(_no_slopes, torch.abs), operand=True, fix=fix)
    for words, slopes in _SLOPES[1:]:
        text = f"the scores and a bias by distance with slopes {words}"
        yield Term(text, text, _with_slopes(slopes, torch.abs), operand=True, fix=fix)
    for words, change in _DISTANCES[1:]:
        text = f"the scores and the declared slopes times {words} taken off"
        yield Term(text, text, _with_slopes(_SLOPES[0][1], change), operand=True, fix=fix)
    for corner, bottom_right in (("last", True), ("first", False)):
        text = f"the scores and a bias by distance with places counted from the {corner} key"
        values = _with_slopes(_SLOPES[0][1], torch.abs, bottom_right=bottom_right)
        yield Term(text, text, values, operand=True, fix=fix)


def _with_slopes(
    slopes: Callable[[Geometry], Tensor],
    change: Callable[[Tensor], Tensor],
    *,
    bottom_right: bool | None = None,
) -> TermValues:
    def values(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        if attention.alibi is None:
            return None
        ahead = keys_ahead(call, bottom_right=bottom_right).double()
        modified = golden.modify(capped_scores(attention), attention.semantics)
        return modified - slopes(call.inputs.geometry)[:, None, None] * change(ahead)

    return values


LINEAR_BIASES: Final = tuple(_other_slopes())
