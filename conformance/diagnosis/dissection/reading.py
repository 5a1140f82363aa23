"""The weights that a candidate gives to its values, read by handing over values that are one.

Attention is linear in its values. So the answer to values that are one at a single key and zero at
all others is the weight of that key, for each query, head and batch item. Where the channels of the
values do not meet, each can be one at another key: one call reads as many keys. Whether they do
shows in the answer to other values: then each key is read in all channels.

Numbers that are read are put into words: constants, powers of sizes, else their digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...clauses.subject import Subject
from ...operators import SIZES
from ...problems.inputs import Inputs
from ...tolerance import model
from ..agreement import within
from ..battery import answer_to
from ..mistaken_answer import Combination, made_on, mistaken_attention, mistaken_call
from ..mistakes import IMPOSSIBLE, DeclaredCall, NamedMistake, NotExpressible

# Keys that one reading may have: each costs a call.
MOST_KEYS: Final = 160
# Errors of the declared precision that a number read may be off by.
ROOM: Final = 4.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """What the answers to some inputs are made of.

    call, attention
        The inputs at the declared point, and what the golden makes of them: with the mistakes
        that are known already, if there are any.
    weights
        What the values of each key add to the answer: float64 ``[B, H, Lq, Lk]``.
    answer
        The answer to the values of the inputs: ``[B, H, Lq, Dv]``.
    explained
        Whether these weights and the values of a query's own head and item make that answer.
    error
        How far a weight may be off at the declared precision: ``[B, H, Lq, Lk]``.
    given
        The inputs that the candidate answered.
    """

    call: DeclaredCall
    attention: golden.Attention
    weights: Tensor
    answer: Tensor
    explained: bool
    error: Tensor
    given: Inputs

    @property
    def sizes(self) -> Geometry:
        """The sizes of the call."""
        return self.call.inputs.geometry

    @cached_property
    def same(self) -> float:
        """The part of a number by which the same number, computed elsewhere, may differ."""
        return max(model.SAME_READ, ROOM * torch.finfo(self.call.inputs.query.dtype).eps)

    def against(self, call: DeclaredCall, made: Combination = ()) -> Reading:
        """The same reading beside what the golden makes of another call, with some mistakes."""
        _, attention = mistaken_attention(call, made, every_key=True)
        return replace(self, call=call, attention=attention)

    @cached_property
    def visible(self) -> Tensor:
        """The keys that have a weight: bool ``[B, H, Lq, Lk]``."""
        return self.weights.abs() > ROOM * self.error

    @cached_property
    def wrong(self) -> Tensor:
        """The rows with a weight that is not the right one: bool ``[B, H, Lq, 1]``."""
        apart = (self.weights - self.attention.weights).abs() > ROOM * self.error
        return apart.any(dim=-1, keepdim=True)

    @cached_property
    def legible(self) -> Tensor:
        """The keys whose weight is positive and large enough for its logarithm to be read."""
        largest = self.weights.abs().amax(dim=-1, keepdim=True)
        return (self.weights > model.SMALLEST_READ * largest) & (self.weights > ROOM * self.error)

    @cached_property
    def logits(self) -> Tensor:
        """The logarithm of each legible weight, NaN elsewhere."""
        return torch.where(self.legible, self.weights, torch.nan).log()

    @cached_property
    def logit_error(self) -> Tensor:
        """How far each logit may be off."""
        return ROOM * self.error / self.weights.abs()


def readable(inputs: Inputs) -> bool:
    """Whether the values of some inputs can be changed alone, in as many calls as are allowed."""
    keys = inputs.geometry.key_length
    return not inputs.is_layer and inputs.mode == "separate" and 0 < keys <= MOST_KEYS


def read(
    subject: Subject, inputs: Inputs, known: Combination = (), *, finite: bool = True
) -> Reading | None:
    """Read what the answers to some inputs are made of; None where an answer is of another shape.

    ``inputs`` are those of a core for which :func:`readable` holds. What is read is compared with
    what the golden makes of them with the mistakes that are ``known``. Weights that are no numbers
    are read where they need not be ``finite``: an answer that is none either is explained by them.
    """
    zeros = torch.zeros_like(inputs.value)
    answer, offset = _answer(subject, inputs, inputs.value), _answer(subject, inputs, zeros)
    if answer is None or offset is None or not answer.shape[-1]:
        return None
    declared = subject.declaration.semantics
    made = made_on(declared, known, inputs)
    try:
        call = mistaken_call(declared, made, inputs)
        _, attention = mistaken_attention(call, made, every_key=True)
    except (NotExpressible, *IMPOSSIBLE):
        return None  # what is known cannot be made of these inputs
    if attention.weights.shape != inputs.score_shape:
        return None  # what is known changes the number of items or heads
    if attention.value.shape[-1] != answer.shape[-1]:
        return None  # what is known takes values of another size

    def of(channels: int) -> Reading | None:
        weights = _weights(subject, inputs, offset, channels)
        if weights is None or (finite and not bool(torch.isfinite(weights).all())):
            return None
        composed = offset + weights @ attention.value
        rounding = torch.finfo(inputs.query.dtype).eps * composed.abs()
        room = ROOM * (subject.golden(inputs).bound + rounding)
        return Reading(
            call=call,
            attention=attention,
            weights=weights,
            answer=answer,
            explained=bool(within(answer, composed, room).all()),
            error=subject.oracle.weights_bound(inputs),
            given=inputs,
        )

    apart = of(answer.shape[-1])
    return apart if apart is None or apart.explained else of(1)


def _weights(subject: Subject, inputs: Inputs, offset: Tensor, channels: int) -> Tensor | None:
    """The weight of each key, ``[B, H, Lq, Lk]``; None where an answer is of another shape.

    A call reads a key in each of some ``channels``. Where there is one, a key has all channels of
    the values, and its weight is their mean. ``offset`` is the answer to values of zero.
    """
    keys, columns = inputs.geometry.key_length, []
    for first in range(0, keys, channels):
        unit, count = torch.zeros_like(inputs.value), min(channels, keys - first)
        if channels == 1:
            unit[..., first, :] = 1.0
        else:
            unit[..., first : first + count, :count].diagonal(dim1=-2, dim2=-1).fill_(1.0)
        one = _answer(subject, inputs, unit)
        if one is None:
            return None
        read = one - offset
        columns.append(read.mean(dim=-1, keepdim=True) if channels == 1 else read[..., :count])
    return torch.cat(columns, dim=-1)


def _answer(subject: Subject, inputs: Inputs, value: Tensor) -> Tensor | None:
    """The answer to other values, ``[B, H, Lq, Dv]`` in float64."""
    answer = answer_to(subject, inputs.with_tokens(value=value))
    if answer is None or answer.output.shape != inputs.output_shape:
        return None
    return answer.output


HeadRule = Callable[[Geometry], list[float]]
_PRIMARY: Final = "numerics.golden"


def statement(name: str, text: str, fix: str, **steps: Any) -> NamedMistake:
    """The golden with exactly the change that was read; ``name`` is of the form "kind: words"."""
    return NamedMistake(name=name, primary=_PRIMARY, sentence=text, fix=fix, **steps)


@dataclass(frozen=True)
class Number:
    """A number that was read, in words and as a function of the sizes of a call."""

    words: str
    value: Callable[[Geometry], float]


_CONSTANTS: Final[tuple[tuple[str, float], ...]] = (
    ("1", 1.0),
    ("-1", -1.0),
    ("2", 2.0),
    ("-2", -2.0),
    ("1/2", 0.5),
    ("3", 3.0),
    ("4", 4.0),
    ("1/4", 0.25),
    ("ln 2", math.log(2.0)),
    ("1/ln 2", 1.0 / math.log(2.0)),
)
_POWERS: Final = ((0.5, "√({})"), (-0.5, "1/√({})"), (1.0, "{}"), (-1.0, "1/{}"))
# Logits of long sequences are multiplied by the logarithm of their length (Su, 2021).
_LOGARITHMS: Final = ("the number of keys", "the number of queries")


def numbers(read: float, sizes: Geometry, same: float) -> Iterator[Number]:
    """What a number that was read at some sizes may be, closed forms first.

    ``same`` is the part of a number by which two readings of it may differ.
    """

    def near(value: float) -> bool:
        return abs(value - read) <= 2.0 * same * abs(value)

    yield from (_constant(words, value) for words, value in _CONSTANTS if near(value))
    for words, size in SIZES:
        for power, form in _POWERS:
            for sign in (1.0, -1.0):
                if size(sizes) > 1 and near(sign * math.pow(size(sizes), power)):
                    yield _of_size("-" * (sign < 0) + form.format(words), size, power, sign)
        if words in _LOGARITHMS and size(sizes) > 1 and near(math.log(size(sizes))):
            yield _logarithm_of(words, size)
    root = math.sqrt(sizes.head_size or 1)
    factor, plain = float(f"{read / root:.2g}"), float(f"{read:.2g}")
    if abs(factor) not in (0.0, 1.0) and root != 1.0 and near(factor * root):
        if near(plain):  # as round without a root
            yield _constant(in_digits(plain), plain)
        yield Number(f"{factor:g} √(the head size)", lambda at: factor * math.sqrt(at.head_size))
    yield _constant(in_digits(read), read)


@dataclass(frozen=True)
class HeadNumbers:
    """A number for each head, in words and as a function of the sizes of a call.

    NotExpressible at sizes at which nothing is known of them.
    """

    words: str
    of: Callable[[Geometry], list[float]]

    def of_heads(self, sizes: Geometry) -> Tensor:
        """The numbers ``[H, 1, 1]``, to be multiplied with ``[B, H, L, D]``."""
        return torch.tensor(self.of(sizes), dtype=torch.float64)[:, None, None]


def _slope(count: int, head: int) -> float:
    return float(golden.alibi_slopes(count)[head])


def _slope_in_half(head: int, count: int) -> float:
    own = count // 2 if count % 2 == 0 else count
    return _slope(own, head % own)


# What numbers of heads are multiples of, by the index h of a head and the number of heads.
_BY_HEAD: Final[tuple[tuple[str, Callable[[int, int], float]], ...]] = (
    ("(h + 1)", lambda h, _count: h + 1.0),
    ("h", lambda h, _count: float(h)),
    ("1/(h + 1)", lambda h, _count: 1.0 / (h + 1)),
    ("√(h + 1)", lambda h, _count: math.sqrt(h + 1)),
    ("1/√(h + 1)", lambda h, _count: 1.0 / math.sqrt(h + 1)),
    ("(the number of heads - h)", lambda h, count: float(count - h)),
    ("(-1)^h", lambda h, _count: (-1.0) ** h),
    ("2^-h", lambda h, _count: 2.0**-h),
    ("2^(-8 (h + 1)/the number of heads)", lambda h, count: 2.0 ** (-8.0 * (h + 1) / count)),
    ("2^(-8 h/the number of heads)", lambda h, count: 2.0 ** (-8.0 * h / count)),
    ("the slope of ALiBi of twice as many heads", lambda h, n: _slope(2 * n, h)),
    ("the slope of ALiBi counted from the last head", lambda h, n: _slope(n, n - 1 - h)),
    ("the slope of ALiBi counted anew in each half of the heads", _slope_in_half),
    ("2^(8/H) times the slope of ALiBi, of H heads,", lambda h, n: _slope(n, h) * 2.0 ** (8.0 / n)),
)


def head_numbers(read: Sequence[float], sizes: Geometry, same: float) -> Iterator[HeadNumbers]:
    """What the numbers may be that were read of each head: by a rule first, else as they are.

    A rule holds for any number of heads. ``same`` is as for :func:`numbers`.
    """
    for words, rule in _rules(read, sizes, same):
        yield HeadNumbers(f"{words} in head h", rule)
    shared, most = sizes.num_kv_heads, max(map(abs, read))
    group = len(read) // max(shared, 1)
    apart = (abs(number - read[head - head % group]) for head, number in enumerate(read))
    if 1 < shared <= len(read) and max(apart) <= 2.0 * same * most:
        few = sizes.replace(num_heads=shared)
        for words, rule in _rules(read[::group], few, same):
            yield HeadNumbers(f"{words} in heads of key/value head h", _in_groups(rule))
    listed = ", ".join(f"{in_digits(number)} in head {head}" for head, number in enumerate(read))
    yield HeadNumbers(listed, _of_so_many(read))


def _rules(read: Sequence[float], sizes: Geometry, same: float) -> Iterator[tuple[str, HeadRule]]:
    """Rules that give some numbers, of the index h of a head and sizes, with their words."""
    count, most = len(read), max(map(abs, read))

    def near(made: Sequence[float]) -> bool:
        return all(abs(a - b) <= 2.0 * same * most for a, b in zip(read, made, strict=True))

    for words, rule in _BY_HEAD:
        made = [rule(head, count) for head in range(count)]
        factor = sum(a * b for a, b in zip(read, made, strict=True)) / sum(b * b for b in made)
        if factor and near([factor * one for one in made]):
            for one in numbers(factor, sizes, same):
                yield _times(one, words), _multiples(one, rule)
    first, last, step = read[0], read[-1], (read[-1] - read[0]) / (count - 1)
    if first and near([first + step * head for head in range(count)]):
        for one, two in product(numbers(first, sizes, same), numbers(step, sizes, same)):
            yield f"{one.words} + {_times(two, 'h')}", _steps(one, two)
        words = f"numbers from {in_digits(first)} to {in_digits(last)}, evenly spaced,"
        yield words, lambda at: torch.linspace(first, last, at.num_heads).tolist()
    ratio = read[1] / first if first else 0.0
    if ratio > 0.0 and near([first * ratio**head for head in range(count)]):
        for one, two in product(numbers(first, sizes, same), numbers(ratio, sizes, same)):
            yield _times(one, f"({two.words})^h"), _powers(one, two)


def _times(number: Number, words: str) -> str:
    return words if number.words == "1" else f"{number.words} times {words}"


def _in_groups(rule: HeadRule) -> HeadRule:
    def of(at: Geometry) -> list[float]:
        shared = max(at.num_kv_heads, 1)
        made = rule(at.replace(num_heads=shared))
        return [made[head * shared // at.num_heads] for head in range(at.num_heads)]

    return of


def _multiples(number: Number, rule: Callable[[int, int], float]) -> HeadRule:
    return lambda at: [number.value(at) * rule(h, at.num_heads) for h in range(at.num_heads)]


def _steps(first: Number, step: Number) -> HeadRule:
    return lambda at: [first.value(at) + h * step.value(at) for h in range(at.num_heads)]


def _powers(first: Number, ratio: Number) -> HeadRule:
    return lambda at: [first.value(at) * ratio.value(at) ** h for h in range(at.num_heads)]


def _of_so_many(read: Sequence[float]) -> HeadRule:
    def of(at: Geometry) -> list[float]:
        if at.num_heads != len(read):
            raise NotExpressible
        return list(read)

    return of


def in_digits(number: float) -> str:
    """A number to four digits; near one to three digits of what it is above or below."""
    apart = abs(abs(number) - 1.0)
    if not model.SAID_AS_ONE < apart < model.SAID_NEAR_ONE:
        return f"{number:.4g}"
    return f"{number:.{2 - math.floor(math.log10(apart))}f}".rstrip("0")


def _logarithm_of(words: str, size: Callable[[Geometry], int]) -> Number:
    return Number(f"ln({words})", lambda sizes: math.log(max(size(sizes), 1)))


def _constant(words: str, value: float) -> Number:
    return Number(words, lambda _sizes: value)


def _of_size(words: str, size: Callable[[Geometry], int], power: float, sign: float) -> Number:
    return Number(words, lambda sizes: sign * math.pow(size(sizes), power))


def roundest(least: float, most: float) -> float:
    """The number with the fewest digits that is above one and at most another, both positive."""
    digits = -math.floor(math.log10(most))
    while True:
        number = math.floor(most * 10.0**digits) / 10.0**digits
        if number > least:
            return number
        digits += 1
