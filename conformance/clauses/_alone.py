"""One query with the keys that it may see as all there are: what windows and flags come down to."""

from __future__ import annotations

import torch
from torch import Tensor

from ..declare.candidate import Candidate
from ..problems.inputs import Inputs
from ..problems.space import LENGTHS, admits_lengths, can_cross, is_fixed
from ._vocabulary import Counterfactual, View, golden_at, same_answer
from .registry import Finding
from .subject import Subject


def stands_alone(candidate: Candidate) -> str:
    """Why a query cannot be asked with the keys of its window alone, or ""."""
    declared = candidate.declaration
    if any(is_fixed(candidate, name) for name in LENGTHS):
        return "its geometry pins the lengths"
    if declared.position is not None:
        return f"it mixes in {declared.position} positions, which fewer keys would move"
    if declared.always_causal and declared.semantics.causal_alignment == "top-left":
        return "it always applies a causal rule from the first key on"
    return ""


def as_alone(
    subject: Subject,
    inputs: Inputs,
    row: int,
    wording: str,
    *,
    counterfactual: Counterfactual,
) -> Finding:
    """A row's answer is that of its query alone with the keys that flag and window admit.

    ``counterfactual`` gives a golden output for all rows, which the row must be able to tell apart.
    It does not bind where the row sees no key.
    """
    found = _alone(subject, inputs, row)
    if found is None:
        return Finding(binding=False)
    alone, view, judged = found
    return same_answer(
        subject,
        inputs,
        alone,
        wording,
        view=view,
        judged=judged,
        counterfactual=lambda: view(golden_at(subject, inputs, counterfactual)),
    )


def _alone(subject: Subject, inputs: Inputs, row: int) -> tuple[Inputs, View, Tensor] | None:
    """The question of one row, how its answer is seen in that of all, and the rows to judge."""
    seen = _structure(subject, inputs)[row].nonzero().flatten()
    if not len(seen):
        return None
    keys = slice(int(seen[0]), int(seen[-1]) + 1)
    # Where queries and keys are as many, the other queries of the window come along.
    rows = slice(row, row + 1) if can_cross(subject.candidate) else keys
    alone = inputs.with_tokens(
        query=inputs.query[..., rows, :],
        key=inputs.key[..., keys, :],
        value=inputs.value[..., keys, :],
    ).replace(
        keep=_cut(inputs.keep, rows, keys),
        bias=_cut(inputs.bias, rows, keys),
        causal=inputs.causal and inputs.causal_unasked,
        window=None,
        past=0,
    )
    if not admits_lengths(subject.candidate, alone.geometry):
        return None
    judged = (torch.arange(inputs.geometry.query_length)[rows] == row).unsqueeze(-1)
    return alone, lambda answer: answer[..., rows, :], judged


def _structure(subject: Subject, inputs: Inputs) -> Tensor:
    """What flag and window admit: bool ``[Lq, Lk]``."""
    return inputs.structure(subject.declaration.semantics)


def _cut(mask: Tensor | None, rows: slice, keys: slice) -> Tensor | None:
    if mask is None:
        return None
    return (mask if mask.shape[2] == 1 else mask[:, :, rows])[..., keys]


def all_of(findings: list[Finding]) -> Finding:
    """Several findings as one: the first violation, or the largest margin."""
    broken = next((found for found in findings if found.violation is not None), None)
    if broken is not None:
        return broken
    margins = [found.margin for found in findings if found.margin is not None]
    return Finding(
        binding=any(found.binding for found in findings), margin=max(margins, default=None)
    )
