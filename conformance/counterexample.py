"""A failing problem as plain data: what rebuilds it, and its tensors when they are small."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .calling import CandidateFailure
from .problem import Problem
from .subject import Subject

MOST_ELEMENTS = 64


def describe(subject: Subject, problem: Problem) -> dict[str, Any]:
    """The problem and its inputs; tensors of up to 64 elements are written out."""
    inputs = subject.inputs(problem)
    tensors: dict[str, Tensor | None] = {
        "query": inputs.query,
        "key": inputs.key,
        "value": inputs.value,
        "keep": inputs.keep,
        "bias": inputs.bias,
    }
    shown = {name: _show(tensor) for name, tensor in tensors.items() if tensor is not None}
    data: dict[str, Any] = {"problem": problem.as_json(), "inputs": shown}
    if subject.candidate.golden_known and subject.candidate.kind != "positions":
        data["expected"] = _show(subject.golden(inputs).output)
    try:
        data["got"] = _show(subject.answer(inputs))
    except CandidateFailure as failure:
        data["got"] = failure.violation.message
    return data


def _show(tensor: Tensor) -> dict[str, Any]:
    shown: dict[str, Any] = {"shape": list(tensor.shape)}
    if tensor.numel() <= MOST_ELEMENTS:
        shown["values"] = tensor.tolist()
    return shown
