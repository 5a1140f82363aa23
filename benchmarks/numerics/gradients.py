"""Part 3: the bounds of gradients, on legitimate backward passes and on mistakes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Generator, Tensor

from conformance.tolerance import (
    Contract,
    Gradient,
    GradientFit,
    core_gradients,
    gradient_fit,
)

from .backward import BACKWARD_MISTAKES, BACKWARDS, ROLES, Gradients, automatic
from .exact import Margins, ratio
from .implementations import FUSED
from .in_dtype import eager
from .inputs import Heads
from .legitimate import Run, may_overflow
from .power import LEGITIMATE, Verdict
from .problems import Problem, size
from .rules import DEFAULTS, FLASH, HUNDREDTH, OURS, RULES, is_close

DTYPES: Final = ("float32", "bfloat16", "float16")
PLACES: Final = (
    ("none", "1,2,2,64,64,16,16"),
    ("causal", "1,2,2,100,100,64,64"),
    ("padding", "1,4,2,33,257,32,32"),
    ("none", "1,2,2,5,1,8,8"),
    ("relative bias", "1,1,1,33,600,64,64"),
)
FAMILIES: Final = (
    "normal",
    "logits to 30",
    "wide scales",
    "outlier channel",
    "attention sink",
    "offset values",
    "offset keys",
    "ties",
    "constant",
    "positive",
    "logits to 1e3",
    "one key wins",
)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What one gradient problem said: the legitimate runs, and every rule's verdicts."""

    runs: list[Run]
    verdicts: list[Verdict]


def gradient_problems(dtype: str, seed: int) -> Iterator[Problem]:
    """The problems of a dtype."""
    for family in FAMILIES:
        for mask, numbers in PLACES:
            yield Problem(
                kind="core",
                family=family,
                mask=mask,
                size=size(numbers),
                softcap=None,
                dtype=dtype,
                seed=seed,
            )


class _Judge:
    """The golden gradients of one problem, their bounds, and the other rules."""

    def __init__(self, problem: Problem, heads: Heads) -> None:
        self.generic = problem.generic
        self.heads = heads
        self.attention = heads.golden()
        generator = Generator().manual_seed(problem.seed)
        shape = self.attention.output.shape
        self.output_gradient = torch.randn(shape, generator=generator).to(heads.dtype)
        self.plain = automatic(eager)(heads, self.output_gradient)
        self._known: dict[Contract, dict[str, Gradient]] = {}

    def gradients(self, contract: Contract) -> dict[str, Gradient]:
        """The golden gradients and their bounds under a contract; remembered."""
        if contract not in self._known:
            self._known[contract] = core_gradients(
                self.attention,
                self.output_gradient.double(),
                contract,
                num_kv_heads=self.heads.key.shape[1],
            )
        return self._known[contract]

    def margins(self, found: Gradients, contract: Contract) -> Margins:
        """The largest figures over all roles."""
        if not all(bool(torch.isfinite(found[role]).all()) for role in ROLES):
            return Margins(worst=torch.inf)
        known = self.gradients(contract)
        errors = {role: found[role].double() - known[role].value for role in ROLES}
        worst = max(ratio(errors[role], known[role].worst) for role in ROLES)
        if not self.generic:
            return Margins(worst=worst)
        bound = max(ratio(errors[role], known[role].bound) for role in ROLES)
        fitted = [gradient_fit(errors[role], known[role]) for role in ROLES]
        return _with_fits(Margins(worst=worst, statistical=bound), fitted)

    def flagged(self, found: Gradients, contract: Contract) -> frozenset[str]:
        """The rules that reject some gradients; ours takes the smaller bound where both apply."""
        known = self.gradients(contract)
        verdicts = {
            OURS: not self.margins(found, contract).failed,
            FLASH: all(self._within_twice(found, known, role) for role in ROLES),
            DEFAULTS: all(is_close(found[role], known[role].value) for role in ROLES),
            HUNDREDTH: all(is_close(found[role], known[role].value, 1e-2) for role in ROLES),
        }
        return frozenset(rule for rule, passed in verdicts.items() if not passed)

    def _within_twice(self, found: Gradients, known: dict[str, Gradient], role: str) -> bool:
        def largest(gradient: Tensor) -> float:
            return float((gradient.double() - known[role].value).abs().max())

        return largest(found[role]) <= 2.0 * largest(self.plain[role]) + 1e-5


def _with_fits(margins: Margins, fitted: Iterable[GradientFit | None]) -> Margins:
    """The largest typical error that the fits leave, and the largest fitted scale error."""
    known = [each for each in fitted if each is not None]
    if not known:
        return margins
    scales = [
        (abs(each.scale_error) / each.scale_allowed, each.scale_error)
        for gradient in known
        for each in gradient.fits.values()
    ]
    scale, scale_error = max(scales, default=(None, None))
    return replace(
        margins,
        rms=max(each.unexplained for each in known),
        scale=scale,
        scale_error=scale_error,
    )


def judged(problem: Problem) -> Judgement:
    """Every legitimate backward pass and every mistake on one problem."""
    inputs = problem.make()
    if not isinstance(inputs, Heads):
        return Judgement(runs=[], verdicts=[])
    judge = _Judge(problem, inputs)
    fused = FUSED.contract(problem.dtype, inputs.scale)
    verdicts = [
        _verdict(name, problem, [judge.flagged(wrong, fused)])
        for name, wrong in _mistakes(problem, judge)
    ]
    runs, flagged = [], []
    for name, found, contract in _legitimate(problem, judge):
        margins = judge.margins(found, contract)
        runs.append(Run(implementation=name, problem=problem, margins=margins))
        flagged.append(judge.flagged(found, contract))
    return Judgement(runs=runs, verdicts=[*verdicts, _verdict(LEGITIMATE, problem, flagged)])


def _mistakes(problem: Problem, judge: _Judge) -> Iterator[tuple[str, Gradients]]:
    for name, mistake in BACKWARD_MISTAKES.items():
        if problem.dtype in mistake.dtypes and mistake.shows(judge.heads):
            yield name, mistake.compute(judge.heads, judge.output_gradient)


def _legitimate(problem: Problem, judge: _Judge) -> Iterator[tuple[str, Gradients, Contract]]:
    overflowing = may_overflow(judge.heads)
    for name, backward in BACKWARDS.items():
        promise = backward.promise
        if backward.takes(judge.heads) and not (overflowing and promise.scores == "eager"):
            found = backward.compute(judge.heads, judge.output_gradient)
            yield name, found, promise.contract(problem.dtype, judge.heads.scale)


def _verdict(subject: str, problem: Problem, flagged: list[frozenset[str]]) -> Verdict:
    counts = tuple(sum(rule in each for each in flagged) for rule in RULES)
    return Verdict(subject=subject, dtype=problem.dtype, tried=len(flagged), flagged=counts)
