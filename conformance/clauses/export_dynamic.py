"""export.dynamic-batch, .dynamic-length: what a file calls dynamic may have any size."""

from __future__ import annotations

import dataclasses
from typing import Final

import torch
from torch import Tensor

from ..base.geometry import LENGTHS, Geometry
from ..base.results import Violation
from ..calls.calling import CandidateFailure
from ..declare.candidate import Candidate
from ..graphs.opened import OpenedGraph
from ..graphs.reading import TENSOR_ROLES, Axis
from ..oracle.comparison import View
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space, admits_lengths, can_cross
from .export_runs import graph_of, is_graph
from .judging import same_answer
from .rearranging import one_item, unchanged
from .registry import Finding, clause, requires
from .subject import Subject

_QUERIES: Final = ("query", "x")
_SIZE_NAMES: Final = {
    "batch": "batch",
    "query_length": "number of queries",
    "key_length": "number of keys",
}


def declared_axes(graph: OpenedGraph, field: str) -> list[Axis]:
    """The sizes that the file gives to the axes of ``field`` (batch or length) in all inputs."""
    axes: list[Axis] = []
    for role in graph.reading.inputs:
        shape = graph.header.input(role.name).shape
        for place, letter in enumerate(role.axes):
            if letter in _letters(role.role, field):
                fits = shape is not None and len(shape) == len(role.axes)
                axes.append(shape[place] if shape is not None and fits else None)
    return axes


def _letters(role: str, field: str) -> str:
    """The letters of a role's axes that have a size; items and heads may be one axis."""
    if field == "batch":
        return "BF"
    if role in TENSOR_ROLES:
        return "L" if (role in _QUERIES) == (field == "query_length") else ""
    return "Q" if field == "query_length" else "K"


def is_dynamic(graph: OpenedGraph, field: str) -> bool:
    """Whether the file leaves a size open wherever it occurs."""
    axes = declared_axes(graph, field)
    return bool(axes) and not any(isinstance(axis, int) for axis in axes)


def _dynamic_batch(candidate: Candidate) -> str:
    graph = graph_of(candidate)
    axes = declared_axes(graph, "batch")
    if not axes:
        return "it takes one item without a batch axis"
    fixed = [axis for axis in axes if isinstance(axis, int)]
    return f"the file fixes the batch at {fixed[0]}" if fixed else ""


_dynamic_length = requires(
    lambda c: any(is_dynamic(graph_of(c), field) for field in LENGTHS), "the file fixes the lengths"
)


@clause(
    "export.dynamic-batch",
    sentence=(
        "A graph whose file leaves the batch open runs at every batch, and answers an item there "
        "as it answers it alone."
    ),
    source="pytorch.org/docs/onnx: tracing bakes sizes that are read as numbers",
    space=Space(values=LIVELY, preferred=(("batch", 2),)),
    counterfactual="the answer of another item",
    applies=(is_graph, _dynamic_batch),
    explained=False,
)
def dynamic_batch(subject: Subject, problem: Problem) -> Finding:
    """The shape of the answer for another batch, then one item of a batch against itself alone."""
    inputs = subject.inputs(problem)
    violation = _baked(subject, inputs, "batch")
    if violation is not None:
        return Finding(violation=violation)
    count = inputs.geometry.batch
    alone, view = one_item(subject, inputs, problem.seed % count)
    finding = same_answer(
        subject,
        inputs,
        alone,
        "an item answers differently alone and in its batch",
        view=view,
        counterfactual=lambda: view(subject.oracle.output(inputs).roll(1, dims=0)),
    )
    return finding.only_if(count > 1)


@clause(
    "export.dynamic-length",
    sentence=(
        "A graph whose file leaves the lengths of queries or keys open runs at every length of "
        "each, and the same tokens answer the same among fewer and among more of them."
    ),
    source="pytorch.org/docs/onnx: tracing bakes sizes that are read as numbers",
    space=Space(values=LIVELY, preferred=(("query_length", 2), ("key_length", 2))),
    counterfactual="one length for all",
    applies=(is_graph, _dynamic_length),
    explained=False,
)
def dynamic_length(subject: Subject, problem: Problem) -> Finding:
    """The shape of the answer, then fewer queries, and every key twice with half the weight."""
    inputs = subject.inputs(problem)
    violation = next(
        filter(None, (_baked(subject, inputs, field) for field in _lengths(subject))), None
    )
    violation = violation or _tied(subject, inputs)
    if violation is not None:
        return Finding(violation=violation)
    subject.answer(inputs)
    if _is_placed(subject):  # must run: a token's answer depends on its place
        graph = graph_of(subject.candidate)
        longer = [_longer(subject, inputs, f) for f in _lengths(subject) if is_dynamic(graph, f)]
        longer = [one for one in longer if admits_lengths(subject.candidate, one.geometry)]
        for one in longer:
            subject.answer(one)
        return Finding(binding=bool(longer))
    other, view = _other_lengths(subject, inputs)
    if other.geometry == inputs.geometry or not admits_lengths(subject.candidate, other.geometry):
        return Finding(binding=False)
    return same_answer(
        subject, inputs, other, "tokens answer differently among another number of them", view=view
    )


def _lengths(subject: Subject) -> tuple[str, ...]:
    return LENGTHS if can_cross(subject.candidate) else ("query_length",)


def _is_placed(subject: Subject) -> bool:
    """Whether a token's answer may depend on the number of tokens, for a good reason.

    Under a causal rule trailing tokens can go, if it is known how positions are counted.
    """
    declared = subject.declaration
    cut = declared.always_causal and declared.positions_known
    return declared.position is not None and not cut


def _baked(subject: Subject, inputs: Inputs, field: str) -> Violation | None:
    """The failure of a call of another size, where the graph fixes a size left open by the file."""
    baked = graph_of(subject.candidate).reading.baked
    together = LENGTHS if field in LENGTHS and not can_cross(subject.candidate) else (field,)
    if not set(together) & set(baked):
        return None
    size = getattr(inputs.geometry, field)
    prefix = f"the file leaves the {_SIZE_NAMES[field]} open, but the graph runs at {size} only"
    return _refused(subject, _longer(subject, inputs, field), f"{prefix}: with {size + 1}")


def _tied(subject: Subject, inputs: Inputs) -> Violation | None:
    """The failure of a call with one key more, where two equal lengths have different names."""
    graph = graph_of(subject.candidate)
    pins = graph.reading.pins
    tied = pins.get("key_length") == "query_length" or pins.get("query_length") == "key_length"
    if graph.reading.mode == "self" or not tied:
        return None
    queries, keys = (set(declared_axes(graph, field)) for field in LENGTHS)
    if queries & keys - {None} or not is_dynamic(graph, "key_length"):
        return None
    prefix = "the file leaves the numbers of queries and keys open apart, but they must be equal"
    return _refused(subject, _longer(subject, inputs, "key_length"), f"{prefix}: with one key more")


def _refused(subject: Subject, longer: Inputs, prefix: str) -> Violation | None:
    """The graph's failure at another size, else None."""
    try:
        subject.answer(longer)
    except CandidateFailure as failure:
        violation = failure.violation
        return dataclasses.replace(violation, message=f"{prefix} {violation.message}")
    return None


def _longer(subject: Subject, inputs: Inputs, field: str) -> Inputs:
    """Inputs with the first item, query or key repeated at the end."""
    if field == "batch":
        return inputs.map_tokens(lambda tokens: _once_more(tokens, 0))
    both = not can_cross(subject.candidate) and inputs.mode == "self"
    query = _once_more(inputs.query, -2) if field == "query_length" or both else inputs.query
    if field == "query_length" and not both:
        return inputs.with_tokens(query=query)
    return inputs.with_tokens(
        query=query, key=_once_more(inputs.key, -2), value=_once_more(inputs.value, -2)
    )


def _once_more(tokens: Tensor, axis: int) -> Tensor:
    return torch.cat([tokens, tokens.narrow(axis, 0, 1)], dim=axis)


def _other_lengths(subject: Subject, inputs: Inputs) -> tuple[Inputs, View]:
    """Inputs with fewer or more of their tokens, and the view of the remaining rows of the answer.

    Without a causal rule or positions, every key twice leaves the weighted mean unchanged; with a
    causal rule tokens are cut off at the end.
    """
    declared, sizes = subject.declaration, inputs.geometry
    if declared.always_causal:
        return _shortened(subject, inputs)
    graph = graph_of(subject.candidate)
    if not can_cross(subject.candidate):
        twice = inputs.with_tokens(**_twice(inputs))
        return twice, lambda answer: torch.cat([answer, answer], dim=-2)
    rows = _rows(graph, sizes)
    changes = {"query": inputs.query[..., :rows, :]}
    if is_dynamic(graph, "key_length"):
        changes |= {name: both for name, both in _twice(inputs).items() if name != "query"}
    return inputs.with_tokens(**changes), lambda answer: answer[..., :rows, :]


def _rows(graph: OpenedGraph, sizes: Geometry) -> int:
    """Half of the queries, all of them where the file fixes their number."""
    free = is_dynamic(graph, "query_length")
    return (sizes.query_length + 1) // 2 if free else sizes.query_length


def _twice(inputs: Inputs) -> dict[str, Tensor]:
    names = ("query", "key", "value")
    return {name: torch.cat([getattr(inputs, name)] * 2, dim=-2) for name in names}


def _shortened(subject: Subject, inputs: Inputs) -> tuple[Inputs, View]:
    """Drop the last tokens, hidden from all earlier tokens by a causal rule."""
    sizes, graph = inputs.geometry, graph_of(subject.candidate)
    crossing = can_cross(subject.candidate)
    top_left = crossing and subject.declaration.causal == "top-left"
    rows = (sizes.query_length + 1) // 2
    gone = sizes.query_length - rows
    keys = sizes.key_length if top_left else sizes.key_length - gone
    free = all(is_dynamic(graph, field) for field in LENGTHS)
    if keys < 1 or (crossing and not free):
        return inputs, unchanged
    cut = inputs.with_tokens(
        query=inputs.query[..., :rows, :],
        key=inputs.key[..., :keys, :],
        value=inputs.value[..., :keys, :],
    )
    return cut, lambda answer: answer[..., :rows, :]
