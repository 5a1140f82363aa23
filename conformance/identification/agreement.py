"""Compare observed answers with points of the semantics, within the golden's own bound."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from .._golden import golden
from ..declare.declaration import Declaration
from ..declare.promises import declare
from ..diagnosis.mistaken_answer import Combination, act
from ..diagnosis.mistakes import NotExpressible
from ..oracle.oracle import Oracle, evaluate
from ..problems.inputs import Inputs
from .caller import Caller, ProbeAnswer


class PointJudge:
    """Compares answers with points of the semantics, in the arithmetic of a dtype.

    made: statements of diagnosis, acted out in every expected answer.
    """

    def __init__(
        self,
        kind: str,
        dtype: str,
        *,
        declaration: Declaration | None = None,
        always_causal: bool = False,
        made: Combination = (),
    ) -> None:
        self.oracle = Oracle(declaration or declare(kind), dtype)
        self.always_causal = always_causal
        self.made = made

    def margin(self, point: golden.Semantics, sample: ProbeAnswer) -> float:
        """The largest error over its bound; infinite for a wrong shape or a misplaced NaN."""
        try:
            output, bound = self.expected(point, sample.inputs)
        except NotExpressible:
            return math.inf
        return _largest(sample, output, bound.clamp_min(torch.finfo(torch.float64).tiny))

    def speaks_of(self, point: golden.Semantics, sample: ProbeAnswer) -> bool:
        """Whether the changes in ``made`` can be acted out on the inputs of a sample."""
        try:
            self.expected(point, sample.inputs)
        except NotExpressible:
            return False
        return True

    def bound(self, point: golden.Semantics, inputs: Inputs) -> Tensor:
        """The largest permitted distance of an answer from the answer at a point."""
        return self.expected(point, inputs)[1]

    def expected(self, point: golden.Semantics, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The answer at a point with its bound; NotExpressible where a change has no meaning."""
        inputs = self.read(inputs)
        if not self.made:
            expected = self.oracle.answer_at(inputs, point)
            return expected.output, expected.bound
        acted = act(self.oracle, point, self.made, inputs)
        return acted.output, acted.bound

    def fits(self, point: golden.Semantics, samples: Iterable[ProbeAnswer]) -> bool:
        """Whether every sample is within the bound around a point's answer."""
        return all(self.margin(point, sample) <= 1.0 for sample in samples)

    def distance(self, point: golden.Semantics, samples: Iterable[ProbeAnswer]) -> float:
        """The largest difference from a point's answers: cheaper to compute than the margin."""
        return max(
            (
                _largest(sample, evaluate(self.read(sample.inputs), point).output)
                for sample in samples
            ),
            default=0.0,
        )

    def read(self, inputs: Inputs) -> Inputs:
        """The problem that the implementation solves: causal if every call is causal."""
        return inputs.replace(causal=True) if self.always_causal else inputs

    def in_dtype(self, kind: str, dtype: str) -> PointJudge:
        """A judge with the same causality and changes, in the arithmetic of another dtype."""
        return PointJudge(kind, dtype, always_causal=self.always_causal, made=self.made)

    def making(self, made: Combination) -> PointJudge:
        """A judge with the same arithmetic and the changes ``made`` in every expected answer."""
        other = copy.copy(self)
        other.made = made
        return other


@dataclass(kw_only=True)
class Probed:
    """A way to call an implementation, the best point so far, and the judge."""

    caller: Caller
    point: golden.Semantics
    judge: PointJudge

    def under(self, **convention: Any) -> Self:
        """The implementation called in another way: see :meth:`Caller.under`."""
        return dataclasses.replace(self, caller=self.caller.under(**convention))

    def sees(self, inputs: Inputs, other: Inputs | None = None, **changes: Any) -> bool:
        """Whether the expected answer depends on fields of the point, or on inputs.

        Always true without changes beyond the point.
        """
        if not self.judge.made:
            return True
        own = self.judge.expected(self.point, inputs)[0]
        changed = self.judge.expected(self.point.replace(**changes), other or inputs)[0]
        return not torch.equal(own, changed)

    def fits(self, *answers: ProbeAnswer, **changes: Any) -> bool:
        """Whether answers fit the point with some fields changed."""
        return self.judge.fits(self.point.replace(**changes), answers)


def _largest(sample: ProbeAnswer, expected: Tensor, bound: Tensor | float = 1.0) -> float:
    """The largest error over a bound among the compared rows; equal infinities have none."""
    if expected.shape != sample.output.shape:
        return torch.inf
    both_nan = torch.isnan(expected) & torch.isnan(sample.output)
    error = (sample.output - expected).abs() / bound
    error = torch.where((sample.output == expected) | both_nan, 0.0, error)
    if sample.rows is not None:
        error = torch.where(sample.rows, error, 0.0)
    if not error.numel():
        return 0.0
    return torch.inf if bool(torch.isnan(error).any()) else float(error.max())
