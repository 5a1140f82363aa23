"""Formulas of the weights that are wrong as a whole: other logits, no softmax, or other sums.

Each is computed for what was read and proposed where it gives those weights. Where a formula gives
no number, as for minus infinities that meet the values, a row may answer anything; the others tell.
Scales are read at one head size, and confirmed at others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ..mistakes import DeclaredCall, NamedMistake
from ..mistakes._steps import (
    BLOCKS,
    admitted_by_mask,
    admitted_by_structure,
    biased,
    capped_scores,
    emptied,
    has_bias,
    plain_scores,
    relogited,
    row_largest,
    weighing,
)
from .bias_statements import whole_bias
from .denominators import sum_ratio
from .influence import tile_sizes
from .logits import LogitFit
from .reading import Reading, in_digits, statement
from .terms import ADDED, SCORES
from .tiles import SUMS

_SOFTMAX: Final = "take the softmax of the masked logits over the keys, before they meet the values"
_SUM: Final = "divide the exponentials by their own sum over the keys that the query attends"
_LARGEST: Final = "subtract each row's largest logit over the keys, then take the exponentials"
# Below are sums that are held up in many ways.
_FAINT: Final = math.sqrt(torch.finfo(torch.float32).tiny)
_RESCALED: Final = "rescale the sum so far where the maximum grows, and add that of the tile to it"
_RELATIVE: Final = (
    "take the exponentials of a tile relative to its largest logit, as they are joined"
)
_ADD: Final = "add the additive mask to the scaled scores"
_SCORES: Final = "let the softmax see the scaled dot products of each query and key as they are"
_CAP: Final = "cap the scaled scores once: c * tanh(scores / c)"
_SCALE: Final = (
    "multiply the dot products by the scale of the call, or by that which is declared: 1/√(the "
    "head size) where there is no other"
)
_LOGARITHM: Final = "the logarithm of their softmax"

WeightsOf = Callable[[DeclaredCall, golden.Attention], Tensor | None]


@dataclass(frozen=True)
class Formula:
    """Weights of a call ``[B, H, Lq, Lk]``, None where they are right; ``words`` say what they are.

    With ``of_logits`` they are logits, whose softmax follows; else they meet the values. With
    ``of_mask`` they are of the shape of the mask alone.
    """

    words: str
    fix: str
    of: WeightsOf
    of_logits: bool = False
    of_mask: bool = False

    def core(self, call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        """The attention with this formula; rows without a number are open."""
        made = self.of(call, attention)
        if made is None:
            return None
        made = made.expand_as(attention.weights)
        if self.of_logits:
            unknown = ~torch.isfinite(made.masked_fill(torch.isneginf(made), 0.0)).all(-1)
            made = made.masked_fill(~attention.allowed | unknown[..., None], -math.inf)
            answered = relogited(emptied(attention, unknown), made)
            instead = torch.full_like(attention.output, math.nan)
        else:
            unknown = ~torch.isfinite(made).all(dim=-1)
            rows = (attention.empty | unknown)[..., None]
            instead = made @ attention.value
            made = torch.where(rows, attention.weights, made)
            answered = weighing(emptied(attention, unknown), made)
        # Rows without keys have a declared answer, which what is no number spoils.
        spoiled = (unknown & attention.empty)[..., None]
        output = torch.where(spoiled, instead, answered.output)
        if self.of_mask and (call.inputs.mask_shape or "")[-2:-1] == "1":
            output = output[..., :1, :]  # a mask for all queries has one row
        return replace(answered, output=output)

    def statement(self) -> NamedMistake:
        """The formula as a mistake."""
        kind = "logits" if self.of_logits else "weights"
        text = f"the {kind} are {self.words}"
        return statement(f"{kind}: {self.words}", text, self.fix, core=self.core)


def _hiding() -> Iterator[tuple[str, WeightsOf]]:
    """Functions of logits that give hidden keys no number, with what these have instead."""
    functions: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
        ("the logits themselves, not their softmax", lambda logits: logits),
        (_LOGARITHM, lambda logits: logits.log_softmax(-1)),
        ("their softmax over the heads", lambda logits: logits.softmax(1)),
        ("their softmax over the batch items", lambda logits: logits.softmax(0)),
        ("their softmax over the queries", lambda logits: logits.softmax(-2)),
    )
    for words, function in functions:
        if words != _LOGARITHM:  # stated as a function of the weights
            yield words, partial(_of_logits, function, _none)
        masked = partial(_of_logits, function, lambda call, _a: ~admitted_by_mask(call))
        yield f"{words}, and zero for keys that the mask hides", masked
        hidden = partial(_of_logits, function, lambda _call, a: ~a.allowed)
        yield f"{words}, and zero for hidden keys", hidden


def _none(_call: DeclaredCall, _attention: golden.Attention) -> Tensor:
    return torch.zeros(1, dtype=torch.bool)


def _of_logits(
    function: Callable[[Tensor], Tensor],
    zero: Callable[[DeclaredCall, golden.Attention], Tensor],
    call: DeclaredCall,
    attention: golden.Attention,
) -> Tensor:
    return function(attention.logits).masked_fill(zero(call, attention), 0.0)


def _powers(attention: golden.Attention) -> Tensor:
    """Exponentials relative to the largest of their row, zero for hidden keys."""
    return (attention.logits - row_largest(attention.logits)).exp()


def _largest_alone(attention: golden.Attention) -> Tensor:
    """The exponential of each row's largest logit divided by itself, if it is a number."""
    power = row_largest(attention.logits).float().exp().double()
    return (power / power).expand_as(attention.weights)


def _less_along(axis: int) -> WeightsOf:
    """The softmax of logits less the largest along an axis, of each key."""

    def logits(_call: DeclaredCall, attention: golden.Attention) -> Tensor:
        given = attention.logits
        made = given - given.amax(axis, keepdim=True)
        return torch.where(attention.empty[..., None], given, made)

    return logits


def _with_scores(scores_of: Callable[[golden.Attention], Tensor | None]) -> WeightsOf:
    """Logits of other scores; an additive mask, a bias by distance and the mask are as they are."""

    def logits(_call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        scores = scores_of(attention)
        if scores is None:
            return None
        made = biased(attention, scores)
        made = made if attention.bias is None else made + attention.bias
        return made.masked_fill(~attention.allowed, -math.inf)

    return logits


def _of_scores(function: Callable[[Tensor], Tensor], attention: golden.Attention) -> Tensor:
    return function(capped_scores(attention))


def _under_cap(function: Callable[[Tensor, float], Tensor]) -> WeightsOf:
    return _with_scores(
        lambda a: None if a.softcap is None else function(plain_scores(a), a.softcap)
    )


def _with_bias(join: Callable[[Tensor, Tensor], Tensor]) -> WeightsOf:
    """Logits of the scores and the additive mask, joined otherwise than as their sum."""

    def logits(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        if not has_bias(call.inputs):
            return None
        made = join(biased(attention, capped_scores(attention)), whole_bias(call.inputs))
        return made.masked_fill(~admitted_by_structure(call), -math.inf)

    return logits


def _every() -> Iterator[Formula]:
    yield from (Formula(words, _SOFTMAX, of) for words, of in _hiding())
    for words, of in (
        ("one for each key, hidden or not", lambda _call, a: _largest_alone(a)),
        ("one for each key that is not hidden", lambda _call, a: a.allowed.double()),
        (
            "the exponentials, relative to the largest of their row, times their sum",
            lambda _call, a: _powers(a) * _powers(a).sum(-1, keepdim=True),
        ),
        (
            "the exponentials, relative to the largest of their row, divided by their product",
            lambda _call, a: _powers(a) / _powers(a).prod(-1, keepdim=True),
        ),
        (
            "the exponentials, relative to the largest of their row, divided by the sum of all",
            lambda _call, a: _powers(a) / _powers(a).sum().clamp_min(_FAINT),
        ),
        (
            "the exponentials, relative to the largest of their row, divided by the item's sum",
            lambda _call, a: _powers(a) / _powers(a).sum((1, 2, 3), keepdim=True).clamp_min(_FAINT),
        ),
        (
            "the exponentials, relative to the largest of their row, divided by the head's sum",
            lambda _call, a: _powers(a) / _powers(a).sum((2, 3), keepdim=True).clamp_min(_FAINT),
        ),
        (
            "the exponentials less one, hidden keys too, divided by their sum",
            lambda _call, a: _shares(_powers(a) - 1.0),
        ),
    ):
        yield Formula(words, _SUM, of)
    for words, axis in (("batch items", 0), ("heads", 1), ("queries", -2)):
        said = f"relative to the largest of each key over the {words}"
        yield Formula(said, _LARGEST, _less_along(axis), of_logits=True)
    for words, function in (
        ("one divided by the scores", torch.reciprocal),
        ("the scores' size, its root with their sign", lambda s: s.sign() * s.abs().sqrt()),
    ):
        made = _with_scores(partial(_of_scores, function))
        yield Formula(words, _SCORES, made, of_logits=True)
    for words, of_cap in (
        (
            "c tanh(c divided by the scores), c being the softcap",
            lambda s, c: c * (c / s.masked_fill(s == 0.0, math.nan)).tanh(),
        ),
        (
            "c tanh(the scores divided by c, rounded down), c being the softcap",
            lambda s, c: c * (s / c).floor().tanh(),
        ),
        ("tanh(the scores divided by c), c being the softcap", lambda s, c: (s / c).tanh()),
        ("the scores divided by the softcap c", lambda s, c: s / c),
    ):
        yield Formula(words, _CAP, _under_cap(of_cap), of_logits=True)
    alone = "the additive mask alone, without the scores"
    of_mask = _with_bias(lambda _scores, bias: bias)
    yield Formula(alone, _ADD, of_mask, of_logits=True, of_mask=True)
    for words, join in (
        ("the scores times the additive mask", torch.mul),
        ("the scores less the additive mask", torch.sub),
    ):
        yield Formula(words, _ADD, _with_bias(join), of_logits=True)


# Sizes of tiles that are no power of two, and numbers of parts that keys are cut into.
_TILES: Final = (3, 5, 6, 7, 9, 10, 12, 20, 24, 48, 96)
_PARTS: Final = range(2, 9)


def _tiled() -> Iterator[Formula]:
    """What depends on tiles of keys, or on parts: sums of the last one, and its own largest."""
    cuts: list[tuple[str, Callable[[int], int]]] = [
        (f"tile of {size} keys", partial(_size_of_tile, size)) for size in _TILES
    ]
    cuts += [
        (f"part of the keys, one of {count},", partial(_size_of_part, count)) for count in _PARTS
    ]
    for words, size_of in cuts:
        last = f"the exponentials divided by the sum of the last {words} alone"
        yield Formula(last, _RESCALED, partial(_over_last, size_of))
        own = f"too large by the largest one of their {words.rstrip(',')}"
        yield Formula(own, _RELATIVE, partial(_with_own_largest, size_of), of_logits=True)


def _size_of_tile(size: int, _keys: int) -> int:
    return size


def _size_of_part(count: int, keys: int) -> int:
    return max(-(-keys // count), 1)


def _over_last(
    size_of: Callable[[int], int], _call: DeclaredCall, attention: golden.Attention
) -> Tensor | None:
    """No number in rows to which the last tile is hidden, or its exponentials vanish."""
    keys = attention.logits.shape[-1]
    size = size_of(keys)
    if keys <= size:
        return None
    powers = _powers(attention)
    total = powers[..., (keys - 1) // size * size :].sum(-1, keepdim=True)
    total = torch.where(total < _FAINT, math.nan, total)
    return powers / torch.where(attention.empty[..., None], 1.0, total)


def _with_own_largest(
    size_of: Callable[[int], int], _call: DeclaredCall, attention: golden.Attention
) -> Tensor | None:
    keys = attention.logits.shape[-1]
    size = size_of(keys)
    if keys <= size:
        return None
    tiles = attention.logits.split(size, -1)
    lost = row_largest(attention.logits).abs() > -math.log(_FAINT)  # overflows, or vanishes
    made = torch.cat([tile + row_largest(tile) for tile in tiles], -1)
    return made.masked_fill(lost, math.nan)


# What may be in the place of exp(old - new), from the largest logit before a tile and after it.
_CORRECTIONS: Final[tuple[tuple[str, Callable[[Tensor, Tensor], Tensor]], ...]] = (
    ("exp(the new maximum)", lambda _old, new: new.exp()),
    ("exp(minus the new maximum)", lambda _old, new: (-new).exp()),
    ("exp(the old maximum)", lambda old, _new: old.exp()),
    ("exp(old maximum + new maximum)", lambda old, new: (old + new).exp()),
    ("exp(old maximum times new maximum)", lambda old, new: (old * new).exp()),
    ("2^(old times new maximum), to base two", lambda old, new: (old * new / math.log(2)).exp()),
)
_RIGHT_FACTOR: Final = "exp(old maximum - new maximum)"
_RESCALE: Final = f"multiply both sums so far by {_RIGHT_FACTOR}, then add those of the tile"


@dataclass(frozen=True)
class _Step:
    """A sum so far is multiplied by a ``factor``; what may be ``added`` is the right one."""

    words: str
    factor: Callable[[Tensor, Tensor], Tensor]
    added: bool = False

    def next(self, total: Tensor, old: Tensor, new: Tensor) -> Tensor:
        """The sum, with what is added in its last column."""
        made = total * self.factor(old, new)
        if self.added:
            made = torch.cat([made[..., :-1], made[..., -1:] + (old - new).exp()], -1)
        return made


_RIGHT: Final = _Step("", lambda old, new: (old - new).exp())
_LOST: Final = _Step(
    f"multiplied by zero, not by {_RIGHT_FACTOR}", lambda o, _: torch.zeros_like(o)
)
_STEPS: Final = (
    *(_Step(f"multiplied by {words}, not by {_RIGHT_FACTOR}", f) for words, f in _CORRECTIONS),
    _LOST,
    _Step(f"added to {_RIGHT_FACTOR}, not multiplied", lambda _, n: torch.ones_like(n), added=True),
    _Step(f"replaced by {_RIGHT_FACTOR}", lambda old, _new: torch.zeros_like(old), added=True),
)


@dataclass(frozen=True)
class _WrongLoop:
    """A loop over tiles of keys that corrects one sum, or both, in a wrong way."""

    size: int
    which: str
    step: _Step

    def sums(self, attention: golden.Attention) -> tuple[Tensor, Tensor]:
        """Weights, what is added in a last column, and the divisor: NaN where it may vanish."""
        mixing, totalling = (self.step if wrong else _RIGHT for wrong in SUMS[self.which])
        logits = attention.logits
        old = torch.full_like(logits[..., :1], -math.inf)
        mixed = torch.zeros_like(torch.nn.functional.pad(logits, (0, 1)))
        total = torch.zeros_like(mixed[..., :1])
        unit = torch.eye(mixed.shape[-1], dtype=mixed.dtype)
        for tile, own in zip(logits.split(self.size, -1), unit[:-1].split(self.size), strict=True):
            largest = torch.maximum(old, tile.amax(-1, keepdim=True))
            new = torch.where(torch.isneginf(largest), 0.0, largest)
            powers = (tile - new).exp()
            mixed = mixing.next(mixed, old, new) + powers @ own
            total = totalling.next(total, old, new) + powers.sum(-1, keepdim=True)
            old = largest
        far = (old.abs() > -math.log(_FAINT)) & ~torch.isneginf(old)
        off = (total.abs() < _FAINT) | (mixed.abs().amax(-1, keepdim=True) > _FAINT**-0.75)
        return mixed, total.masked_fill(far | off, math.nan)

    def core(self, _call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        """The attention of this loop; rows without a number are open."""
        mixed, total = self.sums(attention)
        made = mixed / total
        unknown = ~torch.isfinite(made).all(-1)
        kept = (attention.empty | unknown)[..., None]
        weights = torch.where(kept, attention.weights, made[..., :-1])
        answered = weighing(emptied(attention, unknown), weights)
        more = made[..., -1:].masked_fill(kept, 0.0)
        # Rows without keys have a declared answer, which a factor that is no number spoils.
        more = torch.where(attention.empty[..., None] & mixed.isnan(), math.nan, more)[..., :1]
        return replace(answered, output=answered.output + more)

    def statement(self) -> NamedMistake:
        """The loop as a mistake."""
        words = f"{self.which} {self.step.words}"
        return statement(
            f"tiles of {self.size}: {words}",
            f"with tiles of {self.size} keys {words}",
            _RESCALE,
            core=self.core,
        )


def loop_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Loops over tiles whose sums are corrected by something else than the right factor."""
    if reading.attention.sinks is not None or reading.nearly_right:
        return
    right = reading.attention.weights
    loops = [_WrongLoop(*how) for how in product(tile_sizes(reading), SUMS, _STEPS)]
    # Where both sums are lost, other statements say so: the keys of earlier tiles have no weight.
    loops = [one for one in loops if one.step is not _LOST or not all(SUMS[one.which])]
    if sum_ratio(reading) is not None:
        sums = [which for which, (weighted, _) in SUMS.items() if not weighted]
        sizes = [size for size in (*BLOCKS[1:], *_TILES) if size < right.shape[-1]]
        loops += [_WrongLoop(*how) for how in product(sizes, sums, _STEPS)]
    for loop in loops:
        made = loop.core(reading.call, reading.attention)
        rows = ~made.empty
        told = rows.any() and not reading.agree(made.weights[rows], right[rows])
        if told and reading.agree(reading.weights[rows], made.weights[rows]):
            yield loop.statement()


def _shares(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


_FORMULAS: Final = (*_every(), *_tiled())


def formula_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Formulas that give the weights that were read, in the rows in which they give a number."""
    if reading.nearly_right or not bool(reading.wrong.any()):
        return
    right, read = reading.attention, reading.weights
    for formula in _FORMULAS:
        made = formula.core(reading.call, right)
        if made is None:
            continue
        rows = ~made.empty
        if not rows.any() or reading.agree(made.weights[rows], right.weights[rows]):
            continue
        if reading.agree(read[rows], made.weights[rows]):
            yield formula.statement()


# Multiples and powers of the head size, and numbers of which it is the exponent.
_TIMES: Final = (1.0, 2.0, 0.5, 4.0, 0.25, 3.0, -1.0)
_EXPONENTS: Final = (1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 0.25, -0.25, 1.5, -1.5)
_BASES: Final = (2.0, 0.5, -0.5, -2.0)


def _scales() -> Iterator[tuple[str, Callable[[int], float]]]:
    for times, power in product(_TIMES, _EXPONENTS):
        if (times, power) != (1.0, -0.5):
            words = f"{in_digits(times)} times " * (times != 1.0)
            power_of = partial(_multiple_of_power, times, power)
            yield f"{words}the head size to the power of {in_digits(power)}", power_of
    for base in _BASES:
        yield f"{in_digits(base)} to the power of the head size", partial(math.pow, base)


def _multiple_of_power(times: float, power: float, size: int) -> float:
    return times * math.pow(size, power)


def scale_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Scales that are another function of the head size: a multiple, a power or an exponent."""
    fit = LogitFit(reading)
    scores, bias = fit.column(SCORES), fit.column(ADDED[0])
    if not fit.count or scores is None:
        return
    fitted = fit.alone(scores[None], [] if bias is None else [bias])
    if not fitted or abs(fitted[0][1] - 1.0) <= 2.0 * reading.same:
        return
    read, size = fitted[0][1] * reading.call.scale, reading.sizes.head_size
    for words, function in _scales():
        if abs(function(size) - read) <= 2.0 * reading.same * abs(read):
            for always in (True, False):
                yield _scaled(words, function, always=always)


def _scaled(words: str, function: Callable[[int], float], *, always: bool) -> NamedMistake:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        if call.inputs.scale is not None and not always:
            return None
        return call.inputs.replace(scale=function(call.inputs.geometry.head_size))

    more = "" if always else " where the call has no scale"
    return statement(
        f"logits: scaled by {words}{more}",
        f"the dot products are multiplied by {words}{more}",
        _SCALE,
        inputs=inputs_for,
    )
