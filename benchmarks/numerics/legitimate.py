"""Part 1: legitimate implementations on every problem, and how near the limits they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from .exact import Margins, exact_answer
from .implementations import IMPLEMENTATIONS, Promise
from .inputs import Heads, Inputs
from .layers import LAYERS
from .problems import Problem

# Eager float16 stores the product before the scale: beyond this it may overflow, and then no bound
# makes sense (NUMERICS, pitfall 3). A sixteenth of the largest float16 leaves room for roundings.
LARGEST_PRODUCT = 65504.0 / 16.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One implementation on one problem."""

    implementation: str
    problem: Problem
    margins: Margins

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {f:.3g}" for name, f in self.margins.figures().items())
        return f"{self.implementation} on '{self.problem}': {figures}"


Candidate = tuple[str, Callable[[], Tensor], Promise]


def candidates(inputs: Inputs) -> Iterator[Candidate]:
    """The legitimate implementations of some inputs: name, computation, promise."""
    overflowing = may_overflow(inputs)
    for name, compute, promise in _all(inputs):
        if not (overflowing and promise.scores == "eager"):
            yield name, compute, promise


def _all(inputs: Inputs) -> Iterator[Candidate]:
    if isinstance(inputs, Heads):
        for name, core in IMPLEMENTATIONS.items():
            if core.takes(inputs):
                yield name, partial(core.compute, inputs), core.promise
        return
    for name, layer in LAYERS.items():
        if layer.takes(inputs):
            yield name, partial(layer.compute, inputs), layer.promise


def may_overflow(inputs: Inputs) -> bool:
    """Whether a float16 product could overflow before it is scaled."""
    if inputs.dtype != torch.float16:
        return False
    heads = inputs if isinstance(inputs, Heads) else inputs.projected()
    heads = heads.repeated()
    products = heads.query.double().abs() @ heads.key.double().abs().transpose(-1, -2)
    return not bool(products.max() < LARGEST_PRODUCT)


def runs(problem: Problem) -> list[Run]:
    """Every implementation that can be given a problem; none if its dtype cannot hold it."""
    inputs = problem.make()
    if inputs is None:
        return []
    exact = exact_answer(inputs, generic=problem.generic)
    found = []
    with torch.no_grad():
        for name, compute, promise in candidates(inputs):
            contract = promise.contract(problem.dtype, inputs.scale)
            margins = exact.margins(compute(), contract)
            found.append(Run(implementation=name, problem=problem, margins=margins))
    return found
