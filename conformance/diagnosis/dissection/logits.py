"""What logits are made of: the fewest terms that add up to those that were read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from operator import itemgetter
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...clauses.subject import Subject
from ...oracle.yardstick import fitted_scale_error
from ...problems.inputs import Inputs
from ...tolerance import model
from ..agreement import BatteryAnswer
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import emptied, plain_scores, relogited, scored, weighing, with_unmasked
from .bias_statements import additive_mask_times
from .reading import ONE, Number, Reading, numbers, statement
from .terms import ADDED, OPERANDS, SCORES, UNCAPPED, Term, capped_at

# Logits that must be left over after a fit, so that it says something.
FEWEST_LEFT: Final = 3
# A factor on the logits that is so near one is a loss of precision, and is measured elsewhere.
NEARLY_RIGHT: Final = 0.1
_TINY: Final = torch.finfo(torch.float64).tiny
# The powers of ten that softcaps are tried between; how many, how often closer; the digits said.
CAPS_IN_TENS: Final = (-1.0, 2.5)
NUMBER_OF_CAPS: Final = 41
FINER_CAPS: Final = 5
MOST_DIGITS: Final = 5
# Terms that one reading cannot tell apart, of which others may tell the right one.
MOST_ALIKE: Final = 3
_UNCHANGED: Final = Term("products", "the dot products", lambda _call, a: plain_scores(a))


@dataclass(frozen=True)
class Composition:
    """Terms with the factors that they were found with, besides what a logit should consist of."""

    terms: tuple[Term, ...]
    factors: tuple[float, ...]


class LogitFit:
    """The equations of one reading: terms that add up to its logits, up to a constant a row.

    Along another ``axis``: up to one for each of its sums. With ``right_rows`` right rows count.
    """

    def __init__(self, reading: Reading, axis: int = -1, *, right_rows: bool = False) -> None:
        self.reading, self.axis = reading, axis
        legible = reading.legible & reading.attention.allowed
        if not right_rows:  # a mistake may be made in some rows alone: others say nothing about it
            legible = legible & reading.wrong
        self.used = legible & (legible.sum(dim=axis, keepdim=True) > 1)
        self.count = int((legible.sum(dim=axis) - 1).clamp_min(0).sum())
        self.room = (model.LOGIT_READ_TO + reading.logit_error)[self.used]
        self.logits = self.centred(reading.logits)

    def centred(self, values: Tensor, cells: Tensor | None = None) -> Tensor:
        """The values ``[.., B, H, Lq, Lk]`` of the cells that are used, less their rows' means."""
        cells = self.used if cells is None else cells
        used = torch.where(cells, values, 0.0)
        count = cells.sum(dim=self.axis, keepdim=True).clamp_min(1)
        mean = used.sum(dim=self.axis, keepdim=True) / count
        return (values - mean)[..., cells]

    def column(self, term: Term) -> Tensor | None:
        """A term as a column of equations; None where it is absent or the same for all keys."""
        terms, columns = self.columns([term])
        return columns[0] if terms else None

    def columns(self, terms: Iterable[Term]) -> tuple[list[Term], Tensor]:
        """Those of some terms that differ from key to key, with their columns ``[N, cells]``."""
        call, attention = self.reading.call, self.reading.attention
        present, values = [], []
        for term in terms:
            given = term.values(call, attention)
            if given is not None:
                present.append(term)
                values.append(given.expand_as(self.reading.weights))
        if not present:
            return [], self.logits.new_empty(0, len(self.logits))
        columns = self.centred(torch.stack(values))
        tells = torch.isfinite(columns).all(dim=-1)
        tells = tells & (columns.abs() > model.LOGIT_READ_TO).any(dim=-1)
        return [present[i] for i in tells.nonzero().flatten().tolist()], columns[tells]

    def solve(self, fixed: Sequence[Tensor], free: Sequence[Tensor]) -> list[float] | None:
        """The factors of free columns that leave nothing over; None where something is left."""
        if self.count < len(free) + FEWEST_LEFT:
            return None
        target = self.rest(fixed)
        if not free:
            return [] if self.right(fixed) else None
        table = torch.stack(list(free), dim=-1)
        weight = self.room.reciprocal()[:, None]
        solution = torch.linalg.lstsq(table * weight, (target[:, None] * weight)).solution
        left = (target - (table @ solution)[:, 0]).abs()
        return solution[:, 0].tolist() if bool((left <= 3 * self.room).all()) else None

    def right(self, fixed: Sequence[Tensor]) -> bool:
        """Whether fixed columns alone leave nothing over."""
        enough = self.count >= FEWEST_LEFT
        return enough and bool((self.rest(fixed).abs() <= 3 * self.room).all())

    def alone(self, columns: Tensor, fixed: Sequence[Tensor]) -> list[tuple[int, float]]:
        """Which columns ``[N, cells]``, each with a factor, leave nothing besides fixed ones."""
        if self.count < 1 + FEWEST_LEFT:
            return []
        target, weight = self.rest(fixed), self.room.reciprocal().square()
        factors = (columns * weight) @ target / ((columns.square()) @ weight).clamp_min(_TINY)
        left = (target - factors[:, None] * columns).abs()
        fitting = (left <= 3 * self.room).all(dim=-1).nonzero().flatten().tolist()
        return [(index, float(factors[index])) for index in fitting]

    def beside(
        self, columns: Tensor, other: Tensor, fixed: Sequence[Tensor]
    ) -> list[tuple[int, float, float]]:
        """Which columns, with a multiple of another one, leave nothing besides fixed ones."""
        if self.count < 2 + FEWEST_LEFT:
            return []
        target, weight = self.rest(fixed), self.room.reciprocal().square()
        weighed = columns * weight
        own, both = (weighed * columns).sum(-1), weighed @ other
        others = (other.square() * weight).sum()
        along, across = weighed @ target, (other * weight) @ target
        determinant = own * others - both.square()
        clear = determinant > model.COLLINEAR * own * others
        determinant = torch.where(clear, determinant, 1.0)
        factors = (along * others - across * both) / determinant
        besides = (across * own - along * both) / determinant
        left = (target - factors[:, None] * columns - besides[:, None] * other).abs()
        fitting = clear & (left <= 3 * self.room).all(dim=-1)
        return [
            (index, float(factors[index]), float(besides[index]))
            for index in fitting.nonzero().flatten().tolist()
        ]

    def rest(self, fixed: Sequence[Tensor]) -> Tensor:
        """What some columns leave of the logits."""
        return self.logits - sum(fixed, torch.zeros_like(self.logits))


def compositions(reading: Reading) -> list[Composition]:
    """What the logits of a reading are made of, with as few wrong terms as explain them.

    Empty where they are right, and where no one or two terms explain them.
    """
    fit = LogitFit(reading)
    scores, bias = fit.column(SCORES), fit.column(ADDED[0])
    fixed = [] if bias is None else [bias]
    if not fit.count or scores is None or fit.right([scores, *fixed]):
        return []
    scaled = fit.alone(scores[None], fixed)
    if scaled:
        return [Composition((SCORES,), (scaled[0][1],))]
    terms, columns = _telling(fit, scores)
    made = [
        (index, Composition((terms[index],), (factor,)))
        for index, factor in _unlike(columns, fit.alone(columns, fixed))
        if terms[index].operand
    ]
    made += [
        (index, Composition((SCORES, terms[index]), (1.0, factor)))
        for index, factor in _unlike(columns, fit.alone(columns, [scores, *fixed]))
        if _may_be_added(terms[index], reading)
    ]
    one = [composition for _, composition in sorted(made, key=itemgetter(0))]
    return one or list(_capped(fit, fixed)) or _of_two(fit, scores, bias, terms, columns)


def _capped(fit: LogitFit, fixed: Sequence[Tensor]) -> Iterator[Composition]:
    """The scores under softcaps of the numbers that leave nothing, those of few digits first."""
    reading = fit.reading
    if reading.attention.softcap is not None:
        return
    scores = plain_scores(reading.attention)
    target, weight = fit.rest(fixed), fit.room.reciprocal()

    def columns(caps: Tensor) -> Tensor:
        caps = caps[:, None, None, None, None]
        return fit.centred(caps * torch.tanh(scores / caps))

    def best_of(caps: Tensor) -> float:
        return float(caps[((target - columns(caps)) * weight).square().sum(dim=-1).argmin()])

    caps = torch.logspace(*CAPS_IN_TENS, NUMBER_OF_CAPS, dtype=torch.float64)
    best = best_of(caps)
    for _ in range(FINER_CAPS):
        step = float(caps[1] / caps[0])
        caps = best * torch.logspace(-1, 1, NUMBER_OF_CAPS, base=step, dtype=torch.float64)
        best = best_of(caps)
    for cap in dict.fromkeys(float(f"{best:.{n}g}") for n in range(1, MOST_DIGITS + 1)):
        if fit.right([columns(torch.tensor([cap], dtype=torch.float64))[0], *fixed]):
            yield Composition((capped_at(cap),), (1.0,))


def _telling(fit: LogitFit, scores: Tensor) -> tuple[list[Term], Tensor]:
    """Terms that say more than the scores at the inputs that were read, with their columns.

    Operands that are changed in nothing there tell nothing either.
    """
    terms, columns = fit.columns((*OPERANDS, *ADDED))
    telling = ~_proportional(columns, scores)
    unchanged = fit.column(_UNCHANGED)
    if unchanged is not None:
        same = ((columns - unchanged).abs() <= model.LOGIT_READ_TO).all(dim=-1)
        products = [term.operand and term is not UNCAPPED for term in terms]
        telling = telling & ~(same & torch.tensor(products, dtype=torch.bool))
    return [terms[i] for i in telling.nonzero().flatten().tolist()], columns[telling]


def _unlike(columns: Tensor, fitting: Sequence[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """Of columns that are alike the first ones: others tell the rest apart."""
    seen: list[Tensor] = []
    for index, factor in fitting:
        alike = sum(bool(torch.equal(columns[index], other)) for other in seen)
        if alike < MOST_ALIKE:
            seen.append(columns[index])
            yield index, factor


def _proportional(columns: Tensor, scores: Tensor) -> Tensor:
    """Which columns say the same as the scores, as where no softcap is given: bool ``[N]``."""
    factors = columns @ scores / (scores @ scores)
    return ((columns - factors[:, None] * scores).abs() <= model.LOGIT_READ_TO).all(dim=-1)


def _of_two(
    fit: LogitFit, scores: Tensor, bias: Tensor | None, terms: Sequence[Term], columns: Tensor
) -> list[Composition]:
    """The scores times a factor and one more term, or other products and a bias of its own size."""
    fixed = [] if bias is None else [bias]
    made = [
        Composition((SCORES, terms[index]), (of_scores, factor))
        for index, factor, of_scores in fit.beside(columns, scores, fixed)
        if _may_be_added(terms[index], fit.reading)
    ]
    if bias is not None:
        made += [
            Composition((terms[index], ADDED[0]), (factor, of_bias))
            for index, factor, of_bias in fit.beside(columns, bias, [])
            if terms[index].operand
        ]
    return made


def _may_be_added(term: Term, reading: Reading) -> bool:
    """Whether a term joins the scores by itself: operands have the bias by distance in them."""
    attention = reading.attention
    has_more = attention.alibi is not None or attention.semantics.score_mod is not None
    return not (term.operand and has_more)


def logit_statements(reading: Reading) -> Iterator[NamedMistake]:
    """The mistakes that put together the logits that were read."""
    for composition in compositions(reading):
        if composition.terms == (SCORES,):
            yield from _growing(composition.factors[0], reading)
            if abs(composition.factors[0] - 1.0) < NEARLY_RIGHT:
                return
            read = composition.factors[0] * reading.call.scale
            yield from _scales(reading.call, read, reading.same)
        if composition.terms == (SCORES, ADDED[0]) and composition.factors[0] == 1.0:
            for number in numbers(1.0 + composition.factors[1], reading.sizes, reading.same):
                yield additive_mask_times(number)
            continue
        choices = [
            [ONE]
            if factor == 1.0 and term is SCORES
            else list(numbers(factor, reading.sizes, reading.same))
            for term, factor in zip(composition.terms, composition.factors, strict=True)
        ]
        for chosen in product(*choices):
            yield as_mistake(composition.terms, chosen)


# Lengths whose logarithm logits are multiplied by (Su, 2021), and bases that are tried: lengths of
# training, and all whole numbers that are told apart.
_LENGTHS: Final[tuple[tuple[str, Callable[[Geometry], int]], ...]] = (
    ("the number of keys", lambda sizes: sizes.key_length),
    ("the number of queries", lambda sizes: sizes.query_length),
)
_BASES: Final = (*(2**power for power in range(1, 18)), *(10**power for power in range(1, 6)))
_CLEAR_BASES: Final = 33
_YARN: Final = 0.1  # logits of stretched positions are 1 + 0.1 ln(how far) times larger (YaRN)


def _growing(factor: float, reading: Reading) -> Iterator[NamedMistake]:
    """Scores, or products before a softcap, times what grows with the logarithm of a length.

    Other lengths confirm it or not.
    """
    for words, size in _LENGTHS:
        if size(reading.sizes) > 1:
            for number in _growths(factor, words, size, reading):
                yield as_mistake([SCORES], [number])
                yield _scaled_by(f"the scale and {number.words}", _times_the_scale(number))


def _growths(
    read: float, words: str, size: Callable[[Geometry], int], reading: Reading
) -> Iterator[Number]:
    """What a factor may be by the logarithm of a length: to a base, not below one, or a multiple.

    The last may be any number, which the others are closed forms of.
    """
    own = math.log(size(reading.sizes))

    def growth(text: str, start: float, step: float, least: float = -math.inf) -> Iterator[Number]:
        if abs(max(least, start + step * own) - read) <= 2.0 * reading.same * abs(read):
            yield Number(
                text, lambda sizes: max(least, start + step * math.log(max(size(sizes), 1)))
            )

    for base in dict.fromkeys((*range(2, _CLEAR_BASES), *_BASES)):
        over = math.log(base)
        if read > 1.0:  # below that it is one
            yield from growth(f"max(1, ln({words})/ln({base}))", 0.0, 1.0 / over, 1.0)
            stretched = f"max(1, 1 + {_YARN:g} ln({words}/{base}))"
            yield from growth(stretched, 1.0 - _YARN * over, _YARN, 1.0)
        yield from growth(f"ln({words})/ln({base})", 0.0, 1.0 / over)
    step = float(f"{(read - 1.0) / own:.2g}")
    if step:
        yield from growth(f"(1 + {step:g} ln({words}))", 1.0, step)
    yield from growth(f"{read / own:.6g} ln({words})", 0.0, read / own)


def _times_the_scale(number: Number) -> Callable[[DeclaredCall], float]:
    return lambda call: call.scale * number.value(call.inputs.geometry)


def fitted_scales(subject: Subject, answer: BatteryAnswer) -> Iterator[NamedMistake]:
    """Scales that explain an answer as a whole, where its weights cannot be read."""
    inputs = answer.inputs
    error = fitted_scale_error(subject.oracle, inputs, answer.output)
    if error is None:
        return
    call = DeclaredCall(inputs=inputs, semantics=subject.declaration.semantics)
    for number in numbers(1.0 + error, inputs.geometry, model.SAME_FITTED):
        yield as_mistake([SCORES], [number])
    yield from _scales(call, (1.0 + error) * call.scale, model.SAME_FITTED)


def _scales(call: DeclaredCall, read: float, same: float) -> Iterator[NamedMistake]:
    """What the dot products may be multiplied by: a number of the sizes, or of the right scale."""
    for number in numbers(read, call.inputs.geometry, same):
        yield _scaled_by(number.words, _of_sizes(number))
    for words, scale in _SCALES:
        value = scale(call)
        if value is not None and abs(value - read) <= 2.0 * same * abs(read):
            yield _scaled_by(words, scale)


def _of_sizes(number: Number) -> Callable[[DeclaredCall], float]:
    return lambda call: number.value(call.inputs.geometry)


def _scaled_by(words: str, scale: Callable[[DeclaredCall], float | None]) -> NamedMistake:
    def inputs_for(call: DeclaredCall) -> Inputs:
        value = scale(call)
        if value is None:
            raise NotExpressible
        return call.inputs.replace(scale=value)

    return statement(
        f"logits: scaled by {words}",
        f"the dot products are {'not scaled' if words == '1' else f'multiplied by {words}'}",
        "multiply the dot products by the scale of the call; where it has none, by the declared "
        "one, 1/√(the head size) unless another is",
        inputs=inputs_for,
    )


# Scales that are made of the right one: that of the call, or the declared one where it has none.
_SCALES: Final[tuple[tuple[str, Callable[[DeclaredCall], float | None]], ...]] = (
    ("the scale of a call without one", lambda call: call.default_scale),
    ("one divided by the scale", lambda call: 1.0 / call.scale if call.scale else math.inf),
    ("the square of the scale", lambda call: call.scale**2),
    ("the scale without its sign", lambda call: abs(call.scale)),
    *(
        (f"the scale rounded to {words} after the point", lambda call, n=n: round(call.scale, n))
        for words, n in (("one digit", 1), ("two digits", 2))
    ),
    ("the root of the scale", lambda call: call.scale**0.5 if call.scale >= 0.0 else None),
    ("the scale and that of a call without one", lambda call: call.scale * call.default_scale),
)


def as_mistake(terms: Sequence[Term], factors: Sequence[Number]) -> NamedMistake:
    """Logits put together of terms; a bias that is no term counts as it should."""
    words = " and ".join(
        (f"{number.words} times {term.words}" if number.words != "1" else term.words)
        + (" besides it" if term is ADDED[0] and SCORES in terms else "")
        for term, number in zip(terms, factors, strict=True)
    )
    own_bias = any(term is ADDED[0] for term in terms) and SCORES not in terms

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        parts = [term.values(call, attention) for term in terms]
        if all(part is None for part in parts) or (SCORES not in terms and None in parts):
            return None
        logits, bias = torch.zeros_like(attention.scores), call.inputs.bias
        for part, number in zip(parts, factors, strict=True):
            if part is not None:  # a call without a bias has the other terms
                logits = logits + number.value(call.inputs.geometry) * part
        if bias is not None and not own_bias:
            logits = logits + ADDED[0].values(call, attention)  # type: ignore[operator]
        unable = torch.isnan(logits).any(dim=-1)
        masked = golden.hide(logits, attention.allowed, attention.semantics)
        hidden = unable[..., None] if bias is None else unable[..., None] | torch.isneginf(bias)
        masked = masked.masked_fill(hidden, -math.inf)
        return with_unmasked(relogited(emptied(attention, unable), masked), logits)

    if len(terms) == 1 and terms[0] is SCORES:
        name = f"logits: {factors[0].words} times the scores"
        text = f"the logits are {factors[0].words} times what they should be"
        fix = "multiply the dot products by the scale once, and by nothing else"
    elif SCORES in terms and factors[terms.index(SCORES)].words == "1":
        named = " and ".join(
            number.words + " times " + term.words if number.words != "1" else term.words
            for term, number in zip(terms, factors, strict=True)
            if term is not SCORES
        )
        name, text = f"logits: {named} added", f"the logits have one more term: {named}"
        fix = f"take {named} out of the logits"
        stated = [term for term in terms if term.words == named and term.text]
        if stated:
            name, text, fix = f"logits: {named}", stated[0].text, stated[0].fix
    else:
        name, text = f"logits: {words}", f"the logits are made with {words}"
        if words == terms[0].words and terms[0].text:
            text = terms[0].text
        fix = next(
            (term.fix for term in terms if term.fix),
            "multiply each query with each key of its own head and item, and scale the product",
        )
    return statement(name, text, fix, core=core)


# How the channels of a head are cut in two; how many times the declared scale each half may have.
_Cut = Callable[[Tensor], tuple[Tensor, ...]]
_HALVES: Final[tuple[tuple[str, _Cut], ...]] = (
    ("the first half of a head's channels", lambda heads: heads.chunk(2, dim=-1)),
    ("a head's even channels", lambda heads: (heads[..., ::2], heads[..., 1::2])),
)
_OF_HALVES: Final = ((", each with the scale of half as many channels", math.sqrt(2.0)), ("", 1.0))


def two_softmax_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Weights that are a sum of two softmaxes, of the two halves of the channels of a head."""
    attention, read, sizes = reading.attention, reading.weights, reading.sizes
    rows = ~attention.empty & torch.isfinite(read).all(dim=-1)
    if sizes.head_size % 2 or attention.sinks is not None or not bool(rows.any()):
        return
    for (half, cut), (scaled, factor) in product(_HALVES, _OF_HALVES):
        both = torch.stack(_softmaxes(attention, cut, factor), dim=-1)[rows]
        read_of = read[rows].flatten()[:, None]
        solved = torch.linalg.lstsq(both.flatten(0, 1), read_of).solution[:, 0]
        small = bool(solved.abs().amin() <= reading.same)
        if small or not reading.agree(read[rows], both @ solved):
            continue
        for times in product(*(numbers(n, sizes, reading.same) for n in solved.tolist())):
            own, other = (f"{each.words} times ".removeprefix("1 times ") for each in times)
            words = f"{own}the softmax of {half}, {other}that of the others{scaled}"
            yield statement(
                f"weights: {words}",
                f"the weights are a sum: {words}",
                "take one softmax, of the products of all channels",
                core=partial(_summed, cut, factor, times),
            )


def _softmaxes(attention: golden.Attention, cut: _Cut, factor: float) -> list[Tensor]:
    """The weights of each part of the channels alone."""
    bias = 0.0 if attention.bias is None else attention.bias.nan_to_num(neginf=0.0)
    parts = zip(cut(attention.query), cut(attention.key), strict=True)
    scores = (scored(attention, factor * attention.scale * q @ k.mT) + bias for q, k in parts)
    return [golden.softmax(each.masked_fill(~attention.allowed, -math.inf)) for each in scores]


def _summed(
    cut: _Cut, factor: float, times: Sequence[Number], call: DeclaredCall, a: golden.Attention
) -> golden.Attention:
    if a.query.shape[-1] % 2:
        raise NotExpressible
    both = _softmaxes(a, cut, factor)
    total = sum(n.value(call.inputs.geometry) * w for n, w in zip(times, both, strict=True))
    return weighing(a, torch.where(a.empty[..., None], a.weights, total))
