"""export.inputs-matter: what a graph is given has an influence on what it answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch

from ..calling import CandidateFailure, arguments, guarded
from ..graphs.opened import OpenedGraph
from ..graphs.process import DEFAULT, Array
from ..graphs.reading import MASK_ROLES, TENSOR_ROLES, Role
from ..inputs import Inputs
from ..materialise import generator_for
from ..problem import Problem
from ..registry import Finding, clause
from ..results import Violation
from ..space import Space
from ..subject import Subject
from ._exports import graph_of
from ._graphs import is_graph

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
    feeds = _feeds(graph, inputs)
    before = _run(graph, feeds)
    generator = generator_for(problem, 14)
    asked = False
    for role, changed in _changes(graph, feeds, generator):
        asked = True
        if not _tells(graph, feeds, {role.name: changed}, before):
            return Finding(violation=_without_influence(role))
    choice = bool((allowed.sum(dim=-1) > 1).any())  # with one key queries and keys say nothing
    return Finding(binding=asked and choice)


def _feeds(graph: OpenedGraph, inputs: Inputs) -> dict[str, Array]:
    """What the graph is given for some inputs, by the names of its own."""
    forward: Any = graph.forward(DEFAULT)
    feeds: dict[str, Array] = forward.feeds(*arguments(inputs))
    return feeds


def _run(graph: OpenedGraph, feeds: dict[str, Array]) -> dict[str, Array]:
    found: dict[str, Array] = guarded(lambda: graph.process.run(feeds), (), {})
    return found


def _changes(
    graph: OpenedGraph, feeds: dict[str, Array], generator: torch.Generator
) -> Iterator[tuple[Role, Array]]:
    """Each input with another value; what the user said to be a constant, or is empty, stays."""
    for role in graph.reading.inputs:
        told = graph.told.inputs.get(role.name, {}).get("role") == "constant"
        if not told and feeds[role.name].size:
            yield role, _changed(role, feeds[role.name], generator)


def _changed(role: Role, given: Array, generator: torch.Generator) -> Array:
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
    drawn = torch.randn(given.shape, generator=generator).numpy()
    other: Array = (drawn if role.role in TENSOR_ROLES else given + drawn).astype(given.dtype)
    return other


def _tells(
    graph: OpenedGraph,
    feeds: dict[str, Array],
    changed: dict[str, Array],
    before: dict[str, Array],
) -> bool:
    """Whether some output differs, or the runtime refuses the other value."""
    try:
        after = _run(graph, {**feeds, **changed})
    except CandidateFailure as failure:
        if failure.violation.kind != "raised":
            raise
        return True
    return any(not _same(after[name], before[name]) for name in before)


def _same(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=np.issubdtype(one.dtype, np.floating))


def _without_influence(role: Role) -> Violation:
    return Violation(
        kind="value",
        message=f"changing the input {role.name!r} ({role.role}) changes no output",
        got=role.name,
    )
