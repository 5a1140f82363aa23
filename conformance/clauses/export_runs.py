"""export.matches-source, .optimisation-levels, .providers: one answer wherever a graph runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, cast

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
from ..graphs.protocol import GraphLost, GraphRefused
from ..oracle.comparison import AXES, compare
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import ANY_PATTERN, EVERY_OPTION
from .judging import column
from .registry import Finding, clause, requires, violated
from .subject import Subject

is_graph = requires(lambda c: c.graph is not None, "it is no ONNX graph")


def graph_of(candidate: Candidate) -> OpenedGraph:
    """The graph behind a candidate; LookupError without a graph."""
    if candidate.graph is None:
        msg = f"{candidate.name} is no ONNX graph"
        raise LookupError(msg)
    return candidate.graph


def source_answer(subject: Subject, inputs: Inputs) -> Tensor | None:
    """The answer of the module behind the exported graph; None where the module refuses."""
    source = graph_of(subject.candidate).source
    if source is None:
        return None
    try:
        return read_answer(guarded(source, *arguments(inputs)), inputs).output
    except CandidateFailure:
        return None


def answer_at(subject: Subject, setting: Setting, inputs: Inputs, where: str) -> Tensor | Violation:
    """The graph's answer under a setting of the runtime, or the violation of a failed call.

    Raises RowWithoutKeysRefused, as every call does.
    """
    forward = graph_of(subject.candidate).forward(setting)
    try:
        return subject.call(forward, inputs).output
    except RowWithoutKeysRefused:
        raise
    except CandidateFailure as failure:
        message = f"{where} it gives no answer: {failure.violation.message}"
        return dataclasses.replace(failure.violation, message=message)


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
    """Compare two computations of one answer, called by ``names``, also in rows without keys.

    Each may err by its bound. NaN agrees with NaN alone, an infinity with itself alone. Rows
    without keys may hold anything that the graph computes, perhaps a mean over keys with a finite
    fill: ``spread`` measures how far answers lie apart when inputs change by one unit in the last
    place, and widens the bound if given.
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
    nonzero = judged & (expected.double().abs() > allowed)
    violation = agreement.violation
    if violation is not None and agreement.kind == "finite":
        violation = _not_finite(violation, expected, got, wording, names)
    return Finding(binding=bool(nonzero.any()), margin=agreement.margin, violation=violation)


def _not_finite(
    violation: Violation, expected: Tensor, got: Tensor, wording: str, names: tuple[str, str]
) -> Violation:
    """Add both numbers to the message where only one of two answers is finite."""
    place = tuple(violation.where)
    first, second = float(expected[place]), float(got[place])
    where = ", ".join(f"{axis} {index}" for axis, index in zip(AXES[got.dim()], place, strict=True))
    message = f"{wording} at {where}: {names[0]} gives {first:.9g}, {names[1]} {second:.9g}"
    return dataclasses.replace(violation, message=message, expected=first, got=second)


def allowance(subject: Subject, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """How far two right answers may be apart, and the rows that can be compared.

    The rows whose numbers every right computation can represent.
    """
    golden_output, bound, judged = subject.frame(inputs)
    judged = judged.expand(bound.shape)
    if golden_output is not None:
        judged = subject.golden(inputs).representable.expand(bound.shape)
    else:
        judged = torch.ones_like(judged)
    return 2.0 * column(bound), judged


def measured_spread(subject: Subject, inputs: Inputs, forward: Callable[..., Any]) -> Tensor:
    """The spread of a forward's answers when its inputs change by one unit each."""
    candidate = subject.candidate
    function = forward if candidate.kind == "core" else (lambda _sizes, _weights: forward)
    other = Subject(dataclasses.replace(candidate, function=function), subject.dtype)
    return other.spread(inputs)


CPU: Final = "CPUExecutionProvider"
LOWEST: Final = Setting(level="disabled")
HIGHEST: Final = Setting(level="all")
ANYTHING: Final = EVERY_OPTION.replace(patterns=(*ANY_PATTERN, "empty-rows"), values=LIVELY)


_has_source = requires(lambda c: graph_of(c).source is not None, "no source is named (--source)")


@clause(
    "export.matches-source",
    sentence=(
        "A graph answers as the module it was exported from, in rows without keys, too: what is "
        "NaN or zero there is so here."
    ),
    source="pytorch#187801, pytorch.org/docs/onnx: verify=True lets NaN pass and only warns",
    space=ANYTHING,
    counterfactual="an answer of zero",
    applies=(is_graph, _has_source),
    explained=False,
)
def matches_source(subject: Subject, problem: Problem) -> Finding:
    """The answer of the graph against that of the module, each with its own error."""
    inputs = subject.inputs(problem)
    lacking = graph_of(subject.candidate).lacking
    if lacking:
        message = f"the source takes {', '.join(lacking)}, which the graph has no input for"
        return violated("file", message)
    expected = source_answer(subject, inputs)
    if expected is None:  # the module itself refuses the call
        return Finding(binding=False)
    got = subject.answer(inputs)
    source = graph_of(subject.candidate).source
    return agree(
        subject,
        inputs,
        expected,
        got,
        "the graph answers otherwise than its source",
        names=("the source", "the graph"),
        spread=None if source is None else lambda: measured_spread(subject, inputs, source),
    )


@clause(
    "export.optimisation-levels",
    sentence="A graph answers the same at the runtime's lowest and highest optimisation level.",
    source="onnxruntime: graph optimizations preserve semantics; a level may also crash",
    space=ANYTHING,
    counterfactual="an answer of zero",
    applies=(is_graph,),
    explained=False,
)
def optimisation_levels(subject: Subject, problem: Problem) -> Finding:
    """No optimisation against all optimisations; a level without an answer fails."""
    return _two_settings(
        subject,
        problem,
        (LOWEST, "with optimisation disabled"),
        (HIGHEST, "with every optimisation"),
        "optimisation changes the answer",
    )


def other_providers(candidate: Candidate) -> tuple[str, ...]:
    """The execution providers of the runtime besides the CPU's."""
    try:
        available = graph_of(candidate).process.providers()
    except (GraphLost, GraphRefused):  # other clauses report that
        return ()
    return tuple(name for name in available if name != CPU)


_has_providers = requires(other_providers, "the runtime computes on the CPU only")


@clause(
    "export.providers",
    sentence="A graph answers the same on every execution provider that the runtime has.",
    source="onnxruntime: execution providers implement the same operators",
    space=ANYTHING,
    counterfactual="an answer of zero",
    applies=(is_graph, _has_providers),
    explained=False,
)
def providers(subject: Subject, problem: Problem) -> Finding:
    """The CPU against another execution provider, a different provider for each example."""
    others = other_providers(subject.candidate)
    name = others[problem.seed % len(others)]
    return _two_settings(
        subject,
        problem,
        (Setting(), "on the CPU"),
        (Setting(provider=name), f"on the {name}"),
        f"the {name} answers otherwise than the CPU",
    )


def _two_settings(
    subject: Subject,
    problem: Problem,
    first: tuple[Setting, str],
    second: tuple[Setting, str],
    wording: str,
) -> Finding:
    inputs = subject.inputs(problem)
    expected, got = (
        answer_at(subject, setting, inputs, where) for setting, where in (first, second)
    )
    for answer in (expected, got):
        if isinstance(answer, Violation):
            return Finding(violation=answer)
    forward = graph_of(subject.candidate).forward(first[0])
    return agree(
        subject,
        inputs,
        cast("Tensor", expected),
        cast("Tensor", got),
        wording,
        names=(f"the graph {first[1]}", f"the graph {second[1]}"),
        spread=lambda: measured_spread(subject, inputs, forward),
    )
