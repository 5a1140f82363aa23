"""The job of ``bundle`` in the worker: one counterexample asked again, every tensor kept whole.

What is written lies in a folder of the command's, file by file. Before each call of the candidate
all that is known goes there as well: a call that kills its process leaves its arguments behind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ...base.results import plain
from ...base.tables import MOST_ELEMENTS, kept_whole
from ...calls import torch_state
from ...clauses.subject import Subject
from ...problems.problem import Problem
from ...running.runner import one_thread
from ...running.workers.loaded import Plan
from ...running.workers.replaying import access, as_smallest, asked, outcome
from ...shrinking.counterexample import describe
from ...shrinking.smallest import examine_recorded
from .arrays import Array, named_arrays, write_arrays
from .details import DetailedRecording, add_details, construction, under_way

_COMPARED: Final = ("value", "finite")
UNDER_WAY: Final = "under-way.json"


def bundle_job(
    plan: Plan, argument: dict[str, Any], tell: Callable[[str, str], None]
) -> dict[str, Any]:
    """Examine a problem again and write its tensors to the folder of ``argument``.

    The rest of ``argument``, the answer and what is raised are those of the job of ``replay``; in
    the answer's ``counterexample`` tensors have the ``file`` and the ``array`` in which they are.
    """
    clause, subject, problem = asked(plan, argument)
    folder = Path(argument["folder"])

    def watch(recording: DetailedRecording) -> None:
        tell("calling", plan.candidate.name)  # a new time limit
        _note(folder, subject, problem, recording, access_of(plan))

    recording = DetailedRecording(watch=watch)
    with one_thread(), torch_state.neutral(), kept_whole() as tensors:
        finding, _ = examine_recorded(clause, subject, problem, recording)
        if finding.violation is None:
            return {"outcome": "passes"}
        shown = describe(clause.id, subject, as_smallest(problem, finding.violation, recording))
        compared = finding.violation.kind in _COMPARED
        add_details(shown, subject, recording, compared=compared)
        data = {**shown, "access": access_of(plan)}
        _write(folder, data, tensors)
    violation = {**vars(finding.violation), "compared": {}}
    found: dict[str, Any] = plain(
        {
            "outcome": outcome(argument, finding.violation),
            "violation": violation,
            "counterexample": data,
        }
    )
    return found


def access_of(plan: Plan) -> dict[str, Any]:
    """How a script calls the candidate; for a class also how it was constructed."""
    candidate = plan.candidate
    graph = candidate.graph
    files = {} if graph is None else {"external": list(graph.header.external)}
    return {
        **access(plan),
        **files,
        "construction": construction(candidate.declaration.assumptions),
    }


def _note(
    folder: Path,
    subject: Subject,
    problem: Problem,
    recording: DetailedRecording,
    access: dict[str, Any],
) -> None:
    """Write down what is about to be asked."""
    with kept_whole() as tensors:
        data = {**under_way(subject, problem, recording), "access": access}
    _write(folder, data, tensors)
    (folder / UNDER_WAY).write_text(json.dumps(plain(data)), encoding="utf-8")


def _write(folder: Path, data: dict[str, Any], tensors: list[Tensor]) -> None:
    def array_of(entry: dict[str, Any]) -> Array:
        tensor = tensors[entry["array"]]
        if tensor.numel() <= MOST_ELEMENTS:
            entry["values"] = tensor.tolist()
        entry["digest"] = hashlib.sha256(tensor.double().numpy().tobytes()).hexdigest()
        return as_array(tensor)

    write_arrays(named_arrays(data, array_of), folder)


def as_array(tensor: Tensor) -> Array:
    """A tensor as an array; NumPy has no bfloat16, so its bits are taken."""
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.uint16).numpy()
    return tensor.numpy()
