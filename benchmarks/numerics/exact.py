"""The exact answer of a problem and every bound of it under a contract."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from conformance.oracle import double_double
from conformance.tolerance import Contract, core_bound, layer_bound
from conformance.tolerance.fit import fit
from conformance.tolerance.statistical import Statistics, core_statistics, layer_statistics

from .inputs import Heads, Tokens

TESTS: Final = ("worst", "statistical", "rms", "scale")


@dataclass(frozen=True, kw_only=True)
class Margins:
    """Each test of an answer as its figure over what is allowed: above 1 it fails.

    ``statistical``, ``rms`` and ``scale`` are None where they do not apply; ``worst`` is infinite
    for an answer that is not finite. ``rms`` is what the fitted scale error leaves: together with
    ``scale`` that is the rule of the clauses. ``scale_error`` is the scale's fitted relative error.
    """

    worst: float
    statistical: float | None = None
    rms: float | None = None
    scale: float | None = None
    scale_error: float | None = None

    def figures(self) -> dict[str, float]:
        """The figures of the tests that apply."""
        named = {name: getattr(self, name) for name in TESTS}
        return {name: figure for name, figure in named.items() if figure is not None}

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the tests that the answer fails."""
        return tuple(name for name, figure in self.figures().items() if not figure <= 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Bounds:
    """The worst-case bound, and the statistics where the tokens are independent."""

    worst: Tensor
    statistics: Statistics | None


class Exact(ABC):
    """The exact answer to some inputs, float64 and for float64 inputs a remainder, and its bounds.

    ``generic`` says that the tokens are independent.
    """

    def __init__(self, output: Tensor, remainder: Tensor | None, *, generic: bool) -> None:
        self.output, self.remainder = output, remainder
        self.generic = generic
        self._bounds: dict[Contract, Bounds] = {}

    @abstractmethod
    def worst(self, contract: Contract) -> Tensor:
        """The worst-case bound under a contract."""

    @abstractmethod
    def statistics(self, contract: Contract) -> Statistics:
        """What independent errors under a contract look like."""

    def error(self, answer: Tensor) -> Tensor:
        """How far an answer is from the exact one, with its sign."""
        error = answer.double() - self.output
        return error if self.remainder is None else error - self.remainder

    def bounds(self, contract: Contract) -> Bounds:
        """The bounds under a contract; remembered. One side errs: the other answer is exact."""
        contract = dataclasses.replace(contract, sides=1)
        found = self._bounds.get(contract)
        if found is None:
            statistics = self.statistics(contract) if self.generic else None
            found = Bounds(worst=self.worst(contract), statistics=statistics)
            self._bounds[contract] = found
        return found

    def margins(self, answer: Tensor, contract: Contract) -> Margins:
        """Everything that the tolerance says about an answer."""
        if not bool(torch.isfinite(answer).all()):
            return Margins(worst=torch.inf)
        bounds, error = self.bounds(contract), self.error(answer)
        worst, statistics = ratio(error, bounds.worst), bounds.statistics
        if statistics is None:
            return Margins(worst=worst)
        statistical = ratio(error[..., statistics.rows, :], statistics.bound)
        fitted = fit(error, statistics)
        if fitted is None:
            return Margins(worst=worst, statistical=statistical)
        return Margins(
            worst=worst,
            statistical=statistical,
            rms=fitted.unexplained,
            scale=abs(fitted.scale_error) / fitted.scale_allowed,
            scale_error=fitted.scale_error,
        )


class ExactCore(Exact):
    """Of attention proper."""

    def __init__(self, heads: Heads, *, generic: bool) -> None:
        self.attention = heads.golden()
        output, remainder = self.attention.output, None
        if heads.dtype == torch.float64:
            output, remainder = double_double.core_output(self.attention)
        super().__init__(output, remainder, generic=generic)

    def worst(self, contract: Contract) -> Tensor:
        """See :class:`Exact`."""
        return core_bound(self.attention, contract)

    def statistics(self, contract: Contract) -> Statistics:
        """See :class:`Exact`."""
        return core_statistics(self.attention, contract)


class ExactLayer(Exact):
    """Of the whole layer."""

    def __init__(self, tokens: Tokens, *, generic: bool) -> None:
        self.layer = tokens.golden()
        output, remainder = self.layer.output, None
        if tokens.dtype == torch.float64:
            output, remainder = double_double.layer_output(self.layer)
        super().__init__(output, remainder, generic=generic)

    def worst(self, contract: Contract) -> Tensor:
        """See :class:`Exact`."""
        return layer_bound(self.layer, contract)

    def statistics(self, contract: Contract) -> Statistics:
        """See :class:`Exact`."""
        return layer_statistics(self.layer, contract)


def exact_answer(inputs: Heads | Tokens, *, generic: bool) -> Exact:
    """The exact answer of a core's or a layer's inputs."""
    if isinstance(inputs, Heads):
        return ExactCore(inputs, generic=generic)
    return ExactLayer(inputs, generic=generic)


def ratio(error: Tensor, bound: Tensor) -> float:
    """The largest error over its bound; no error needs no bound."""
    ratios = torch.where(error == 0, 0.0, error.abs() / bound)
    return float(ratios.nan_to_num(nan=torch.inf).max())
