"""Compares an answer with the expected answer, within an elementwise bound.

The derivation of both sides from the candidate's answers is kept as plain data. Tensors become
tables, written out if small enough to read. A bundle keeps them whole: :func:`kept_whole`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from ..base.results import Replaceable, Violation
from ..calls.recording import Recording

# Of a tensor with more elements the table has the shape and the dtype only.
MOST_ELEMENTS: Final = 64
_KEPT: Final[ContextVar[list[Tensor] | None]] = ContextVar("kept", default=None)


def equal_numbers(one: Tensor, other: Tensor) -> Tensor:
    """Which elements are equal; NaN equals NaN."""
    return (one == other) | (one.isnan() & other.isnan())


def table(tensor: Tensor) -> dict[str, Any]:
    """Shape and dtype of a tensor, and its values as nested lists if they are few.

    Values of half and single precision become equal Python floats. If tensors are kept whole,
    ``array`` is the number of the tensor instead.
    """
    shown: dict[str, Any] = {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }
    kept = _KEPT.get()
    if kept is not None:
        shown["array"] = len(kept)
        kept.append(tensor.detach().cpu().contiguous().clone())
    elif tensor.numel() <= MOST_ELEMENTS:
        shown["values"] = tensor.detach().tolist()
    return shown


@contextmanager
def kept_whole() -> Iterator[list[Tensor]]:
    """Keep the tensors of all tables that are made meanwhile, in a list."""
    kept: list[Tensor] = []
    token = _KEPT.set(kept)
    try:
        yield kept
    finally:
        _KEPT.reset(token)


def keeping() -> bool:
    """Whether tensors are kept whole."""
    return _KEPT.get() is not None


def has_all_elements(tensor: Tensor) -> bool:
    """Whether the table of a tensor holds all of its elements."""
    return keeping() or tensor.numel() <= MOST_ELEMENTS


# What the axes of an answer are called, by their number: heads, tokens.
AXES: Final[Mapping[int, tuple[str, ...]]] = {
    4: ("batch", "head", "query", "channel"),
    3: ("batch", "query", "channel"),
}
WEIGHT_AXES: Final = ("batch", "head", "query", "key")
# An error of so many bounds is no rounding: what the bound consists of would only mislead.
GROSS: Final = 10.0


@dataclass(frozen=True, kw_only=True, eq=False)
class CounterfactualDifference:
    """Elements of a counterfactual answer: outside the bound, and judged; bool tensors."""

    moved: Tensor
    judged: Tensor


_watched: Final[ContextVar[list[CounterfactualDifference] | None]] = ContextVar(
    "watched", default=None
)


@dataclass(frozen=True, kw_only=True)
class Comparison(Replaceable):
    """The outcome of one comparison, as numbers; :func:`disagreement` puts it in words.

    margin
        The largest error over its bound; 1 is at the bound. Infinite if an answer is not finite.
    kind
        "" for agreement, else ``value`` or ``finite``: the violation's kind.
    index, where
        The worst element, as an index and with the names of its axes (batch, head, query, channel).
    expected, got, error, bound
        Of the worst element.
    counted, compared
        The number of elements that are not finite (of kind ``finite``), and of all compared.
    expected_not_finite
        Whether the expected side, itself an answer of the candidate, is not finite.
    parts
        The share of every stage of the computation in the bound of the worst element, the largest
        first (see ``tolerance.contract.STAGES``); empty if no single bound was derived.
    scale_error
        The relative error of the logit scale that explains the errors best, None without a fit.
    tables
        The compared tensors as plain data; empty for large tensors.
    """

    margin: float
    kind: str = ""
    wording: str = ""
    index: tuple[int, ...] = ()
    axes: tuple[str, ...] = ()
    expected: float = 0.0
    got: float = 0.0
    error: float = 0.0
    bound: float = 0.0
    counted: int = 0
    compared: int = 0
    expected_not_finite: bool = False
    parts: Mapping[str, float] = field(default_factory=dict)
    scale_error: float | None = None
    tables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> dict[str, int]:
        """The worst element by the names of its axes; empty for shapes without names."""
        named = len(self.axes) == len(self.index)
        return dict(zip(self.axes, self.index, strict=True)) if named else {}

    @property
    def violation(self) -> Violation | None:
        """How the answer is wrong, None when it agrees."""
        reason = disagreement(self)
        if not reason:
            return None
        unexpected = self.kind == "finite" and self.expected_not_finite
        return Violation(
            kind=self.kind,
            message=reason,
            expected=None if unexpected else self.expected,
            got=self.got,
            where=list(self.index),
            measured=self._measured(),
            compared=dict(self.tables),
        )

    def _measured(self) -> dict[str, Any]:
        measured: dict[str, Any] = {
            "margin": self.margin,
            "error": self.error,
            "bound": self.bound,
            **self.where,
        }
        if self.parts:
            measured["parts"] = dict(self.parts)
        if self.scale_error is not None:
            measured["scale_error"] = self.scale_error
        return measured


# What is wrong with two answers that may well agree.
NEITHER_FINITE: Final = "neither of two answers is finite"


def disagreement(comparison: Comparison) -> str:
    """The reason why an answer is not the expected one, in one sentence, or ""."""
    if not comparison.kind:
        return ""
    place = _place(comparison)
    wording, got = comparison.wording, comparison.got
    if comparison.kind == "finite" and comparison.expected_not_finite:
        if wording == NEITHER_FINITE:
            return f"{wording} at {place}: {got}"
        return f"{wording}: one of the two answers is not finite at {place}: {got}"
    numbers = f"expected {comparison.expected:.9g}, got {got:.9g}"
    if comparison.kind == "finite":
        of_all = f"{comparison.counted} of {comparison.compared} elements are"
        return f"{wording}: not finite at {place}: {numbers} ({of_all})"
    allowed = f"error {comparison.error:.3g}, allowed {comparison.bound:.3g}"
    mostly, scaled = _mostly(comparison), _scaled(comparison)
    return f"{wording} at {place}: {numbers} ({allowed}{mostly}){scaled}"


def _place(comparison: Comparison) -> str:
    named = comparison.where
    if not named:
        return str(list(comparison.index))
    return ", ".join(f"{axis} {number}" for axis, number in named.items())


def _mostly(comparison: Comparison) -> str:
    """The largest part of the bound in words, for an error near enough to the bound."""
    if not comparison.parts or comparison.margin >= GROSS:
        return ""
    stage, share = next(iter(comparison.parts.items()))
    return f", {share:.0%} of it for {SPOKEN_STAGES[stage]}"


def _scaled(comparison: Comparison) -> str:
    if comparison.scale_error is None:
        return ""
    return f"; this fits a scale with a relative error of {comparison.scale_error:+.3g}"


SPOKEN_STAGES: Final[Mapping[str, str]] = {
    "projection": "rounding in the projections",
    "quantisation": "the 8-bit integers of the projections",
    "score": "rounding of the logits",
    "exp": "the exponentials",
    "accumulation": "rounding in the weighted sums",
    "rounding": "rounding of the stored result",
}


def compare(
    got: Tensor,
    expected: Tensor,
    bound: Tensor,
    *,
    judged: Tensor | None = None,
    wording: str = "the answer differs from the expected one",
    both_answers: bool = False,
    remainder: Tensor | None = None,
    axes: tuple[str, ...] | None = None,
) -> Comparison:
    """Require ``|got - expected| <= bound`` wherever ``judged`` (bool, broadcastable) is True.

    Finiteness comes first: NaN or infinity where a finite value is expected is a violation of kind
    ``finite`` whatever the bound. With ``both_answers`` the expected values are an answer of the
    candidate as well: two NaN do not agree. Otherwise anything agrees with an expected value that
    is not finite. ``remainder`` is what the expected values lack to be exact.

    Raises ValueError where the answers are not of one shape.
    """
    if got.shape != expected.shape:
        msg = f"the answer has shape {tuple(got.shape)}, the expected one {tuple(expected.shape)}"
        raise ValueError(msg)
    got, expected = got.double(), expected.double()
    judged = torch.ones_like(got, dtype=torch.bool) if judged is None else judged.expand(got.shape)
    axes = axes or AXES.get(got.dim(), ())
    pair = _Pair(got, expected, bound, axes, wording, judged, compares_two_answers=both_answers)
    if not (_all_finite(got) and _all_finite(expected)):
        unexpected = _not_finite(pair)
        if unexpected is not None:
            return unexpected
        judged = judged & torch.isfinite(expected)
    error = (got - expected).abs() if remainder is None else (got - expected - remainder).abs()
    ratio = errors_in_bounds(error, bound, judged)
    margin = float(ratio.max()) if ratio.numel() else 0.0
    if margin <= 1.0:
        return Comparison(margin=margin)
    with_error = dataclasses.replace(pair, error=error)
    return with_error.compare_at(ratio == margin, kind="value", margin=margin)


def _all_finite(tensor: Tensor) -> bool:
    """Whether every element is finite: neither a NaN nor infinity leaves the largest size so."""
    return tensor.numel() == 0 or math.isfinite(tensor.abs().max().item())


def _not_finite(pair: _Pair) -> Comparison | None:
    """A comparison at an element that should be finite and is not; None without such elements."""
    got, expected, judged = pair.got, pair.expected, pair.judged
    broken = judged & ~torch.isfinite(got) & torch.isfinite(expected)
    if bool(broken.any()):
        return pair.compare_at(broken, kind="finite", margin=math.inf)
    if not pair.compares_two_answers or bool((torch.isfinite(expected) | ~judged).all()):
        return None
    unknown = judged & ~torch.isfinite(expected)
    differing = unknown & torch.isfinite(got)
    alone = bool(differing.any())
    unknown = differing if alone else unknown
    wording = pair.wording if alone else NEITHER_FINITE
    swapped = dataclasses.replace(pair, got=expected, expected_not_finite=True, wording=wording)
    return swapped.compare_at(unknown, kind="finite", margin=math.inf).replace(tables=pair.tables())


def errors_in_bounds(error: Tensor, bound: Tensor, judged: Tensor) -> Tensor:
    """Errors as multiples of their bound, zero where they are not judged.

    A bound that is not a number allows nothing.
    """
    ratio = torch.where(error == 0, 0.0, error / bound).nan_to_num(nan=math.inf, posinf=math.inf)
    return torch.where(judged, ratio, 0.0)


@dataclass(frozen=True)
class _Pair:
    """Two answers under comparison; one element is picked."""

    got: Tensor
    expected: Tensor
    bound: Tensor
    axes: tuple[str, ...]
    wording: str
    judged: Tensor
    expected_not_finite: bool = False
    error: Tensor | None = None
    compares_two_answers: bool = False

    def tables(self) -> dict[str, Any]:
        """The compared tensors, if few enough to read; ``judged`` if not all elements count."""
        if not has_all_elements(self.got):
            return {}
        shown = {"expected": self.expected, "got": self.got, "bound": self.bound}
        if not bool(self.judged.all()):
            shown["judged"] = self.judged
        tables: dict[str, Any] = {
            name: table(tensor.expand(self.got.shape)) for name, tensor in shown.items()
        }
        return {**tables, "law": True} if self.compares_two_answers and keeping() else tables

    def compare_at(self, chosen: Tensor, *, kind: str, margin: float) -> Comparison:
        """What is wrong at the first chosen element."""
        index = tuple(int(i) for i in chosen.nonzero()[0])
        expected, got = float(self.expected[index]), float(self.got[index])
        return Comparison(
            margin=margin,
            kind=kind,
            wording=self.wording,
            index=index,
            axes=self.axes,
            expected=expected,
            got=got,
            error=abs(got - expected) if self.error is None else float(self.error[index]),
            bound=float(self.bound.expand(self.got.shape)[index]),
            counted=int(chosen.sum()),
            compared=self.got.numel(),
            expected_not_finite=self.expected_not_finite,
            tables=self.tables(),
        )


def moves(expected: Tensor, other: Tensor, bound: Tensor, judged: Tensor | None = None) -> bool:
    """Whether another answer lies outside the bound somewhere that is judged."""
    if other.shape != expected.shape:
        return True
    far = ~((other - expected).abs() <= bound)
    watched = _watched.get()
    if watched is not None:
        elements = torch.ones_like(far) if judged is None else judged.expand(far.shape)
        watched.append(CounterfactualDifference(moved=far & elements, judged=elements))
    return bool((far if judged is None else far & judged).any())


@contextmanager
def watching_counterfactuals() -> Iterator[list[CounterfactualDifference]]:
    """Collect the elements that counterfactuals move in the meantime."""
    differences: list[CounterfactualDifference] = []
    token = _watched.set(differences)
    try:
        yield differences
    finally:
        _watched.reset(token)


View = Callable[[Tensor], Tensor]
Side = Sequence[tuple[Tensor, View | None]]


def add_relation(
    violation: Violation | None, recording: Recording | None, *, expected: Side, got: Side
) -> Violation | None:
    """A violation with the answers whose sum each side is, if their calls are recorded.

    A side is a list of answers, as the candidate returned them, with the compared views.
    """
    if violation is None or recording is None or not violation.compared:
        return violation
    sides = {"expected": _side(recording, expected), "got": _side(recording, got)}
    if not all(sides.values()):
        return violation
    return dataclasses.replace(violation, compared={**violation.compared, "relation": sides})


def _side(recording: Recording, answers: Side) -> list[dict[str, Any]]:
    """Call numbers and the elements taken of each; empty when a call is not recorded."""
    side: list[dict[str, Any]] = []
    for output, view in answers:
        number = recording.number(output)
        if number is None or not has_all_elements(output):
            return []
        side.append({"call": number, **({} if view is None else _elements(output, view))})
    return side


def _elements(output: Tensor, view: View) -> dict[str, Any]:
    """The indices of the answer's elements in a view, in order; nothing for the plain answer."""
    numbered = torch.arange(output.numel()).reshape(output.shape)
    viewed = view(numbered)
    return {} if torch.equal(viewed, numbered) else {"elements": viewed.flatten().tolist()}
