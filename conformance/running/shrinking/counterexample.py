"""A failing problem as plain data: its rebuilding facts, and the calls showing the failure."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...calls.calling import CandidateFailure, Forward, RowWithoutKeysRefused
from ...calls.devices import taken, whole_storage
from ...calls.recording import RecordedCall, Recording
from ...clauses.subject import Subject
from ...clauses.whole_models import drawn_call
from ...declare.declaration import WHOLE_MODEL
from ...oracle.comparison import MOST_ELEMENTS, compare, equal_numbers, keeping, table
from ...problems.arrangements import rows_of_queries
from ...problems.inputs import Inputs
from ...problems.materialise import PROJECTION_NAMES
from ...problems.problem import Problem
from .reduction import elements
from .smallest import Smallest

# Further calls that reveal a call's weights, as many keys at a time as a value has channels.
KEYS_A_CHANNEL: Final = 16


def attention(subject: Subject, call: RecordedCall) -> dict[str, Any]:
    """``attention`` with the tables ``expected`` and ``got``, as far as they are known.

    Both are ``[B, H, Lq, Lk]``. Empty where there is no golden answer, and for more weights than a
    report writes out. ``got`` is missing where the call returned weights itself, and where the
    candidate is a layer, whose values come out of its projections.
    """
    inputs = call.inputs
    if call.refused is not None or not subject.candidate.golden_known:
        return {}
    if subject.candidate.kind == "positions" or math.prod(inputs.score_shape) > MOST_ELEMENTS:
        return {}
    tables = {"expected": table(subject.golden(inputs).weights)}
    if call.weights is None and (own := _own(subject, inputs)) is not None:
        tables["got"] = table(own)
    return {"attention": tables}


def _own(subject: Subject, inputs: Inputs) -> Tensor | None:
    """Read off a core's weights with unit vectors as values; None where the core refuses them."""
    channels, keys = inputs.value.shape[-1], inputs.value.shape[-2]
    apart = inputs.mode == "separate" and not inputs.shared and not inputs.return_weights
    if inputs.is_layer or not apart or not channels or keys > channels * KEYS_A_CHANNEL:
        return None
    try:
        with subject.recorded(None):
            changed_inputs = (_set_unit_values(inputs, n) for n in range(0, keys, channels))
            parts = [subject.answer(changed).double() for changed in changed_inputs]
    except (CandidateFailure, RowWithoutKeysRefused):
        return None
    return torch.cat(parts, dim=-1)[..., :keys] if parts else None


def _set_unit_values(inputs: Inputs, first: int) -> Inputs:
    value = torch.zeros_like(inputs.value)
    for channel, key in enumerate(range(first, min(first + value.shape[-1], value.shape[-2]))):
        value[..., key, channel] = 1.0
    return inputs.replace(value=value, generic=False)


# Most calls shown of an example; clauses make one to four relevant calls.
MOST_CALLS: Final = 8
# Violations with wrong numbers: the attended keys may explain them.
WRONG_NUMBERS: Final = ("value", "finite")
# Largest storage written out, gaps between a tensor's elements included.
LARGEST_STORAGE: Final = 256


def describe(clause: str, subject: Subject, smallest: Smallest) -> dict[str, Any]:
    """Describe a failure for rebuilding it, with tensors of up to 64 elements.

    ``problem`` rebuilds the tensors ``inputs``. ``chosen``: sizes and options a clause chose in
    place of the problem's. For gradients, ``gradient`` names the differentiated tensor and
    ``upstream`` is the gradient of the answer. ``calls``: the clause's calls with arguments and
    answers; ``layers``: the layers built for them. ``expected``, ``got`` and ``bound`` are the
    compared tensors, ``relation`` the answers they were computed from. A call with wrong numbers
    has ``attention``: the expected and the actual weights.
    """
    problem, violation = smallest.problem, smallest.violation
    data: dict[str, Any] = {
        "clause": clause,
        "candidate": subject.candidate.name,
        "target": subject.candidate.target,
        "problem": problem.as_json(),
        "repeated": smallest.repeated,
        "inputs": _inputs(subject, problem),
        **described_calls(subject, smallest.recording),
        "expected": violation.expected,
        "got": violation.got,
        **violation.compared,
    }
    if subject.candidate.kind == WHOLE_MODEL:
        data["kind"] = WHOLE_MODEL
    elif chosen := _chosen(problem, smallest.recording, subject.candidate.kind):
        data["chosen"] = chosen
    if "gradient" in data and (upstream := _upstream(smallest.recording)) is not None:
        data["upstream"] = upstream
    for call, entry in zip(smallest.recording.calls, data["calls"], strict=False):
        if "relation" in data:
            entry.update(_right(subject, call))
        if violation.kind in WRONG_NUMBERS:
            entry.update(attention(subject, call))
        if violation.kind == "mutated":
            _mark_edited(call, entry)
    return data


# Options of a call a clause may choose itself, in problems and inputs alike.
_OPTIONS: Final = ("causal", "scale", "softcap", "window", "dropout")


def _chosen(problem: Problem, recording: Recording, kind: str) -> dict[str, Any]:
    """Return the sizes and options shared by all calls that differ from the problem's.

    Only a clause's own choice counts: several sizes of steps, and empty tensors, belong to the
    problem.
    """
    calls = [call.inputs for call in recording.calls]
    if not calls:
        return {}
    largest = max(calls, key=lambda inputs: elements(inputs.geometry, kind))
    asked: dict[str, Any] = {
        name: getattr(largest, name)
        for name in _OPTIONS
        if all(getattr(inputs, name) != getattr(problem, name) for inputs in calls)
    }
    if all((inputs.sinks is not None) != problem.sinks for inputs in calls):
        asked["sinks"] = largest.sinks is not None
    sizes = {inputs.geometry for inputs in calls}
    if len(sizes) == 1 and problem.geometry not in sizes and min(vars(largest.geometry).values()):
        asked["geometry"] = dict(vars(largest.geometry))
    return asked


def _upstream(recording: Recording) -> dict[str, Any] | None:
    """Return the upstream gradient; None without a gradient, or with different ones."""
    tables = [table(backward.upstream) for backward in recording.pulled]
    return tables[0] if tables and all(one == tables[0] for one in tables) else None


def _inputs(subject: Subject, problem: Problem) -> dict[str, Any]:
    """Describe the tensors of a problem; a model's by the names of its inputs."""
    if subject.candidate.kind != WHOLE_MODEL:
        return described_inputs(subject.inputs(problem))
    feeds = drawn_call(subject, problem).feeds
    return {name: table(torch.from_numpy(value.copy())) for name, value in feeds.items()}


def _mark_edited(call: RecordedCall, entry: dict[str, Any]) -> None:
    for name, tensor, before in zip(
        entry["arguments"], call.arguments[0], call.before[0], strict=False
    ):
        entry["arguments"][name].update(_edited(tensor, before))
    for name, before in call.before[1].items():
        if isinstance(before, Tensor):
            entry["keywords"][name].update(_edited(call.arguments[1][name], before))


def described_inputs(inputs: Inputs) -> dict[str, Any]:
    """The tensors of a problem."""
    names = ("query", "key", "value", "keep", "bias", "sinks")
    tensors = {name: getattr(inputs, name) for name in names} | inputs.learned_arguments
    shown = {name: table(tensor) for name, tensor in tensors.items() if tensor is not None}
    if inputs.weights is not None:
        shown["weights"] = _weights(inputs.weights)
    return shown


def _weights(weights: golden.ProjectionWeights) -> dict[str, Any]:
    tensors = {name: getattr(weights, name) for name in PROJECTION_NAMES}
    return {name: table(tensor) for name, tensor in tensors.items() if tensor is not None}


def described_calls(subject: Subject, recording: Recording) -> dict[str, Any]:
    """The calls in their order, and the layers that were called."""
    forwards = [forward for forward, _ in recording.built]
    names = subject.declaration.positional
    first_uses: dict[int, list[Any]] = {}
    calls = [
        _call(call, number, names, forwards, first_uses)
        for number, call in enumerate(recording.calls[: None if keeping() else MOST_CALLS])
    ]
    layers = [_layer(inputs) for _, inputs in recording.built] if calls else []
    return {"calls": calls, **({"layers": layers} if layers else {})}


def _layer(inputs: Inputs) -> dict[str, Any]:
    weights = None if inputs.weights is None else _weights(inputs.weights)
    sizes = inputs.geometry
    return {"geometry": {name: getattr(sizes, name) for name in vars(sizes)}, "weights": weights}


def _call(
    call: RecordedCall,
    number: int,
    names: tuple[str, ...],
    forwards: list[Forward],
    first_uses: dict[int, list[Any]],
) -> dict[str, Any]:
    """Describe a call; ``first_uses`` maps a tensor's id to its first call and argument."""
    arguments: dict[str, Any] = {}
    for name, tensor, before in zip(names, call.arguments[0], call.before[0], strict=False):
        arguments[name] = described_tensor(before)
        if id(tensor) in first_uses:
            arguments[name]["same_as"] = first_uses[id(tensor)]
        first_uses.setdefault(id(tensor), [number, name])
    keywords = {
        name: described_tensor(value) if isinstance(value, Tensor) else value
        for name, value in call.before[1].items()
    }
    shown: dict[str, Any] = {"arguments": arguments, "keywords": keywords}
    layer = next((n for n, forward in enumerate(forwards) if forward is call.forward), None)
    if layer is not None:
        shown["layer"] = layer
    if call.refused is not None:
        shown["refused"] = {"kind": call.refused.kind, "message": call.refused.message}
    for name, answer in (("output", call.output), ("weights", call.weights)):
        if answer is not None:
            shown[name] = table(answer)
    if call.inputs.head_layout.has_sequences:  # which places of the answers that is packed into
        shown["rows"] = table(rows_of_queries(call.inputs))
    return shown


def _edited(after: Tensor, before: Tensor) -> dict[str, Any]:
    """Return the values of a tensor changed by the call, or by a later call in its storage."""
    after = taken(after)
    same = equal_numbers(after, before)
    return {} if bool(same.all()) else {"after": table(after)}


def described_tensor(before: Tensor) -> dict[str, Any]:
    """Describe a tensor as a call received it, with its memory layout if not contiguous."""
    shown = table(before)
    # A stride along an axis of size 1 moves nothing, and yet kernels look at it.
    plain = torch.empty(before.shape, device="meta").stride()
    if before.stride() != plain or before.storage_offset():
        shown |= {"stride": list(before.stride()), "offset": before.storage_offset()}
        storage = whole_storage(before)
        if keeping():
            shown["storage"] = table(storage)
        elif storage.numel() <= LARGEST_STORAGE:
            shown["storage"] = storage.tolist()
    return shown


def _right(subject: Subject, call: RecordedCall) -> dict[str, Any]:
    """Return the golden answer if the call's output exceeds its bound, None within the bound.

    Empty without a golden answer.
    """
    if call.output is None or not subject.candidate.golden_known:
        return {}
    if subject.candidate.kind == "positions":
        return {}

    right = subject.golden(call.inputs)
    comparison = compare(call.output, right.output, right.bound, judged=right.judged)
    return {"right": table(right.output) if comparison.kind else None}
