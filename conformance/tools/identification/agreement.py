"""Whether a point of the semantics explains what was observed, within the golden's own bound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._golden import golden
from ...declare.declaration import Declaration
from ...declare.promises import declare
from ...oracle.oracle import Golden, Oracle, evaluate
from ...problems.inputs import Inputs
from .box import Observation

Rows = Tensor | None


@dataclass(frozen=True)
class Seen:
    """An observation with the problem it is read as, and the rows that count (None: all)."""

    inputs: Inputs
    output: Tensor
    rows: Rows = None


def seen(observation: Observation, inputs: Inputs | None = None, rows: Rows = None) -> Seen:
    """An observation, read as the answer to some other inputs where given."""
    return Seen(observation.inputs if inputs is None else inputs, observation.output, rows)


class Judge:
    """Compares observations with points, at the arithmetic of a dtype."""

    def __init__(
        self,
        kind: str,
        dtype: str,
        *,
        declaration: Declaration | None = None,
        always_causal: bool = False,
        cap: float | None = None,
    ) -> None:
        self.oracle = Oracle(declaration or declare(kind), dtype)
        self.always_causal = always_causal
        self.cap = cap

    def margin(self, point: golden.Semantics, one: Seen) -> float:
        """The largest error over its bound; infinite for another shape, or NaN elsewhere."""
        known = self.oracle.at(self.read(one.inputs), point)
        if known.output.shape != one.output.shape:
            return torch.inf
        return _margin(known, one)

    def bound(self, point: golden.Semantics, inputs: Inputs) -> Tensor:
        """How far a right answer may be from that of a point."""
        return self.oracle.at(self.read(inputs), point).bound

    def fits(self, point: golden.Semantics, observed: Iterable[Seen]) -> bool:
        """Whether a point's answers are within bound on every observation."""
        return all(self.margin(point, one) <= 1.0 for one in observed)

    def distance(self, point: golden.Semantics, observed: Iterable[Seen]) -> float:
        """The largest difference from a point's answers: cheaper than the bound."""
        return max((self._distance(point, one) for one in observed), default=0.0)

    def read(self, inputs: Inputs) -> Inputs:
        """The problem as it is understood: causal or capped, where the thing always is."""
        read = inputs.replace(causal=True) if self.always_causal else inputs
        return read if self.cap is None or read.softcap else read.replace(softcap=self.cap)

    def in_dtype(self, kind: str, dtype: str) -> Judge:
        """One that understands problems the same, at the arithmetic of another dtype."""
        return Judge(kind, dtype, always_causal=self.always_causal, cap=self.cap)

    def _distance(self, point: golden.Semantics, one: Seen) -> float:
        return _distance(point, Seen(self.read(one.inputs), one.output, one.rows))


def _margin(known: Golden, one: Seen) -> float:
    both_nan = torch.isnan(known.output) & torch.isnan(one.output)
    error = (one.output - known.output).abs()
    exact = (one.output == known.output) | both_nan
    ratio = torch.where(exact, 0.0, error / known.bound.clamp_min(torch.finfo(torch.float64).tiny))
    if one.rows is not None:
        ratio = torch.where(one.rows, ratio, 0.0)
    if not ratio.numel():
        return 0.0
    return torch.inf if bool(torch.isnan(ratio).any()) else float(ratio.max())


def _distance(point: golden.Semantics, one: Seen) -> float:
    answer = evaluate(one.inputs, point).output
    if answer.shape != one.output.shape:
        return torch.inf
    both_nan = torch.isnan(answer) & torch.isnan(one.output)
    apart = torch.where(both_nan, 0.0, (answer - one.output).abs())
    if one.rows is not None:
        apart = torch.where(one.rows, apart, 0.0)
    if not apart.numel():
        return 0.0
    return torch.inf if bool(torch.isnan(apart).any()) else float(apart.max())


def fitting(
    judge: Judge, points: Sequence[golden.Semantics], observed: Sequence[Seen]
) -> list[golden.Semantics]:
    """The points that fit, nearest first; bounds are worked out for the near ones only."""
    distances = {index: judge.distance(point, observed) for index, point in enumerate(points)}
    order = sorted((d, i) for i, d in distances.items() if d < torch.inf)
    found = []
    misses = 0
    for _, index in order:
        if judge.fits(points[index], observed):
            found.append(points[index])
        else:
            misses += 1
            if misses > _PATIENCE:
                break
    return found


_PATIENCE = 3
