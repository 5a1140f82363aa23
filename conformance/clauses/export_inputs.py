"""export.inputs-matter: what a graph is given has an influence on what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..base.results import Violation
from ..calls.calling import CandidateFailure, arguments, guarded
from ..graphs.opened import OpenedGraph
from ..graphs.process import DEFAULT, Array, Feeds
from ..graphs.reading import MASK_ROLES, TENSOR_ROLES, Role
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.space import Space
from ._exports import graph_of
from ._graphs import is_graph
from .registry import Finding, clause
from .subject import Subject

Run = Callable[[Feeds], Mapping[str, Array]]

_HIDES: Final = {"keep": False, "drop": True, "keep_int": 0, "drop_int": 1}


@clause(
    "export.inputs-matter",
    level="MUST",
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
    """Each input of the file changed alone, all others as they were."""
    inputs = subject.inputs(problem)
    allowed = inputs.allowed(subject.declaration.semantics)
    subject.answer(inputs)  # the call of a counterexample
    graph = graph_of(subject.candidate)
    feeds = feeds_of(graph, inputs)
    before = _answered(graph.process.run, feeds)
    asked = [role for role in graph.reading.inputs if _may_change(graph, role, feeds)]
    idle = [role for role in asked if not has_influence(graph.process.run, role, feeds, before)]
    if idle:
        return Finding(violation=_without_influence(idle))
    choice = bool((allowed.sum(dim=-1) > 1).any())  # with one key queries and keys say nothing
    return Finding(binding=bool(asked) and choice)


def feeds_of(graph: OpenedGraph, inputs: Inputs) -> dict[str, Array]:
    """What the graph is given for some inputs, by the names of its own."""
    forward: Any = graph.forward(DEFAULT)
    feeds: dict[str, Array] = forward.feeds(*arguments(inputs))
    return feeds


def has_influence(
    run: Run, role: Role, feeds: Feeds, before: Mapping[str, Array] | None = None
) -> bool:
    """Whether another value of one input changes an answer, or is refused.

    ``before`` is the answer as it was, where it is known. Raises CandidateFailure where there is
    none, and when the process is lost.
    """
    before = _answered(run, feeds) if before is None else before
    try:
        after = _answered(run, {**feeds, role.name: _changed(role, feeds[role.name])})
    except CandidateFailure as failure:
        if failure.violation.kind != "raised":
            raise
        return True
    return any(not _same(after[name], before[name]) for name in before)


def _answered(run: Run, feeds: Feeds) -> Mapping[str, Array]:
    found: Mapping[str, Array] = guarded(run, (feeds,), {})
    return found


def _may_change(graph: OpenedGraph, role: Role, feeds: Feeds) -> bool:
    """Not what the user said to be a constant, nor what is empty."""
    told = graph.told.inputs.get(role.name, {}).get("role") == "constant"
    return not told and bool(feeds[role.name].size)


def _changed(role: Role, given: Array) -> Array:
    """Another value that an input may have: tokens drawn anew, a mask that hides more."""
    if role.role == "lengths":
        return np.ones_like(given)
    if role.role in MASK_ROLES and role.role != "bias":
        hidden = given.copy()
        if "K" in role.axes:
            index = [slice(None)] * given.ndim
            index[role.axes.index("K")] = slice(0, 1)
            hidden[tuple(index)] = _HIDES[role.role]
        else:
            hidden[...] = _HIDES[role.role]
        return hidden
    if given.dtype == np.bool_:
        return ~given
    if np.issubdtype(given.dtype, np.integer):
        larger: Array = given + np.ones_like(given)
        return larger
    drawn: Array = np.asarray(np.random.default_rng(given.size).standard_normal(given.shape))
    other: Array = (drawn if role.role in TENSOR_ROLES else given + drawn).astype(given.dtype)
    return other


def _same(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=np.issubdtype(one.dtype, np.floating))


def _without_influence(idle: Sequence[Role]) -> Violation:
    told = " or ".join(f"{role.name!r} ({role.role})" for role in idle)
    return Violation(
        kind="value", message=f"changing the input {told} changes no output", got=idle[0].name
    )
