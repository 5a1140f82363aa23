"""export.matches-source, .optimisation-levels, .providers: one answer wherever a graph runs."""

from __future__ import annotations

from typing import Final, cast

from torch import Tensor

from ..base.results import Violation
from ..declare.candidate import Candidate
from ..graphs.lost import GraphLost, GraphRefused
from ..graphs.process import Setting
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import ANY_PATTERN, Space
from ._exports import agree, answer_at, graph_of, measured_spread, source_answer
from ._graphs import is_graph
from .registry import Finding, clause
from .subject import Subject

CPU: Final = "CPUExecutionProvider"
LOWEST: Final = Setting(level="disabled")
HIGHEST: Final = Setting(level="all")
ANYTHING: Final = Space(
    mask="maybe",
    causal="maybe",
    extras="maybe",
    patterns=(*ANY_PATTERN, "empty-rows"),
    finite_bias="maybe",
    values=LIVELY,
)


def _has_source(candidate: Candidate) -> str:
    return "" if graph_of(candidate).source is not None else "no source is named (--source)"


@clause(
    "export.matches-source",
    level="MUST",
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
    """The answer of the graph against that of the module, each with its error."""
    inputs = subject.inputs(problem)
    lacking = graph_of(subject.candidate).lacking
    if lacking:
        told = f"the source takes {', '.join(lacking)}, which the graph has no input for"
        return Finding(violation=Violation(kind="file", message=told))
    expected = source_answer(subject, inputs)
    if expected is None:  # nothing to compare with: the module itself refuses
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
    level="MUST",
    sentence="A graph answers the same at the runtime's lowest and highest optimisation level.",
    source="onnxruntime: graph optimizations preserve semantics; a level may also crash",
    space=ANYTHING,
    counterfactual="an answer of zero",
    applies=(is_graph,),
    explained=False,
)
def optimisation_levels(subject: Subject, problem: Problem) -> Finding:
    """Nothing optimised against everything; a level that gives no answer fails."""
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
    except (GraphLost, GraphRefused):  # what that means, other clauses say
        return ()
    return tuple(name for name in available if name != CPU)


def _has_providers(candidate: Candidate) -> str:
    return "" if other_providers(candidate) else "the runtime computes on the CPU only"


@clause(
    "export.providers",
    level="MUST",
    sentence="A graph answers the same on every execution provider that the runtime has.",
    source="onnxruntime: execution providers implement the same operators",
    space=ANYTHING,
    counterfactual="an answer of zero",
    applies=(is_graph, _has_providers),
    explained=False,
)
def providers(subject: Subject, problem: Problem) -> Finding:
    """The CPU against the others, one of them an example."""
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
