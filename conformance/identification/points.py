"""Turn weights read from answers into points of the semantics: hidden keys and logits.

A proposed point explains the answer behind the weights; other answers must confirm the point.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from .._golden import golden
from ..base.geometry import Geometry
from ..diagnosis.dissection.logits import ALIBI, PRODUCTS, LogitFit, Term
from ..diagnosis.dissection.reading import ROOM, Reading
from ..diagnosis.fitted_numbers import bases_read
from ..diagnosis.mistakes import DeclaredCall
from ..tolerance import model
from .convention import ScoreFunction, capped, sloped, windowed

_T = TypeVar("_T")

SCALES: Final = (
    "inverse-sqrt-head-size",
    "none",
    "inverse-head-size",
    "sqrt-head-size",
    "inverse-sqrt-model-width",
    "inverse-sqrt-num-heads",
    "inverse-sqrt-value-head-size",
)
# The dimension of the weights for each softmax axis.
_AXES: Final = {"key": -1, "query": -2, "head": 1, "batch": 0}
# If both fit, the specification's alignment wins.
ALIGNMENTS: Final = ("bottom-right", "top-left")
# Read numbers are rounded to inverses of counts below this limit, to the roots of these inverses,
# or to few digits of the number or of its square.
_MOST_ROOTS: Final = 1025
_DIGITS: Final = 5
# The uncertainty of a number read off many logits, in standard errors; and the relative
# uncertainty of a cap, which bends logits only a little.
_STANDARD_ERRORS: Final = 6.0
SAME_CAP: Final = 1e-2
_TINY: Final = torch.finfo(torch.float64).tiny
_NORMS: Final = ("none", "l2", "rms", "layer")
# Usual epsilons of norms, with torch's default for RMSNorm.
EPSILONS: Final = (1e-6, 1e-5, torch.finfo(torch.float32).eps, 1e-8, 1e-12)
_FRACTIONS: Final = (1.0, 0.5, 0.25)
# The search grid for caps, as a unit logit's part of the cap, then refined around the best part.
_PARTS: Final = tuple(10.0 ** (step / 16.0) for step in range(-48, 33))
_ZOOMS: Final = 8
_POINTS: Final = 33


@dataclass(frozen=True)
class Proposal:
    """A point, and the alignment of causality in every call, or None."""

    point: golden.Semantics
    always: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain data for a record: the fields that differ from the specification."""
        return {
            "semantics": self._changed,
            "always_causal": self.always,
            "words": self.words,
        }

    @property
    def words(self) -> str:
        """The point as differences from the specification."""
        changed = [f"{name}={value!s}" for name, value in self._changed.items()]
        with_fields = f" with {', '.join(changed)}" if changed else ""
        causal = "" if self.always is None else f", causal in every call ({self.always})"
        return f"the specification{with_fields}{causal}"

    @property
    def _changed(self) -> dict[str, Any]:
        changed = golden.STANDARD.differences(self.point)
        own = ("causal_alignment",) if self.always is not None else ()
        return {name: pair[1] for name, pair in changed.items() if name not in own}


def causal_everywhere(alignment: Any) -> Proposal:
    """The specification with causality in every call."""
    return Proposal(golden.STANDARD.replace(causal_alignment=alignment), alignment)


@dataclass(frozen=True)
class Band:
    """The nearest and farthest visible key relative to a query's place; None for no end.

    ``in_order``: queries and keys are counted from the first, or their numbers are equal;
    ``filled``: every key within the band has a weight.
    """

    alignment: Any = "bottom-right"
    least: int | None = None
    most: int | None = None
    in_order: bool = True
    filled: bool = True

    def proposal(self, base: golden.Semantics) -> Proposal | None:
        """A point that hides the keys outside the band; None if no point does."""
        if self.least is None and self.most is None:
            return Proposal(base)
        if self.least is None or self.most == 0:
            point = base.replace(causal_alignment=self.alignment, causal_offset=int(self.most or 0))
            always = None if self.most is None else self.alignment
        else:
            point, always = base, None
        if self.least is None:
            return Proposal(point, always)
        if not self.in_order or self.least > 0:
            return None
        after = None if always is not None else self.most
        return Proposal(point.replace(score_mod=windowed(-self.least, after)), always)


def bands(reading: Reading) -> Iterator[Band]:
    """The bands of keys with a weight, filled bands first, plus an endless band.

    The endless band covers weights too small to be seen.
    """
    yield from sorted((*_bands(reading), Band()), key=lambda band: not band.filled)


def _bands(reading: Reading) -> Iterator[Band]:
    seen = reading.visible.any(dim=0).any(dim=0)
    if seen.any() and not seen.all():
        queries, keys = seen.shape
        tables: list[Tensor] = []
        for alignment in ALIGNMENTS:
            shift = keys - queries if alignment == "bottom-right" else 0
            ahead = torch.arange(keys) - torch.arange(queries)[:, None] - shift
            if any(torch.equal(ahead, table) for table in tables):
                continue
            tables.append(ahead)
            least, most = int(ahead[seen].min()), int(ahead[seen].max())
            ends = (
                None if least == int(ahead.min()) else least,
                None if most == int(ahead.max()) else most,
            )
            filled = bool(((ahead >= least) & (ahead <= most) == seen).all())
            if ends != (None, None):
                yield Band(alignment, *ends, in_order=shift == 0, filled=filled)


def against_proposal(reading: Reading, proposal: Proposal) -> Reading:
    """A reading compared with the golden evaluation of a proposal."""
    point = proposal.point
    inputs = reading.given.replace(point=point, causal=proposal.always is not None)
    return reading.against(DeclaredCall(inputs=inputs, semantics=point))


def simple_points(reading: Reading, base: golden.Semantics) -> Iterator[Proposal]:
    """Points that differ from a base in causality, softmax axis or scale."""
    for band in bands(reading):
        proposal = band.proposal(base)
        if proposal is None or proposal.point.score_mod is not None:
            continue
        for axis in _axes(reading):
            point = proposal.point.replace(softmax_axis=axis)
            yield from scaled(reading, Proposal(point, proposal.always))


def _axes(reading: Reading) -> list[Any]:
    """The axes along which the weights sum to 1, or "none"."""
    weights, error = reading.weights, reading.error
    summing = []
    for name, dim in _AXES.items():
        some = reading.visible.any(dim=dim)
        apart = (weights.sum(dim=dim) - 1.0).abs() - ROOM * error.sum(dim=dim)
        if bool((apart[some] <= reading.same).all()):
            summing.append(name)
    return summing or ["none"]


def scaled(reading: Reading, proposal: Proposal) -> Iterator[Proposal]:
    """A proposal with the scale read off the logits; unchanged if its scale is right."""
    point = proposal.point
    at = against_proposal(reading, proposal)
    if not bool(at.wrong.any()):
        yield proposal
        return
    factor = _factor(at, point.softmax_axis)
    if factor is not None:
        yield from _with_scale(proposal, factor, at)


@dataclass(frozen=True)
class Factor:
    """A number read off the logits, and its relative uncertainty."""

    value: float
    same: float

    def times(self, number: float) -> Factor:
        """The factor of a column that is ``number`` times smaller."""
        return Factor(self.value * number, self.same)


def _factor(at: Reading, axis: str) -> Factor | None:
    """The factor from scaled products to logits; None if no single number fits."""
    if axis == "none":
        exact = at.attention.weights
        factor = float((at.weights * exact).sum() / exact.square().sum().clamp_min(_TINY))
        room = ROOM * at.error + at.same * (factor * exact).abs()
        agrees = bool(((at.weights - factor * exact).abs() <= room).all())
        return Factor(factor, model.SAME_FACTOR) if agrees else None
    solved = _solved(LogitFit(at, _AXES[axis], right_rows=True), [])
    return None if solved is None else solved[0]


def _solved(fit: LogitFit, more: Sequence[Tensor]) -> list[Factor] | None:
    """The factors that turn the products and further columns into the logits, or None."""
    products, alibi = fit.column(PRODUCTS), fit.column(ALIBI)
    if not fit.count or products is None:
        return None
    fixed = [] if alibi is None else [alibi]
    factors = fit.solve(fixed, [products, *more])
    if factors is None:
        return None
    # The residual gives the uncertainty of each factor, in standard errors.
    table = torch.stack([products, *more], dim=-1)
    left = fit.logits - sum(fixed) - table @ torch.tensor(factors, dtype=torch.float64)
    spread = torch.linalg.pinv(table.mT @ table).diagonal().clamp_min(0.0).sqrt()
    errors = (_STANDARD_ERRORS * left.square().mean().sqrt() * spread).tolist()
    return [
        Factor(factor, max(model.SAME_FACTOR, error / max(abs(factor), _TINY)))
        if abs(factor) * float(column.abs().max()) > model.LOGIT_READ_TO
        else Factor(0.0, model.SAME_FACTOR)  # smaller than the rounding of logits
        for factor, error, column in zip(factors, errors, (products, *more), strict=True)
    ]


def _with_scale(proposal: Proposal, factor: Factor, at: Reading) -> Iterator[Proposal]:
    for point in with_scale(proposal.point, factor.times(at.attention.scale), at.sizes):
        yield Proposal(point, proposal.always)


def with_scale(
    point: golden.Semantics, read: Factor, sizes: Geometry
) -> Iterator[golden.Semantics]:
    """A point with the scale rules that give the read number, then with nearby round numbers."""

    def value(rule: Any) -> float:
        number: float = golden.scale_value(
            point.replace(scale=rule, scale_factor=1.0),
            head_size=sizes.head_size,
            value_head_size=sizes.value_head_size,
            num_heads=sizes.num_heads,
        )
        return number

    for rule in SCALES:
        if abs(value(rule) - read.value) <= read.same * abs(read.value):
            yield point.replace(scale=rule, scale_factor=1.0)
    for number in round_numbers(read):
        yield point.replace(scale=number, scale_factor=1.0)
    for number in round_numbers(read.times(1.0 / value(SCALES[0]))):
        yield point.replace(scale=SCALES[0], scale_factor=number)


def round_numbers(factor: Factor) -> list[float]:
    """The numbers that people would write for the read factor, the plainest first."""
    read, same = factor.value, factor.same
    decimal = [float(f"{read:.{digits}g}") for digits in range(1, _DIGITS)]
    squares = [float(f"{read * read:.{digits}g}") for digits in range(1, _DIGITS)]
    inverse = [1.0 / count for count in range(2, _MOST_ROOTS)]
    roots = [math.sqrt(number) for number in (*squares, *inverse) if number > 0.0]
    candidates = [*decimal, *(math.copysign(one, read) for one in (*inverse, *roots)), read]
    return [
        number for number in dict.fromkeys(candidates) if abs(number - read) <= same * abs(read)
    ]


def further_points(
    reading: Reading,
    stretched: Reading | None,
    base: golden.Semantics,
    *,
    ordered: bool,
    by_head: bool,
    ends: float,
    explained: Callable[[], bool],
) -> Iterator[Proposal]:
    """Points with positions, norms, caps, windows and biases by distance.

    ``stretched`` is a reading of larger logits, to show a cap; ``ordered``: the order of the keys
    matters; ``by_head``: the number of heads is fixed. Reading stops at the processor time
    ``ends``; points with fitted numbers follow only if nothing else has ``explained`` the answers.
    """

    def in_time(some: Iterable[_T]) -> Iterator[_T]:
        return takewhile(lambda _: time.process_time() < ends, some)

    banded = [(band, band.proposal(base)) for band in bands(reading)]
    proposals = [(band, proposal) for band, proposal in banded if proposal is not None]
    for _, proposal in proposals:
        yield from scaled(reading, proposal)
        if proposal.point.score_mod is None:
            yield from _capped(stretched, proposal)
    prepared = prepared_points([proposal for _, proposal in proposals], ordered=ordered)
    # An exact scale is evidence for a kind of norm: two kinds differ only by a factor.
    for one in in_time(prepared):
        if not bool(against_proposal(reading, one).wrong.any()):
            yield one
    for band, proposal in in_time(proposals if ordered else ()):
        yield from _sloped(reading, proposal, band, by_head=by_head)
    if explained():
        return
    for one in in_time(prepared):
        yield from _read_prepared(reading, one)


def prepared_points(proposals: Sequence[Proposal], *, ordered: bool) -> list[Proposal]:
    """The proposals with normalised heads, rotary positions or ALiBi."""
    return [
        Proposal(point, proposal.always)
        for proposal in proposals
        for point in _prepared(proposal, ordered=ordered)
    ]


def _prepared(proposal: Proposal, *, ordered: bool) -> Iterator[golden.Semantics]:
    """Points of normalised heads, rotary positions and ALiBi, the plainest first."""
    base = proposal.point
    alignments = ALIGNMENTS if proposal.always is None else (proposal.always,)
    placed: list[golden.Semantics] = []
    if ordered:
        places = [base.replace(causal_alignment=alignment) for alignment in alignments]
        placed += [place.replace(alibi=True) for place in places]
        placed += [
            place.replace(rotary=rotary, rotary_fraction=fraction)
            for fraction, rotary, place in product(_FRACTIONS, ("halves", "interleaved"), places)
        ]
    for norm in _NORMS:
        for point in (base, *placed):
            if norm != "none" or point is not base:
                yield point.replace(qk_norm=norm)


def _read_prepared(reading: Reading, proposal: Proposal) -> Iterator[Proposal]:
    """A proposal with the rotary base and the scale read off the logits."""
    point = proposal.point
    if point.rotary != "none" and not golden.rotary_size(reading.sizes.head_size, point):
        return
    for based in _with_base(reading, proposal):
        some = Proposal(based, proposal.always)
        if point.qk_norm in ("none", "l2"):
            yield from scaled(reading, some)
        elif _factor(against_proposal(reading, some), point.softmax_axis) is not None:
            kept = [
                Proposal(based.replace(qk_norm_epsilon=number), proposal.always)
                for number in EPSILONS
            ]
            every = [one for some in kept for one in scaled(reading, some)]
            # Another scale can hide a wrong epsilon if few numbers are normalised at a time.
            yield from sorted(every, key=lambda one: not _scaled_alike(one.point, based))


def _scaled_alike(one: golden.Semantics, other: golden.Semantics) -> bool:
    return (one.scale, one.scale_factor) == (other.scale, other.scale_factor)


def _with_base(reading: Reading, proposal: Proposal) -> Iterator[golden.Semantics]:
    point = proposal.point
    yield point
    if point.rotary == "none" or golden.rotary_size(reading.sizes.head_size, point) <= 2:  # noqa: PLR2004 (one pair turns by whole positions, whatever the base)
        return
    at = against_proposal(reading, proposal)
    fit = LogitFit(at, right_rows=True)
    if not fit.count or fit.column(PRODUCTS) is None:
        return
    for base in bases_read(at):
        if base not in (0.0, point.rotary_base):
            yield point.replace(rotary_base=base)


def _capped(stretched: Reading | None, proposal: Proposal) -> Iterator[Proposal]:
    """A proposal with a cap on its logits, and the scale before the cap."""
    if stretched is None:
        return
    at = against_proposal(stretched, proposal)
    fit, products = LogitFit(at, right_rows=True), PRODUCTS.values(at.call, at.attention)
    if fit.count <= FEWEST or products is None or fit.column(PRODUCTS) is None:
        return
    part, cap = _least_left(fit, products)
    column = fit.centred(torch.tanh(part * products))
    if cap <= 0.0 or not bool(((fit.logits - cap * column).abs() <= 3 * fit.room).all()):
        return
    scale = Factor(cap * part, at.same)
    for number in round_numbers(Factor(cap, SAME_CAP)):
        point = proposal.point.replace(score_mod=capped(number))
        yield from _with_scale(Proposal(point, proposal.always), scale, at)


def _least_left(fit: LogitFit, products: Tensor) -> tuple[float, float]:
    """The cap, and the logit of a unit product as a part of the cap, with the least residual."""
    weight = fit.room.reciprocal()
    target = fit.logits * weight
    parts = torch.tensor(_PARTS, dtype=torch.float64)
    part = cap = 0.0
    for _ in range(_ZOOMS):
        bent = torch.tanh(parts[:, None, None, None, None] * products)
        columns = fit.centred(bent) * weight
        caps = (columns @ target) / columns.square().sum(-1).clamp_min(_TINY)
        best = int((target - caps[:, None] * columns).square().sum(-1).argmin())
        part, cap = float(parts[best]), float(caps[best])
        width = float(parts[1] / parts[0])
        parts = part * width ** torch.linspace(-1.0, 1.0, _POINTS, dtype=torch.float64)
    return part, cap


# A fit of a cap and a scale needs more logits than this.
FEWEST: Final = 5


def _sloped(
    reading: Reading, proposal: Proposal, band: Band, *, by_head: bool
) -> Iterator[Proposal]:
    """A proposal with a bias by distance, and the scale besides the bias.

    Heads get different slopes only if ``by_head`` allows them.
    """
    if not band.in_order or proposal.point.score_mod is not None:
        return
    at = against_proposal(reading, proposal)
    fit = LogitFit(at, right_rows=True)
    distances = [_distance(head) for head in range(at.sizes.num_heads)]
    columns = [fit.column(term) for term in distances]
    if any(column is None for column in columns):
        return
    solved = _solved(fit, [column for column in columns if column is not None])
    if solved is None:
        return
    factor, *slopes = solved
    first = slopes[0]
    apart = max(abs(slope.value - first.value) for slope in slopes)
    alike = apart <= sum(slope.same * abs(slope.value) for slope in slopes)
    if not alike and not by_head:
        return
    numbers = [round_numbers(slope)[0] for slope in slopes]
    point = proposal.point.replace(score_mod=sloped(numbers[:1] if alike else numbers))
    yield from _with_scale(Proposal(point, proposal.always), factor, at)


def _distance(head: int) -> Term:
    """The distance from query to key in one head, both counted from the first; elsewhere zero."""

    def values(call: DeclaredCall, attention: golden.Attention) -> Tensor:
        sizes = call.inputs.geometry
        apart = torch.arange(sizes.key_length) - torch.arange(sizes.query_length)[:, None]
        table = torch.zeros_like(attention.scores)
        table[:, head] = apart.abs().double()
        return table

    return Term("the distance from query to key", values)


def function_in(point: golden.Semantics) -> ScoreFunction | None:
    """The function of scores in a point, if made by this package, else None."""
    function = point.score_mod
    return function if isinstance(function, ScoreFunction) else None
