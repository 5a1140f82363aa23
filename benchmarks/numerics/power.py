"""Part 2: which rule sees which mistake, and which one accuses legitimate implementations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .exact import exact_answer
from .implementations import EAGER, FUSED, Core
from .in_dtype import eager
from .inputs import Heads, Inputs
from .layers import layered
from .legitimate import candidates
from .mistakes import MISTAKES
from .problems import Problem, size
from .rules import RULES, Judge

LEGITIMATE: Final = "legitimate runs"
# Problems for power have the sizes at which people test: neither a single key nor many thousands,
# but for the sums that only long rows show.
CORE_PLACES: Final = (
    ("none", "1,2,2,64,64,64,64"),
    ("causal", "1,2,2,100,100,32,32"),
    ("padding", "2,2,2,33,257,16,16"),
)
LAYER_PLACES: Final = (("none", "1,2,2,64,64,16,16"), ("causal", "1,2,2,100,100,32,32"))
CORE_FAMILIES: Final = (
    "normal",
    "logits to 30",
    "wide scales",
    "outlier channel",
    "attention sink",
    "cancelling values",
    "offset values",
    "offset keys",
    "recipe nearly-uniform",
)
LAYER_FAMILIES: Final = ("normal", "logits to 30", "offset values", "exact projections")
PROBES: Final = (
    ("core", "lattice", "none", "1,2,2,33,33,16,16"),
    ("core", "lattice", "causal", "1,1,1,65,65,256,64"),
    ("core", "positive values", "none", "1,1,1,16,4096,64,64"),
    ("core", "normal", "deep", "1,2,2,33,33,16,16"),
    ("core", "normal", "deeper", "1,2,2,33,33,16,16"),
    ("layer", "exact lattice", "none", "1,2,2,33,33,16,16"),
    ("layer", "exact projections", "none", "1,1,1,33,65,256,256"),
    ("layer", "exact projections", "deep", "1,2,2,33,33,16,16"),
    ("layer", "exact projections", "deeper", "1,2,2,33,33,16,16"),
)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How often one mistake (or ``LEGITIMATE``) was tried in a dtype, and flagged by each rule."""

    subject: str
    dtype: str
    tried: int
    flagged: tuple[int, ...]


def power_problems(dtype: str, seed: int) -> Iterator[Problem]:
    """Problems on which mistakes are to be seen; 44 a dtype."""
    for kind, family, mask, numbers in _places():
        yield Problem(
            kind=kind,
            family=family,
            mask=mask,
            size=size(numbers),
            softcap=None,
            dtype=dtype,
            seed=seed,
        )


def _places() -> Iterator[tuple[str, str, str, str]]:
    for family in CORE_FAMILIES:
        for mask, numbers in CORE_PLACES:
            yield "core", family, mask, numbers
    for family in LAYER_FAMILIES:
        for mask, numbers in LAYER_PLACES:
            yield "layer", family, mask, numbers
    yield from PROBES


def verdicts(problem: Problem) -> list[Verdict]:
    """Every mistake that a problem can show, and the legitimate runs, under every rule."""
    inputs = problem.make()
    if inputs is None:
        return []
    with torch.no_grad():
        exact = exact_answer(inputs, generic=problem.generic)
        judge = Judge(exact=exact, plain=_around(eager, inputs)())
        fused = FUSED.contract(problem.dtype, inputs.scale)
        found = [
            _verdict(name, problem, [judge.flagged(compute(), fused)])
            for name, compute in _mistakes(problem.dtype, inputs)
        ]
        legitimate = [
            judge.flagged(compute(), promise.contract(problem.dtype, inputs.scale))
            for _, compute, promise in candidates(inputs)
            if promise in (EAGER, FUSED)  # the other rules know nothing of other promises
        ]
    return [*found, _verdict(LEGITIMATE, problem, legitimate)]


def _verdict(subject: str, problem: Problem, flagged: list[frozenset[str]]) -> Verdict:
    counts = tuple(sum(rule in each for each in flagged) for rule in RULES)
    return Verdict(subject=subject, dtype=problem.dtype, tried=len(flagged), flagged=counts)


def _mistakes(dtype: str, inputs: Inputs) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    heads = inputs if isinstance(inputs, Heads) else inputs.projected()
    for name, mistake in MISTAKES.items():
        if dtype in mistake.dtypes and mistake.shows(heads):
            yield name, _around(mistake.compute, inputs)


def _around(core: Core, inputs: Inputs) -> Callable[[], Tensor]:
    """A core on heads; on tokens the layer around it."""
    if isinstance(inputs, Heads):
        return partial(core, inputs)
    return partial(layered(core), inputs)
