"""What the clauses share that run a graph in several ways: its answers, and whether they agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base.results import Violation
from ..calls.calling import (
    CandidateFailure,
    RowWithoutKeysRefused,
    arguments,
    guarded,
    read_answer,
)
from ..declare.candidate import Candidate
from ..graphs.opened import OpenedGraph
from ..graphs.process import Setting
from ..oracle.comparison import AXES, compare
from ..problems.inputs import Inputs
from ._vocabulary import column
from .registry import Finding
from .subject import Subject


def graph_of(candidate: Candidate) -> OpenedGraph:
    """The graph behind a candidate; LookupError for one that is none."""
    if candidate.graph is None:
        msg = f"{candidate.name} is no ONNX graph"
        raise LookupError(msg)
    return candidate.graph


def source_answer(subject: Subject, inputs: Inputs) -> Tensor | None:
    """What the module answers that the graph was exported from; None where it refuses."""
    source = graph_of(subject.candidate).source
    if source is None:
        return None
    try:
        return read_answer(guarded(source, *arguments(inputs)), inputs).output
    except CandidateFailure:
        return None


def answer_at(subject: Subject, setting: Setting, inputs: Inputs, where: str) -> Tensor | Violation:
    """The graph's answer under a setting of the runtime, or what is wrong there.

    Raises RowWithoutKeysRefused as any call does.
    """
    forward = graph_of(subject.candidate).forward(setting)
    try:
        return subject.call(forward, inputs).output
    except RowWithoutKeysRefused:
        raise
    except CandidateFailure as failure:
        told = f"{where} it gives no answer: {failure.violation.message}"
        return dataclasses.replace(failure.violation, message=told)


def agree(
    subject: Subject,
    inputs: Inputs,
    expected: Tensor,
    got: Tensor,
    wording: str,
    *,
    names: tuple[str, str] = ("the first", "the second"),
    spread: Callable[[], Tensor] | None = None,
) -> Finding:
    """Two computations of one answer agree, rows without keys included; ``names`` are theirs.

    Each may err by its bound. NaN agrees with NaN alone, an infinity with itself alone. What rows
    without keys hold is whatever the computation makes of them, a mean over keys behind a finite
    fill perhaps: where ``spread`` is given, which measures how far answers lie apart when inputs
    change by one unit, such a row may be off by that, too.
    """
    allowed, judged = allowance(subject, inputs)
    same = (expected.isnan() & got.isnan()) | (expected == got)
    agreement = compare(
        got, expected, allowed, judged=judged & ~same, wording=wording, both_answers=True
    )
    if agreement.kind == "value" and spread is not None:
        wider = torch.maximum(allowed, 2.0 * spread())
        agreement = compare(
            got, expected, wider, judged=judged & ~same, wording=wording, both_answers=True
        )
    seen = judged & (expected.double().abs() > allowed)
    violation = agreement.violation
    if violation is not None and agreement.kind == "finite":
        violation = _not_finite(violation, expected, got, wording, names)
    return Finding(binding=bool(seen.any()), margin=agreement.margin, violation=violation)


def _not_finite(
    violation: Violation, expected: Tensor, got: Tensor, wording: str, names: tuple[str, str]
) -> Violation:
    """Which of the two answers is finite, and which is not."""
    place = tuple(violation.where)
    one, other = float(expected[place]), float(got[place])
    where = ", ".join(f"{axis} {at}" for axis, at in zip(AXES[got.dim()], place, strict=True))
    message = f"{wording} at {where}: {names[0]} gives {one:.9g}, {names[1]} {other:.9g}"
    return dataclasses.replace(violation, message=message, expected=one, got=other)


def allowance(subject: Subject, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """How far two right answers may be apart, and the rows that can be compared.

    All rows but those whose numbers a right computation may fail to represent.
    """
    known, bound, judged = subject.frame(inputs)
    judged = judged.expand(bound.shape)
    if known is not None:
        judged = subject.golden(inputs).representable.expand(bound.shape)
    else:
        judged = torch.ones_like(judged)
    return 2.0 * column(bound), judged


def measured_spread(subject: Subject, inputs: Inputs, forward: Callable[..., Any]) -> Tensor:
    """How far the answers of some forward lie apart when its inputs change by one unit each."""
    candidate = subject.candidate
    function = forward if candidate.kind == "core" else (lambda _sizes, _weights: forward)
    other = Subject(dataclasses.replace(candidate, function=function), subject.dtype)
    return other.spread(inputs)
