"""export.valid, .self-contained, .one-file, .deterministic, .names, .inputs-matter: the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..base.printable_text import few, printable, size_text
from ..base.results import Violation
from ..calls.calling import CandidateFailure, arguments, guarded
from ..graphs.opened import OpenedGraph
from ..graphs.process import DEFAULT, Array, Feeds, Setting
from ..graphs.reading import MASK_ROLES, TENSOR_ROLES, GraphReading, Role
from ..graphs.validation import LARGEST_FILE, defects
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from .export_runs import agree, answer_at, graph_of, is_graph
from .registry import Finding, clause, requires, violated
from .subject import Subject

# What is read off the file needs no second example.
ONCE: Final = Space(values=("normal",), share=0.01)
ELSEWHERE: Final = Setting(level=DEFAULT.level, provider=DEFAULT.provider, child=1)
# The words that a name may suggest for a role; an input in several roles may be named by any.
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
_TOKEN_INPUTS: Final = ("query", "key", "value")


@clause(
    "export.valid",
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
    messages = _defects(path, path.stat().st_mtime_ns)
    return _finding("the file is no valid model", messages)


@lru_cache(maxsize=64)
def _defects(path: Path, _written: int) -> tuple[str, ...]:
    return defects(path)


@clause(
    "export.self-contained",
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
    """The files beside the graph; a missing or misplaced file is refused on opening the graph."""
    return _finding("the graph is not self-contained", graph_of(subject.candidate).header.stray)


_has_external = requires(lambda c: graph_of(c).header.external, "it is one file")


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
    """Whether the external weights would fit into the file."""
    header = graph_of(subject.candidate).header
    together = header.size + header.external_size
    if together > LARGEST_FILE:
        return Finding(binding=False)
    objection = (
        f"{size_text(header.external_size)} of its weights are in {few(header.external)}: ship "
        "them together, or export with external_data=False"
    )
    return _finding("the graph is more than one file", (objection,))


@clause(
    "export.deterministic",
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
    """Two runs in one process and one in another; a graph that draws random numbers fails."""
    inputs, header = subject.inputs(problem), graph_of(subject.candidate).header
    forward = subject.forward(inputs)
    first = subject.call(forward, inputs).output
    if header.random:
        return _finding("the graph draws random numbers", (few(header.random),))
    again = subject.call(forward, inputs).output
    finding = agree(subject, inputs, first, again, "the graph answers otherwise a second time")
    if finding.violation is not None:
        return finding
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
    """Compare every tensor name with the role found by behaviour or declared."""
    reading = graph_of(subject.candidate).reading
    objections = [objection for role in _named(reading) if (objection := _objection(role))]
    return _finding("names do not say roles", (few(objections),) if objections else ())


def _named(reading: GraphReading) -> list[Role]:
    return [role for role in (*reading.inputs, *reading.outputs) if role.role in _SAYS]


def _objection(role: Role) -> str:
    """What is wrong with a name, or ""."""
    from ..graphs.reading import suggests, suggests_keep  # noqa: PLC0415 (onnx: only for graphs)

    says = _SAYS[role.role]
    if role.role in ("drop", "drop_int") and suggests_keep(role.name):
        return f"{role.name!r} marks keys to leave out, where its name promises those to attend"
    if any(suggests(role.name, word) for word in says):
        return ""
    words = role.role.replace("_", " ")
    other = next((word for word in _TOKEN_INPUTS if suggests(role.name, word)), "")
    if other and role.role in _TOKEN_INPUTS:
        return f"{role.name!r} is the {words}, not the {other}"
    return f"{role.name!r} is the {words if role.role not in MASK_ROLES else 'mask'}"


def _finding(what: str, details: Sequence[str]) -> Finding:
    if not details:
        return Finding()
    message = printable(f"{what}: {few(details)}")
    return violated("file", message)


Run = Callable[[Feeds], Mapping[str, Array]]

_HIDES: Final = {"keep": False, "drop": True, "keep_int": 0, "drop_int": 1}


@clause(
    "export.inputs-matter",
    sentence="Every input of a graph has an influence: changing it changes some output.",
    source="pytorch.org/docs/onnx: tracing bakes what it takes for a constant; fusions drop masks",
    space=Space(
        values=("normal",),
        least=(("key_length", 2),),
        preferred=(("query_length", 2), ("key_length", 3)),
        share=0.25,
    ),
    counterfactual="an input that is not read",
    applies=(is_graph,),
    explained=False,
)
def inputs_matter(subject: Subject, problem: Problem) -> Finding:
    """Each input of the file changed alone."""
    inputs = subject.inputs(problem)
    allowed = inputs.allowed(subject.declaration.semantics)
    subject.answer(inputs)  # recorded for a counterexample
    graph = graph_of(subject.candidate)
    feeds = feeds_of(graph, inputs)
    before = _outputs(graph.process.run, feeds)
    roles = [role for role in graph.reading.inputs if _may_change(graph, role, feeds)]
    idle = [role for role in roles if not has_influence(graph.process.run, role, feeds, before)]
    if idle:
        return Finding(violation=_without_influence(idle))
    # With one key, queries and keys have no influence.
    choice = bool((allowed.sum(dim=-1) > 1).any())
    return Finding(binding=bool(roles) and choice)


def feeds_of(graph: OpenedGraph, inputs: Inputs) -> dict[str, Array]:
    """The arrays for the graph's inputs, by the graph's own names."""
    forward: Any = graph.forward(DEFAULT)
    feeds: dict[str, Array] = forward.feeds(*arguments(inputs))
    return feeds


def has_influence(
    run: Run, role: Role, feeds: Feeds, before: Mapping[str, Array] | None = None
) -> bool:
    """Whether another value of one input changes an answer or is refused.

    ``before`` is the unchanged answer, where known. Raises CandidateFailure where the graph gives
    no answer to the unchanged feeds, and when the process is lost.
    """
    before = _outputs(run, feeds) if before is None else before
    try:
        after = _outputs(run, {**feeds, role.name: _changed(role, feeds[role.name])})
    except CandidateFailure as failure:
        if failure.violation.kind != "raised":
            raise
        return True
    return any(not _same(after[name], before[name]) for name in before)


def _outputs(run: Run, feeds: Feeds) -> Mapping[str, Array]:
    outputs: Mapping[str, Array] = guarded(run, (feeds,), {})
    return outputs


def _may_change(graph: OpenedGraph, role: Role, feeds: Feeds) -> bool:
    """Whether an input is neither empty nor declared to be a constant."""
    is_constant = graph.declaration.inputs.get(role.name, {}).get("role") == "constant"
    return not is_constant and bool(feeds[role.name].size)


def _changed(role: Role, value: Array) -> Array:
    """Another value that an input may have: newly drawn tokens, a mask that hides more."""
    if role.role == "lengths":
        return np.ones_like(value)
    if role.role in MASK_ROLES and role.role != "bias":
        hidden = value.copy()
        if "K" in role.axes:
            index = [slice(None)] * value.ndim
            index[role.axes.index("K")] = slice(0, 1)
            hidden[tuple(index)] = _HIDES[role.role]
        else:
            hidden[...] = _HIDES[role.role]
        return hidden
    if value.dtype == np.bool_:
        return ~value
    if np.issubdtype(value.dtype, np.integer):
        larger: Array = value + np.ones_like(value)
        return larger
    drawn: Array = np.asarray(np.random.default_rng(value.size).standard_normal(value.shape))
    anew = (*TENSOR_ROLES, "sinks")
    other: Array = (drawn if role.role in anew else value + drawn).astype(value.dtype)
    return other


def _same(first: Array, second: Array) -> bool:
    return np.array_equal(first, second, equal_nan=np.issubdtype(first.dtype, np.floating))


def _without_influence(idle: Sequence[Role]) -> Violation:
    listed = " or ".join(f"{role.name!r} ({role.role})" for role in idle)
    return Violation(
        kind="value", message=f"changing the input {listed} changes no output", got=idle[0].name
    )
