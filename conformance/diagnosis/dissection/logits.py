"""What logits are made of: the fewest terms that add up to those that were read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ...tolerance import model
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import relogited
from .reading import Reading
from .statement import statement
from .terms import ADDED, OPERANDS, SCORES, Number, Term, numbers

# Logits that must be left over after a fit, so that it says something.
FEWEST_LEFT: Final = 3
# A factor on the logits that is so near one is a loss of precision, and is measured elsewhere.
NEARLY_RIGHT: Final = 0.1


@dataclass(frozen=True)
class Composition:
    """Terms with the factors that they were found with, besides what a logit should consist of."""

    terms: tuple[Term, ...]
    factors: tuple[float, ...]


class LogitFit:
    """The equations of one reading: terms that add up to its logits, up to a constant a row."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        # A mistake may be made in some rows alone: right ones say nothing about it.
        legible = reading.legible & reading.attention.allowed & reading.wrong
        self.used = legible & (legible.sum(dim=-1, keepdim=True) > 1)
        self.count = int((legible.sum(dim=-1) - 1).clamp_min(0).sum())
        self.room = (model.LOGIT_READ_TO + reading.logit_error)[self.used]
        self.logits = self.centred(reading.logits)

    def centred(self, values: Tensor, cells: Tensor | None = None) -> Tensor:
        """The values ``[.., B, H, Lq, Lk]`` of the cells that are used, less their rows' means."""
        cells = self.used if cells is None else cells
        used = torch.where(cells, values, 0.0)
        mean = used.sum(dim=-1, keepdim=True) / cells.sum(dim=-1, keepdim=True).clamp_min(1)
        return (values - mean)[..., cells]

    def column(self, term: Term) -> Tensor | None:
        """A term as a column of equations; None where it is absent or the same for all keys."""
        values = term.values(self.reading.call, self.reading.attention)
        if values is None:
            return None
        column = self.centred(values.expand_as(self.reading.weights))
        if not bool(torch.isfinite(column).all()) or not bool(
            (column.abs() > model.LOGIT_READ_TO).any()
        ):
            return None
        return column

    def solve(self, fixed: Sequence[Tensor], free: Sequence[Tensor]) -> list[float] | None:
        """The factors of free columns that leave nothing over; None where something is left."""
        target = self.logits - sum(fixed, torch.zeros_like(self.logits))
        if self.count < len(free) + FEWEST_LEFT:
            return None
        if not free:
            return [] if bool((target.abs() <= 3 * self.room).all()) else None
        table = torch.stack(list(free), dim=-1)
        weight = self.room.reciprocal()[:, None]
        solution = torch.linalg.lstsq(table * weight, (target[:, None] * weight)).solution
        left = (target - (table @ solution)[:, 0]).abs()
        return solution[:, 0].tolist() if bool((left <= 3 * self.room).all()) else None

    def composed(
        self,
        terms: tuple[Term, ...],
        fixed: Sequence[Tensor],
        free: Sequence[Tensor],
        besides: Term | None = None,
    ) -> list[Composition]:
        """The composition of some terms with the factors that are free, if it explains the logits.

        ``besides`` is a term among the fixed ones, with the factor one.
        """
        factors = self.solve(fixed, free)
        if factors is None:
            return []
        right = () if besides is None else (besides,)
        return [Composition((*right, *terms), (*(1.0 for _ in right), *factors))]


def compositions(reading: Reading) -> list[Composition]:
    """What the logits of a reading are made of, with as few wrong terms as explain them.

    Empty where they are right, and where no one or two terms explain them.
    """
    fit = LogitFit(reading)
    scores, bias = fit.column(SCORES), fit.column(ADDED[0])
    fixed = [] if bias is None else [bias]
    if not fit.count or scores is None or fit.solve([scores, *fixed], []) is not None:
        return []
    scaled = fit.composed((SCORES,), fixed, [scores])
    if scaled:
        return scaled
    columns = [
        (term, column)
        for term in (*OPERANDS, *ADDED)
        if (column := fit.column(term)) is not None and not _proportional(column, scores)
    ]
    one = [
        composition
        for term, column in columns
        for composition in (
            *(fit.composed((term,), fixed, [column]) if term.operand else ()),
            *fit.composed((term,), [scores, *fixed], [column], besides=SCORES),
        )
    ]
    return one or _of_two(fit, scores, fixed, columns)


def _proportional(column: Tensor, scores: Tensor) -> bool:
    """Whether a column says the same as the scores, as where no softcap is given."""
    factor = float((column @ scores) / (scores @ scores))
    return bool(((column - factor * scores).abs() <= model.LOGIT_READ_TO).all())


def _of_two(
    fit: LogitFit,
    scores: Tensor,
    fixed: Sequence[Tensor],
    columns: Sequence[tuple[Term, Tensor]],
) -> list[Composition]:
    """The scores times a factor and one more term, or other products and a bias of its own size."""
    made = [
        composition
        for term, column in columns
        for composition in fit.composed((SCORES, term), fixed, [scores, column])
    ]
    if fixed:
        made += [
            composition
            for term, column in columns
            if term.operand
            for composition in fit.composed((term, ADDED[0]), [], [column, fixed[0]])
        ]
    return made


def logit_statements(reading: Reading) -> Iterator[NamedMistake]:
    """The mistakes that put together the logits that were read."""
    for composition in compositions(reading):
        if composition.terms == (SCORES,):
            if abs(composition.factors[0] - 1.0) < NEARLY_RIGHT:
                return
            yield from _scales(reading, composition.factors[0] * reading.call.scale)
        choices = [
            [Number("1", lambda _sizes: 1.0)]
            if factor == 1.0 and term is SCORES
            else list(numbers(factor, reading.sizes, reading.same))
            for term, factor in zip(composition.terms, composition.factors, strict=True)
        ]
        for chosen in product(*choices):
            yield as_mistake(composition.terms, chosen)


def _scales(reading: Reading, read: float) -> Iterator[NamedMistake]:
    """What the dot products may be multiplied by: a number of the sizes, or of the right scale."""
    for number in numbers(read, reading.sizes, reading.same):
        yield _scaled_by(number.words, _of_sizes(number))
    for words, scale in _SCALES:
        value = scale(reading.call)
        if value is not None and abs(value - read) <= 2.0 * reading.same * abs(read):
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
        f"the dot products are multiplied by {words}",
        "multiply the dot products by the scale of the call, or by that which is declared, and "
        "keep none for the next call",
        inputs=inputs_for,
    )


# Scales that are made of the right one: that of the call, or the declared one where it has none.
_SCALES: Final[tuple[tuple[str, Callable[[DeclaredCall], float | None]], ...]] = (
    ("the scale of a call without one", lambda call: call.default_scale),
    ("one divided by the scale", lambda call: 1.0 / call.scale if call.scale else None),
    ("the square of the scale", lambda call: call.scale**2),
    ("the scale without its sign", lambda call: abs(call.scale)),
    ("the root of the scale", lambda call: call.scale**0.5 if call.scale >= 0.0 else None),
    ("the scale and that of a call without one", lambda call: call.scale * call.default_scale),
)


def as_mistake(terms: Sequence[Term], factors: Sequence[Number]) -> NamedMistake:
    """Logits put together of terms; a bias that is no term counts as it should."""
    words = " and ".join(
        f"{number.words} times {term.words}" if number.words != "1" else term.words
        for term, number in zip(terms, factors, strict=True)
    )
    own_bias = any(term is ADDED[0] for term in terms) and SCORES not in terms

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        parts = [term.values(call, attention) for term in terms]
        if any(part is None for part in parts):
            return None
        sizes = call.inputs.geometry
        logits = torch.zeros_like(attention.scores)
        for part, number in zip(parts, factors, strict=True):
            logits = logits + number.value(sizes) * part  # type: ignore[operator]
        if call.inputs.bias is not None and not own_bias:
            logits = logits + ADDED[0].values(call, attention)  # type: ignore[operator]
        return relogited(attention, logits.masked_fill(~attention.allowed, float("-inf")))

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
    else:
        name, text = f"logits: {words}", f"the logits are made with {words}"
        fix = next(
            (term.fix for term in terms if term.fix),
            "multiply each query with each key of its own head and item, and scale the product",
        )
    return statement(name, text, fix, core=core)
