"""Which step of an export an input loses its influence at, or a refusal gets lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...calls.calling import CandidateFailure
from ...clauses.export_inputs import feeds_of, has_influence
from ...graphs.opened import OpenedGraph
from ...problems.inputs import Inputs
from .steps import SOURCE, Outcome, Step


def without_influence(
    graph: OpenedGraph, inputs: Inputs, name: str, some: Sequence[Step]
) -> dict[str, Any] | None:
    """The first step whose answer does not depend on an input; None where all do."""
    role = next((role for role in graph.reading.inputs if role.name == name), None)
    if role is None:  # what failed was no input
        return None
    feeds = feeds_of(graph, inputs)
    reads: list[tuple[str, bool]] = []
    for step in some:
        run = getattr(step.forward, "run", None)
        if run is None:  # a declared candidate takes no feeds
            continue
        try:
            reads.append((step.name, has_influence(run, role, feeds)))
        except CandidateFailure:
            continue
    number = next((at for at, (_, read) in enumerate(reads) if not read), None)
    if number is None:
        return None
    blamed = reads[number][0]
    before = reads[number - 1][0] if number else ""
    told = f"the {before} reads the input {name!r}, the {blamed} does not"
    if not before:
        told = f"the {blamed} does not read the input {name!r}"
    if blamed == SOURCE:
        told = f"the source itself does not read {name!r}: the export is faithful"
    return {
        "step": blamed,
        "stage": "",
        "level": "",
        "text": told,
        "steps": [
            {"step": one, "departs": at == number, "text": ""} for at, (one, _) in enumerate(reads)
        ],
    }


def without_refusal(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """The first step that answers what cannot be answered; None where none does."""
    answers = [outcome.output is not None for outcome in outcomes]
    if True not in answers:
        return None
    number = answers.index(True)
    step = outcomes[number].step.name
    before = outcomes[number - 1].step.name if number else ""
    told = f"the {before} refuses this, the {step} answers it"
    if not before:
        told = f"the {step} does not refuse this"
    if step == SOURCE:
        told = "the source itself does not refuse this: the export is faithful"
    return {
        "step": step,
        "stage": "",
        "level": "",
        "text": told,
        "steps": [
            {"step": outcome.step.name, "departs": at == number, "text": outcome.text}
            for at, outcome in enumerate(outcomes)
        ],
    }
