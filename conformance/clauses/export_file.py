"""export.valid, .self-contained, .one-file, .deterministic, .names: the file that is shipped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from ..base.printable import printable
from ..base.results import Violation
from ..declare.candidate import Candidate
from ..graphs.limits import size_text
from ..graphs.process import DEFAULT, Setting
from ..graphs.reading import MASK_ROLES, Reading, Role
from ..graphs.validation import LARGEST_FILE, defects
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from ._exports import agree, answer_at, graph_of
from ._graphs import is_graph
from .registry import Finding, clause
from .subject import Subject

# What is read off the file needs no second example.
ONCE: Final = Space(values=("normal",), share=0.01)
ELSEWHERE: Final = Setting(level=DEFAULT.level, provider=DEFAULT.provider, child=1)
_SHOWN: Final = 3
# What a name may suggest for a role; one input for several says what it is as any of them.
_SAYS: Final = {
    "query": ("query",),
    "key": ("key", "context"),
    "value": ("value", "context"),
    "context": ("context", "key", "value"),
    "x": ("x", "query", "key", "value", "context"),
    "past_key": ("past",),
    "past_value": ("past",),
    "output": ("output",),
    "weights": ("weights",),
    "present_key": ("present",),
    "present_value": ("present",),
    **dict.fromkeys(MASK_ROLES, ("mask",)),
}
_APART: Final = ("query", "key", "value")


@clause(
    "export.valid",
    level="MUST",
    sentence=(
        "The file is a valid ONNX model: onnx's full checker accepts it, the declared shapes and "
        "types follow from its operators, its header names what it uses."
    ),
    source="onnx: docs/IR.md and onnx.checker with full_check; exporters wrote wrong opsets",
    space=ONCE,
    applies=(is_graph,),
    explained=False,
)
def valid(subject: Subject, _problem: Problem) -> Finding:
    """The checker, strict inference of shapes and the header, in a process of their own."""
    path = graph_of(subject.candidate).header.path
    found = _defects(path, path.stat().st_mtime_ns)
    return _finding("the file is no valid model", found)


@lru_cache(maxsize=64)
def _defects(path: Path, _written: int) -> tuple[str, ...]:
    return defects(path)


@clause(
    "export.self-contained",
    level="MUST",
    sentence=(
        "All that a graph needs lies in its own file or in files beside it that its tensors name; "
        "none of these is a link, and no other file of weights lies beside it."
    ),
    source="onnx: docs/ExternalData.md; CVE-2022-25882, CVE-2024-27318: external data elsewhere",
    space=ONCE,
    applies=(is_graph,),
    explained=False,
)
def self_contained(subject: Subject, _problem: Problem) -> Finding:
    """The files beside the graph; what is missing or elsewhere is refused when it is opened."""
    return _finding("the graph is not self-contained", graph_of(subject.candidate).header.stray)


def _has_external(candidate: Candidate) -> str:
    return "" if graph_of(candidate).header.external else "it is one file"


@clause(
    "export.one-file",
    level="SHOULD",
    sentence="A graph that fits into one file is one file.",
    source="torch.onnx.export: external_data=True is the default and puts weights beside it",
    space=ONCE,
    applies=(is_graph, _has_external),
    explained=False,
)
def one_file(subject: Subject, _problem: Problem) -> Finding:
    """Whether the weights outside would have had room inside."""
    header = graph_of(subject.candidate).header
    together = header.size + header.external_size
    if together > LARGEST_FILE:
        return Finding(binding=False)
    told = (
        f"{size_text(header.external_size)} of its weights are in {_listed(header.external)}: ship "
        "them together, or export with external_data=False"
    )
    return _finding("the graph is more than one file", (told,))


@clause(
    "export.deterministic",
    level="MUST",
    sentence=(
        "A graph answers the same every time, in another process, too; no dropout or other random "
        "operator is left in it."
    ),
    source="torch.onnx.export: training=TRAINING keeps dropout; pytorch#124464: active in eval",
    space=Space(mask="maybe", causal="maybe", extras="maybe", values=LIVELY, share=0.25),
    counterfactual="an answer of zero",
    applies=(is_graph,),
    explained=False,
)
def deterministic(subject: Subject, problem: Problem) -> Finding:
    """Twice in one process and once in another; then what the file says."""
    inputs, header = subject.inputs(problem), graph_of(subject.candidate).header
    forward = subject.forward(inputs)
    first = subject.call(forward, inputs).output
    if header.random:
        return _finding("the graph draws random numbers", (_listed(header.random),))
    again = subject.call(forward, inputs).output
    found = agree(subject, inputs, first, again, "the graph answers otherwise a second time")
    if found.violation is not None:
        return found
    other = answer_at(subject, ELSEWHERE, inputs, "in another process")
    if isinstance(other, Violation):
        return Finding(violation=other)
    return agree(subject, inputs, first, other, "the graph answers otherwise in another process")


@clause(
    "export.names",
    level="SHOULD",
    sentence="The names of a graph's inputs and outputs say their roles, and no other role.",
    source="torch.onnx.export: input_names, output_names; legacy traces say onnx::MatMul_0",
    space=ONCE,
    applies=(is_graph,),
    explained=False,
)
def names(subject: Subject, _problem: Problem) -> Finding:
    """Every name against the role that was found by behaviour or declared."""
    reading = graph_of(subject.candidate).reading
    told = [objection for role in _named(reading) if (objection := _objection(role))]
    return _finding("names do not say roles", (_listed(told),) if told else ())


def _named(reading: Reading) -> list[Role]:
    return [role for role in (*reading.inputs, *reading.outputs) if role.role in _SAYS]


def _objection(role: Role) -> str:
    """What is wrong with a name, or ""."""
    from ..graphs.roles.names import suggests  # noqa: PLC0415 (onnx: only for graphs)

    says = _SAYS[role.role]
    if any(suggests(role.name, word) for word in says):
        return ""
    spoken = role.role.replace("_", " ")
    other = next((word for word in _APART if suggests(role.name, word)), "")
    if other and role.role in _APART:
        return f"{role.name!r} is the {spoken}, not the {other}"
    return f"{role.name!r} is the {spoken if role.role not in MASK_ROLES else 'mask'}"


def _listed(told: Sequence[str]) -> str:
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return ", ".join(told[:_SHOWN]) + more


def _finding(what: str, told: Sequence[str]) -> Finding:
    """A violation that says all that was told; none when nothing was."""
    if not told:
        return Finding()
    message = printable(f"{what}: {_listed(told)}")
    return Finding(violation=Violation(kind="file", message=message))
