"""What a layer computes instead: the path of its values first, then its queries and keys."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import permutations
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...clauses.subject import Subject
from ...problems.inputs import Inputs
from ...tolerance import model
from ..agreement import BatteryAnswer
from ..mistaken_answer import Combination, made_on, mistaken_call
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from .by_head import MOST_HEADS
from .layer_weights import few_tokens, in_wrong_heads, read_layer, wrong_heads
from .logits import Composition, LogitFit, as_mistake
from .operands import norm_terms, operand_terms, pair_terms
from .positions import Fitted, families, turn_terms, turned
from .projections import AddedTerms, ValuePath, value_paths
from .reading import (
    MOST_KEYS,
    ONE,
    ROOM,
    HeadNumbers,
    Reading,
    head_numbers,
    numbers,
    statement,
    together,
)
from .terms import ADDED, SCORES, Term

Proposer = Callable[[Reading], Iterator[NamedMistake]]
# Numbers of a family that are looked at more closely, in how many steps, at how many points each.
MOST_MINIMA: Final = 4
ZOOMS: Final = 9
MOST_ROWS: Final = 8
POINTS: Final = 33
# Statements of the plainest weights besides which more is looked for.
MOST_REMEMBERED: Final = 3
# How many compositions of a kind are put into words.
MOST_SAID: Final = 4
# Keys of a layer whose weights are read in any case.
FEW_KEYS: Final = 12


class LayerReader:
    """Reads what a layer computes at several inputs; what the plainest of them says is remembered.

    ``of_weights`` are the proposers of what weights say, those of cores.
    """

    def __init__(
        self, subject: Subject, of_weights: Sequence[Proposer], known: Combination = ()
    ) -> None:
        self.subject = subject
        self.proposers = of_weights
        self.known = known
        self._first_statements: list[NamedMistake] = []
        self._paths: list[ValuePath] = []
        self._said: list[NamedMistake] = []
        self.last: tuple[Reading, ValuePath] | None = None  # what was read last, and how

    def statements(self, inputs: Inputs) -> Iterator[NamedMistake]:
        """What the layer may compute instead, read at some inputs of a wrong answer."""
        paths = value_paths(self.subject, inputs, self.known, self._paths)
        self._paths += [path for path in paths if path not in self._paths]
        wrong = [path.mistake() for path in paths if not path.right]
        yield from wrong
        # Where a single token is not attended, no path explains its answer: the right one may be.
        first = paths[0] if paths else ValuePath()
        reading = self._reading(inputs, first, said=bool(wrong))
        if reading is None:
            return
        self.last = reading, first
        parts = self._parts(reading)
        for one in parts:
            every = (together(path, one, answers_last=True) for path in wrong)
            yield from every if wrong else (one,)
        if parts and _only_scales(first):  # a factor of the weights may stand for both
            of_weights = self._reading(inputs, ValuePath(), said=True)
            yield from [] if of_weights is None else self._parts(of_weights)

    def _reading(self, inputs: Inputs, path: ValuePath, *, said: bool) -> Reading | None:
        """The weights at some inputs, or at the first tokens of those that are too long.

        Many tokens cost time: they are read where nothing is ``said`` already of fewer.
        """
        if inputs.geometry.key_length > FEW_KEYS and (said or self._said):
            return None
        few = few_tokens(self.subject, inputs)
        reading = None if few is None else read_layer(self.subject, few, path, self.known)
        return reading if reading is not None and reading.explained else None

    @torch.inference_mode()
    def _parts(self, reading: Reading) -> list[NamedMistake]:
        """What the weights say, alone and with what those of the plainest inputs say."""
        if any(_as_expected(self._with(reading, one)) for one in self._said):
            return []  # said already
        parts = self._of_weights(reading)
        shortest = sorted(parts, key=lambda one: len(one.sentence))
        self._said += shortest[:MOST_REMEMBERED]
        if not self._first_statements:
            self._first_statements = shortest[:MOST_REMEMBERED]
            return parts
        for one in self._first_statements:
            besides = self._with(reading, one)
            more = [] if besides is None else self._of_weights(besides, thorough=False)
            parts += [together(one, two) for two in more]
        return parts

    def _of_weights(self, reading: Reading, *, thorough: bool = True) -> list[NamedMistake]:
        parts = self._proposed(reading, thorough=thorough)
        some = wrong_heads(reading)
        if some is not None:
            of_some = self._proposed(some, thorough=thorough)  # of other heads the whole tells
            parts = [*in_wrong_heads(reading, [*of_some, *parts]), *parts]
        return parts

    def _proposed(self, reading: Reading, *, thorough: bool) -> list[NamedMistake]:
        parts = [one for proposer in self.proposers for one in proposer(reading)]
        parts += query_and_key_statements(reading, thorough=thorough and not parts)
        return parts

    def _with(self, reading: Reading, one: NamedMistake) -> Reading | None:
        return with_mistake(self.subject, reading, (*self.known, one))


def with_mistake(subject: Subject, reading: Reading, known: Combination) -> Reading | None:
    """A reading that is compared with what the golden makes with some mistakes.

    None where they cannot be made, or leave another number of keys: it cannot be compared.
    """
    declared, inputs = subject.declaration.semantics, reading.given
    made = made_on(declared, known, inputs)
    try:
        other = reading.against(mistaken_call(declared, made, inputs), made)
    except (NotExpressible, ValueError, RuntimeError):
        return None
    return other if other.attention.weights.shape == reading.weights.shape else None


def _only_scales(path: ValuePath) -> bool:
    """Whether values are multiplied by a number on their way, and nothing else is wrong there."""
    return path == ValuePath(added=AddedTerms(answer=path.added.answer)) != ValuePath()


def _as_expected(reading: Reading | None) -> bool:
    """Whether the weights that were read are those that the golden has."""
    if reading is None:
        return False
    apart = (reading.weights - reading.attention.weights).abs()
    return bool((apart <= ROOM * reading.error).all())


def query_and_key_statements(reading: Reading, *, thorough: bool = True) -> Iterator[NamedMistake]:
    """Queries and keys that are projected, cut, normalised or turned otherwise than declared.

    ``thorough`` looks for numbers, too, and for both operands made otherwise.
    """
    point = reading.call.semantics
    if not reading.call.inputs.is_layer and point.rotary == point.qk_norm == "none":
        return  # nothing is made of the heads of a core
    fit = LogitFit(reading)
    scores, bias = fit.column(SCORES), fit.column(ADDED[0])
    fixed = [] if bias is None else [bias]
    if not fit.count or scores is None:
        return
    if fit.right([scores, *fixed]) or fit.alone(scores[None], fixed):
        return  # right, or scaled, which is said elsewhere
    composed: list[Composition] = []
    for terms in _kinds(reading):
        composed = _composed(fit, terms, fixed)
        if composed:
            break
    if not composed and thorough:
        composed = list(_fitted(fit, fixed)) or _of_both(fit, fixed)
    for composition in composed[:MOST_SAID]:
        for number in numbers(composition.factors[0], reading.sizes, reading.same):
            yield as_mistake(composition.terms, [number])
            if number.words == "1":
                break


def _composed(fit: LogitFit, terms: Iterable[Term], fixed: Sequence[Tensor]) -> list[Composition]:
    """Those of some terms that alone, with a factor, leave nothing of the logits."""
    told, columns = fit.columns(terms)
    return [Composition((told[i],), (factor,)) for i, factor in fit.alone(columns, fixed)]


def _kinds(reading: Reading) -> Iterator[Iterable[Term]]:
    if reading.call.inputs.is_layer:
        yield operand_terms()
    if reading.call.semantics.qk_norm != "none":
        yield norm_terms(reading.call.semantics)
    if reading.call.semantics.rotary != "none":
        yield turn_terms(reading.sizes)


def _of_both(fit: LogitFit, fixed: Sequence[Tensor]) -> list[Composition]:
    """Both operands made otherwise, each in its own way."""
    return _composed(fit, pair_terms(), fixed) if fit.reading.call.inputs.is_layer else []


def far_position_statements(answers: Sequence[BatteryAnswer]) -> Iterator[NamedMistake]:
    """Ways to turn heads, for a candidate whose wrong answers are all too long to be read."""
    every = (one.inputs.geometry for one in answers)
    sizes = min(every, key=lambda sizes: sizes.key_length, default=None)
    if sizes is None or sizes.key_length <= MOST_KEYS:
        return
    if answers[0].subject.declaration.semantics.rotary != "none":
        yield from (as_mistake([term], [ONE]) for term in turn_terms(sizes))


def _fitted(fit: LogitFit, fixed: Sequence[Tensor]) -> Iterator[Composition]:
    """Turns by a number that explain the logits: the number is read."""
    point = fit.reading.call.semantics
    if point.rotary == "none":
        return
    some = SomeRows(fit)
    for family in families(point):
        read = some.least(family)
        own = ((family.words(number), family.turn(number)) for number in family.rounded(read))
        for turns in (own, *family.others(read, fit.reading.sizes.head_size)):
            made = (_composed(fit, [turned(words, turn)], fixed) for words, turn in turns)
            yield from next(filter(None, made), [])[:1]


@dataclasses.dataclass(frozen=True)
class PairProducts:
    """What each turned pair of channels adds to a score: ``even cos t + odd sin t``.

    ``even`` and ``odd [B, H, Lq, Lk, R/2]`` hold the products, ``t`` is the angle of the query less
    that of the key; ``rest [B, H, Lq, Lk]`` is what channels add that are not turned.
    """

    even: Tensor
    odd: Tensor
    rest: Tensor
    queries: Tensor
    keys: Tensor
    head_size: int
    point: golden.Semantics

    @classmethod
    def of(cls, call: DeclaredCall, attention: golden.Attention) -> PairProducts:
        """The products of a call whose point has rotary positions."""
        point = call.semantics
        query, key, _ = call.projected_heads()
        query, key = (golden.normalise_heads(heads, point) for heads in (query, key))
        key = golden.repeat_heads(key, query.shape[1], point)
        first, second = golden.rotary_pairs(query.shape[-1], point)
        a, b = query[..., first].unsqueeze(3), query[..., second].unsqueeze(3)
        c, d = key[..., first].unsqueeze(2), key[..., second].unsqueeze(2)
        size = golden.rotary_size(query.shape[-1], point)
        lengths = query.shape[-2], key.shape[-2]
        return cls(
            even=(a * c + b * d) * attention.scale,
            odd=(b * c - a * d) * -attention.scale,
            rest=query[..., size:] @ key[..., size:].mT * attention.scale,
            queries=golden.query_positions(*lengths, point).double(),
            keys=torch.arange(lengths[1]).double(),
            head_size=query.shape[-1],
            point=point,
        )

    def rows(self, step: int) -> PairProducts:
        """Those of every ``step``-th query."""
        return dataclasses.replace(
            self,
            even=self.even[:, :, ::step],
            odd=self.odd[:, :, ::step],
            rest=self.rest[:, :, ::step],
            queries=self.queries[::step],
        )

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Scores for several angles of queries ``[N, Lq, R/2]`` and of keys ``[N, Lk, R/2]``."""
        apart = queries[:, :, None] - keys[:, None]
        even = torch.einsum("bhqkr,nqkr->nbhqk", self.even, apart.cos())
        return even + torch.einsum("bhqkr,nqkr->nbhqk", self.odd, apart.sin()) + self.rest


class SomeRows:
    """The logits of a few rows: enough to read a number from, and quickly."""

    def __init__(self, fit: LogitFit) -> None:
        reading, self.fit = fit.reading, fit
        step = max(1, reading.weights.shape[2] // MOST_ROWS)
        products = PairProducts.of(reading.call, reading.attention)
        self.products = products.rows(step)
        self.used = fit.used[:, :, ::step]
        room = model.LOGIT_READ_TO + reading.logit_error[:, :, ::step]
        self.weight = room[self.used].reciprocal()
        bias = ADDED[0].values(reading.call, reading.attention)
        logits = reading.logits if bias is None else reading.logits - bias
        self.target = fit.centred(logits[:, :, ::step], self.used) * self.weight

    def left(self, numbers_tried: Tensor, family: Fitted) -> Tensor:
        """How much of the logits turns by some numbers leave, each at the best factor."""
        products = self.products
        frequencies = golden.rotary_frequencies(products.head_size, products.point)
        angles = family.angles(numbers_tried, frequencies, products.queries, products.keys)
        columns = self.fit.centred(products.scores(*angles), self.used) * self.weight
        sizes = columns.square().sum(-1).clamp_min(torch.finfo(torch.float64).tiny)
        factors = (columns @ self.target) / sizes
        return (self.target - factors[:, None] * columns).square().sum(-1)

    def least(self, family: Fitted) -> float:
        """The number of a family that leaves the least, by ever finer grids around the best."""
        grid = torch.tensor(family.grid, dtype=torch.float64)
        best = (float("inf"), 0.0)
        for index in self.left(grid, family).argsort()[:MOST_MINIMA].tolist():
            middle, width = float(grid[index]), float(grid[1] - grid[0])
            for _ in range(ZOOMS):
                finer = middle + width * torch.linspace(-1.0, 1.0, POINTS, dtype=torch.float64)
                left = self.left(finer, family)
                middle, width = float(finer[left.argmin()]), 4.0 * width / POINTS
                best = min(best, (float(left.min()), middle))
        return best[1]


def head_answer_statements(answer: BatteryAnswer) -> Iterator[NamedMistake]:
    """The answers of heads times a number of each, where that makes the whole answer."""
    sizes, heads = answer.inputs.geometry, answer.exact.core.output
    if not answer.fits or not 1 < heads.shape[1] <= MOST_HEADS or not heads.numel():
        return
    call = DeclaredCall(inputs=answer.inputs, semantics=answer.subject.declaration.semantics)
    without = call.answer_of(torch.zeros_like(heads))
    own = torch.eye(heads.shape[1], dtype=torch.bool)[:, None, :, None, None]
    columns = torch.stack([call.answer_of(torch.where(one, heads, 0.0)) - without for one in own])
    columns, target = columns.flatten(1).mT, (answer.output - without).flatten()[:, None]
    if not bool(torch.isfinite(target).all() & torch.isfinite(columns).all()):
        return
    if len(target) <= 2 * heads.shape[1]:
        return
    solved = torch.linalg.lstsq(columns, target).solution
    size = model.SAME_READ * float(target.abs().amax().clamp_min(model.SAME_READ**2))
    if bool(((columns @ solved - target).abs() > size).any()):
        return
    factors = solved[:, 0].tolist()
    if max(factors) - min(factors) <= ROOM * model.SAME_READ * max(map(abs, factors)):
        return  # what is the same for all heads is told without them
    for read in head_numbers(factors, sizes, model.SAME_READ):

        def core(call: DeclaredCall, a: golden.Attention, read: HeadNumbers = read) -> Any:
            return dataclasses.replace(a, output=read.of_heads(call.inputs.geometry) * a.output)

        yield statement(
            f"heads: each answer times {read.words}",
            f"the answer of each head is multiplied by {read.words}",
            "leave the answers of heads as they are: weights sum to one",
            core=core,
        )


# The axes of an answer of heads, and of a layer, by the number of them.
_AXES: Final = {4: ("B", "H", "Lq", "D"), 3: ("B", "Lq", "E")}


def alike_row_statements(answer: BatteryAnswer) -> Iterator[NamedMistake]:
    """One number, or NaN, in all rows of a core that have a key, or in all that have none."""
    if answer.inputs.is_layer or not answer.fits:
        return
    empty = answer.exact.core.empty
    for without_keys, rows in ((False, ~empty), (True, empty)):
        read, right = answer.output[rows], answer.exact.output[rows]
        number = float(read.flatten()[0]) if read.numel() else 0.0
        same = read.isnan() if math.isnan(number) else read == number
        if not bool(same.all()) or bool(((read == right) | (read.isnan() & right.isnan())).all()):
            continue
        said = "NaN" if math.isnan(number) else f"{number:.4g}"
        words = "rows without keys" if without_keys else "rows that have a key"
        yield statement(
            f"answer: {said} in {words}",
            f"the answer is {said} in all {words}",
            _FIX_EMPTY if without_keys else _FIX_NAN if math.isnan(number) else _FIX_NUMBER,
            core=partial(_with_rows, number, without_keys),
        )


_FIX_EMPTY: Final = "answer rows without keys as declared, whatever was added up"
_FIX_NUMBER: Final = "compute these rows from their keys and values"
_FIX_NAN: Final = (
    "look for what divides by zero, takes infinity off infinity or multiplies it by zero: before "
    "the first key a running maximum is minus infinity"
)


def _with_rows(
    number: float,
    without_keys: bool,  # noqa: FBT001
    _call: DeclaredCall,
    attention: golden.Attention,
) -> golden.Attention:
    rows = attention.empty if without_keys else ~attention.empty
    output = attention.output.masked_fill(rows[..., None], number)
    return dataclasses.replace(attention, output=output)


def answer_order_statements(answer: BatteryAnswer) -> Iterator[NamedMistake]:
    """Axes of the answer in another order: exchanged, or its numbers viewed in another shape."""
    exact = answer.exact.output
    axes = _AXES.get(exact.dim())
    is_own = answer.inputs.head_layout.is_own  # else the letters would not be the user's
    if (
        not is_own
        or axes is None
        or answer.fits
        or sorted(answer.output.shape) != sorted(exact.shape)
    ):
        return
    open_rows = answer.subject.declaration.empty_rows == "any"
    for order in permutations(range(exact.dim())):
        for words, change in (
            ("its axes are", partial(torch.permute, dims=order)),
            ("its numbers, one after another, are viewed as", partial(_viewed_as, order=order)),
        ):
            changed = change(exact)
            if changed.shape == answer.output.shape and _answers(answer, changed):
                listed, own = (", ".join(names) for names in ([axes[at] for at in order], axes))
                yield statement(
                    f"answer: {words.removeprefix('its ')} {listed}",
                    f"the answer is [{own}], but {words} [{listed}]",
                    f"return the answer as [{own}], in the order of the query's axes",
                    output=partial(_reordered, change, open_rows),
                )


def _viewed_as(output: Tensor, order: Sequence[int]) -> Tensor:
    return output.reshape([output.shape[axis] for axis in order])


def _reordered(
    change: Callable[[Tensor], Tensor],
    open_rows: bool,  # noqa: FBT001
    call: DeclaredCall,
    output: Tensor,
) -> Tensor:
    """The answer in another order; rows without keys are NaN where these are open."""
    if open_rows:
        empty = ~call.inputs.allowed(call.semantics).any(dim=-1)
        output = output.masked_fill(call.inputs.answer_rows(empty, call.semantics), torch.nan)
    return change(output)


def _answers(answer: BatteryAnswer, expected: Tensor) -> bool:
    size = expected.abs().amax().clamp_min(model.SAME_READ**2)
    return bool(((answer.output - expected).abs() <= model.SAME_READ * size).all())
