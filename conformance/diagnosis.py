"""Names the mistake: the other points of the semantics that give exactly the candidate's answers.

The candidate is called once on a small battery of problems. A single named mistake, else a pair of
them, is reported when its answers lie within their own bound on every problem and the declared
point's do not. None is reported rather than a guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from ._golden import golden
from .calling import CandidateFailure, arguments, guarded
from .clauses.numerics import largest_product
from .comparison import compare
from .edges import edge_problems
from .inputs import Inputs
from .mistakes import MISTAKES, NamedMistake
from .oracle import Golden
from .precision_diagnosis import precision_entry, scale_entry
from .problem import MaskPlan, Problem
from .space import Space
from .stretching import single_key_inputs
from .subject import Subject
from .tolerance import model

MOST_REPORTED = 3
LIVELY = ("normal",)
# Logits of the only kept key that show fills of -1e2 .. -1e7.
STRETCHED = (1e3, 3e4, 3e5, 5e6, 9e7)


@dataclass(frozen=True)
class _Observed:
    inputs: Inputs
    output: Tensor


def diagnose(subject: Subject) -> list[dict[str, Any]]:
    """The named mistakes that explain every answer of the battery, as the report's entries."""
    if not subject.candidate.golden_known or subject.candidate.kind == "positions":
        return []
    observed = _observe(subject)
    declared = subject.declaration.semantics
    pairs = [(seen.inputs, seen.output) for seen in observed]
    if not observed or _explains(subject, declared, observed):
        entry = scale_entry(subject, pairs) or precision_entry(subject, pairs)
        return list(filter(None, [entry]))
    singles = [mistake for mistake in MISTAKES if mistake.at(declared) != declared]
    found: list[tuple[NamedMistake, ...]] = [
        (one,) for one in singles if _explains(subject, one.at(declared), observed)
    ]
    if not found:
        entry = scale_entry(subject, pairs) or precision_entry(subject, pairs)
        if entry is not None:
            return [entry]
        found = [
            pair for pair in _pairs(singles) if _explains(subject, _both(pair, declared), observed)
        ]
    return [_entry(names) for names in found[:MOST_REPORTED]]


def _entry(mistakes: tuple[NamedMistake, ...]) -> dict[str, Any]:
    return {
        "name": "+".join(mistake.name for mistake in mistakes),
        "text": "; ".join(mistake.text for mistake in mistakes),
        "fix": "; ".join(mistake.fix for mistake in mistakes),
        "confidence": 1.0 / len(mistakes),
    }


def _pairs(singles: list[NamedMistake]) -> Iterator[tuple[NamedMistake, NamedMistake]]:
    for one, two in combinations(singles, 2):
        if not set(one.changes) & set(two.changes):
            yield one, two


def _both(pair: tuple[NamedMistake, ...], point: golden.Semantics) -> golden.Semantics:
    for mistake in pair:
        point = mistake.at(point)
    return point


def _observe(subject: Subject) -> list[_Observed]:
    """What the candidate answers on the battery; what it cannot be called with is left out."""
    observed = []
    for inputs in _battery(subject):
        try:
            forward = subject.forward(inputs)
            positional, keywords = arguments(inputs)
            output = guarded(forward, positional, keywords)
        except CandidateFailure:
            continue
        if isinstance(output, Tensor) and output.is_floating_point():
            batched = output if inputs.batched else output.unsqueeze(0)
            observed.append(_Observed(inputs, batched.detach().double()))
    return observed


def _battery(subject: Subject) -> Iterator[Inputs]:
    """Plain, masked, biased, causal and empty-row problems, then single keys far below others."""
    candidate, dtype = subject.candidate, subject.dtype
    spaces = [
        Space(values=LIVELY),
        Space(values=LIVELY, mask="offered", patterns=("random",)),
        Space(values=LIVELY, causal="offered"),
        Space(values=LIVELY, causal="offered", mask="offered", patterns=("dense",)),
        Space(values=LIVELY, mask="offered", patterns=("empty-rows",)),
        Space(values=LIVELY, mask="offered", forms=("bias",), finite_bias="always"),
    ]
    seen: set[Problem] = set()
    for space in spaces:
        for problem in edge_problems(candidate, space, dtype=dtype)[:4:3]:
            lively = problem.replace(values="normal", biases=True)
            if lively not in seen:
                seen.add(lively)
                yield subject.inputs(lively)
    yield from _stretched(subject)


def _stretched(subject: Subject) -> Iterator[Inputs]:
    space = Space(values=LIVELY, mask="always", least=(("key_length", 3),))
    if not space.options(subject.candidate):
        return
    form, shape = space.options(subject.candidate)[0]
    base = edge_problems(subject.candidate, space, dtype=subject.dtype)[0]
    plan = MaskPlan(pattern="single", form=form, shape=shape)
    for target in STRETCHED:
        for low in (True, False):
            drawn = subject.inputs(base.replace(mask=plan, values="normal"))
            stretched = single_key_inputs(drawn, live=0, target=target, low=low)[0]
            if largest_product(subject.golden(stretched).core) < torch.finfo(drawn.query.dtype).max:
                yield stretched  # what overflows in half precision would hide every mistake


def _explains(subject: Subject, point: golden.Semantics, observed: list[_Observed]) -> bool:
    """Whether a point's answers agree with the candidate's on every problem of the battery."""
    return all(_agrees(subject, point, seen) for seen in observed)


def _agrees(subject: Subject, point: golden.Semantics, seen: _Observed) -> bool:
    """Whether one answer is the point's, and not only because the point's bound is wide."""
    known = subject.oracle.at(seen.inputs, point)
    if known.output.shape != seen.output.shape:
        return False
    both_nan = torch.isnan(known.output) & torch.isnan(seen.output)
    if bool((torch.isnan(known.output) & ~both_nan).any()):
        return False
    agreement = compare(seen.output, known.output, known.bound, judged=~both_nan)
    return agreement.violation is None and _tells(subject, known, seen)


def _tells(subject: Subject, known: Golden, seen: _Observed) -> bool:
    """Whether the point comes much closer than the declared one wherever that is wrong."""
    declared = subject.golden(seen.inputs)
    if declared.output.shape != seen.output.shape:
        return True
    apart = (seen.output - declared.output).abs()
    wrong = (apart > declared.bound) & torch.isfinite(apart)
    left = (seen.output - known.output).abs()
    return bool((left[wrong] <= model.MUCH_CLOSER * apart[wrong]).all())


__all__ = ["diagnose"]
