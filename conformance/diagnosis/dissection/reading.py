"""Reads the weights of a candidate by unit values.

Attention is linear in its values. The answer to values that are one at a single key and zero
elsewhere is the weight of this key, for each query, head and batch item. If channels do not mix,
each channel can mark another key, and one call reads many keys. The answer to ordinary values shows
whether channels mix: then each key is read in all channels.

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
from ..mistakes.named_mistake import read_every_key

# The most keys of a reading: each key may cost a call.
MOST_KEYS: Final = 160
# The tolerance of a number read, in errors of the declared precision.
ROOM: Final = 4.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """The weights that the answers to inputs are made of.

    call, attention
        The inputs at the declared point, and their golden attention, with known mistakes if any.
    weights
        What the values of each key add to the answer: float64 ``[B, H, Lq, Lk]``.
    answer
        The answer to the values of the inputs: ``[B, H, Lq, Dv]``.
    explained
        Whether these weights and the values of a query's own head and item make the answer.
    error
        The error of a weight at the declared precision: ``[B, H, Lq, Lk]``.
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

    @property
    def run(self) -> golden.Run:
        """The run behind the attention, with keys that no query reads."""
        return read_every_key(self.attention.run)

    @cached_property
    def same(self) -> float:
        """The relative difference allowed between two computations of the same number."""
        return max(model.SAME_READ, ROOM * torch.finfo(self.call.inputs.query.dtype).eps)

    def against(self, call: DeclaredCall, made: Combination = ()) -> Reading:
        """Return the reading beside the golden attention of another call with mistakes."""
        _, attention = mistaken_attention(call, made)
        return replace(self, call=call, attention=attention)

    @cached_property
    def visible(self) -> Tensor:
        """The keys that have a weight: bool ``[B, H, Lq, Lk]``."""
        return self.weights.abs() > ROOM * self.error

    @cached_property
    def wrong(self) -> Tensor:
        """The rows with a wrong weight: bool ``[B, H, Lq, 1]``."""
        apart = (self.weights - self.attention.weights).abs() > ROOM * self.error
        return apart.any(dim=-1, keepdim=True)

    @cached_property
    def legible(self) -> Tensor:
        """The keys whose weight is positive and large enough to read its logarithm."""
        largest = self.weights.abs().amax(dim=-1, keepdim=True)
        return (self.weights > model.SMALLEST_READ * largest) & (self.weights > ROOM * self.error)

    @cached_property
    def logits(self) -> Tensor:
        """The logarithm of each legible weight, NaN elsewhere."""
        return torch.where(self.legible, self.weights, torch.nan).log()

    @cached_property
    def logit_error(self) -> Tensor:
        """The error of each logit."""
        return ROOM * self.error / self.weights.abs()


def readable(inputs: Inputs) -> bool:
    """Whether the values of inputs can be changed alone, in as many calls as are allowed."""
    keys = inputs.geometry.key_length
    return not inputs.is_layer and inputs.mode == "separate" and 0 < keys <= MOST_KEYS


def read(
    subject: Subject, inputs: Inputs, known: Combination = (), *, finite: bool = True
) -> Reading | None:
    """Read the weights behind the answers to inputs; None if an answer has a wrong shape.

    ``inputs`` must be :func:`readable`. The reading is compared with golden attention with the
    ``known`` mistakes. Weights may be NaN or infinite unless ``finite``: they explain answers that
    are not finite either.
    """
    zeros = torch.zeros_like(inputs.value)
    answer, offset = _answer(subject, inputs, inputs.value), _answer(subject, inputs, zeros)
    if answer is None or offset is None or not answer.shape[-1]:
        return None
    declared = subject.declaration.semantics
    made = made_on(declared, known, inputs)
    try:
        call = mistaken_call(declared, made, inputs)
        _, attention = mistaken_attention(call, made)
    except (NotExpressible, *IMPOSSIBLE):
        return None  # the known mistakes cannot be made on these inputs
    if attention.weights.shape != inputs.score_shape:
        return None  # what is known changes the number of items or heads
    if attention.value.shape[-1] != answer.shape[-1]:
        return None  # what is known takes values of another size

    def read_in(channels: int) -> Reading | None:
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

    apart = read_in(answer.shape[-1])
    return apart if apart is None or apart.explained else read_in(1)


def _weights(subject: Subject, inputs: Inputs, offset: Tensor, channels: int) -> Tensor | None:
    """Return the weight of each key, ``[B, H, Lq, Lk]``; None if an answer has a wrong shape.

    A call reads one key in each of ``channels``; with one channel, a key fills all channels of the
    values, and its weight is their mean. ``offset`` is the answer to values of zero.
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
    answer = answer_to(subject, inputs.with_tokens(value=value))
    if answer is None or answer.output.shape != inputs.output_shape:
        return None
    return answer.output


HeadRule = Callable[[Geometry], list[float]]
_PRIMARY: Final = "numerics.golden"


def statement(name: str, text: str, fix: str, **steps: Any) -> NamedMistake:
    """Return the mistake with exactly the change that was read; ``name`` is "kind: words"."""
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
    """Yield what a number read at known sizes may be, closed forms first.

    ``same`` is the relative difference allowed between two readings.
    """

    def near(value: float) -> bool:
        return abs(value - read) <= 2.0 * same * abs(value)

    yield from (_constant(words, value) for words, value in _CONSTANTS if near(value))
    for words, size in SIZES:
        for power, form in _POWERS:
            for sign in (1.0, -1.0):
                if size(sizes) > 1 and near(sign * math.pow(size(sizes), power)):
                    yield _power_of_size("-" * (sign < 0) + form.format(words), size, power, sign)
        if words in _LOGARITHMS and size(sizes) > 1 and near(math.log(size(sizes))):
            yield _logarithm_of(words, size)
    root = math.sqrt(sizes.head_size or 1)
    factor, plain = float(f"{read / root:.2g}"), float(f"{read:.2g}")
    if abs(factor) not in (0.0, 1.0) and root != 1.0 and near(factor * root):
        if near(plain):  # as round without a root
            yield _constant(digits_of(plain), plain)
        yield Number(f"{factor:g} √(the head size)", lambda at: factor * math.sqrt(at.head_size))
    yield _constant(digits_of(read), read)


@dataclass(frozen=True)
class HeadNumbers:
    """A number for each head, in words and as a function of the sizes of a call.

    Raises NotExpressible at sizes for which the numbers are unknown.
    """

    words: str
    of: Callable[[Geometry], list[float]]

    def tensor_of_heads(self, sizes: Geometry) -> Tensor:
        """Return the numbers ``[H, 1, 1]``, to be multiplied with ``[B, H, L, D]``."""
        return torch.tensor(self.of(sizes), dtype=torch.float64)[:, None, None]


def _slope(count: int, head: int) -> float:
    return float(golden.alibi_slopes(count)[head])


def _slope_in_half(head: int, count: int) -> float:
    own = count // 2 if count % 2 == 0 else count
    return _slope(own, head % own)


# Sequences that numbers of heads may be multiples of, by head index h and number of heads.
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
    """Yield what the numbers of heads may be: by a rule first, else as they are.

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
            yield HeadNumbers(f"{words} in heads of key/value head h", _repeat_in_groups(rule))
    listed = ", ".join(f"{digits_of(number)} in head {head}" for head, number in enumerate(read))
    yield HeadNumbers(listed, _fixed_numbers(read))


def _rules(read: Sequence[float], sizes: Geometry, same: float) -> Iterator[tuple[str, HeadRule]]:
    """Yield rules of the head index h and the sizes that give the numbers, with their words."""
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
        words = f"numbers from {digits_of(first)} to {digits_of(last)}, evenly spaced,"
        yield words, lambda at: torch.linspace(first, last, at.num_heads).tolist()
    ratio = read[1] / first if first else 0.0
    if ratio > 0.0 and near([first * ratio**head for head in range(count)]):
        for one, two in product(numbers(first, sizes, same), numbers(ratio, sizes, same)):
            yield _times(one, f"({two.words})^h"), _powers(one, two)


def _times(number: Number, words: str) -> str:
    return words if number.words == "1" else f"{number.words} times {words}"


def _repeat_in_groups(rule: HeadRule) -> HeadRule:
    def numbers_at(at: Geometry) -> list[float]:
        shared = max(at.num_kv_heads, 1)
        made = rule(at.replace(num_heads=shared))
        return [made[head * shared // at.num_heads] for head in range(at.num_heads)]

    return numbers_at


def _multiples(number: Number, rule: Callable[[int, int], float]) -> HeadRule:
    return lambda at: [number.value(at) * rule(h, at.num_heads) for h in range(at.num_heads)]


def _steps(first: Number, step: Number) -> HeadRule:
    return lambda at: [first.value(at) + h * step.value(at) for h in range(at.num_heads)]


def _powers(first: Number, ratio: Number) -> HeadRule:
    return lambda at: [first.value(at) * ratio.value(at) ** h for h in range(at.num_heads)]


def _fixed_numbers(read: Sequence[float]) -> HeadRule:
    def numbers_at(at: Geometry) -> list[float]:
        if at.num_heads != len(read):
            raise NotExpressible
        return list(read)

    return numbers_at


def digits_of(number: float) -> str:
    """Return a number to four digits; near one, to three digits of the difference to one."""
    apart = abs(abs(number) - 1.0)
    if not model.SAID_AS_ONE < apart < model.SAID_NEAR_ONE:
        return f"{number:.4g}"
    return f"{number:.{2 - math.floor(math.log10(apart))}f}".rstrip("0")


def _logarithm_of(words: str, size: Callable[[Geometry], int]) -> Number:
    return Number(f"ln({words})", lambda sizes: math.log(max(size(sizes), 1)))


def _constant(words: str, value: float) -> Number:
    return Number(words, lambda _sizes: value)


def _power_of_size(
    words: str, size: Callable[[Geometry], int], power: float, sign: float
) -> Number:
    return Number(words, lambda sizes: sign * math.pow(size(sizes), power))


def roundest(least: float, most: float) -> float:
    """Return the number with the fewest digits in ``(least, most]``, both positive."""
    digits = -math.floor(math.log10(most))
    while True:
        number = math.floor(most * 10.0**digits) / 10.0**digits
        if number > least:
            return number
        digits += 1
