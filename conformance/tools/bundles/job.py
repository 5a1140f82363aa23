"""The job of ``bundle`` in the worker: one counterexample asked again, every tensor kept whole.

What is written lies in a folder of the command's, file by file. Before each call of the candidate
all that is known goes there as well: a call that kills its process leaves its arguments behind.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...adapters.calling import AdaptedModule
from ...base.results import plain
from ...base.tables import MOST_ELEMENTS, kept_whole, table
from ...calls import torch_state
from ...calls.calling import Forward
from ...calls.devices import CPU, Arguments, moved, taken
from ...calls.differentiating import INPUT_NAMES
from ...calls.recording import RecordedBackward, RecordedCall, Recording
from ...clauses.subject import Subject
from ...oracle.comparison import compare
from ...problems.arrangements import there
from ...problems.inputs import Inputs
from ...problems.problem import Problem
from ...running.runner import one_thread
from ...running.workers.planning import CandidatePlan
from ...running.workers.replaying import access, as_smallest, outcome, rebuilt
from ...shrinking.counterexample import (
    describe,
    described_calls,
    described_inputs,
    described_tensor,
)
from ...shrinking.smallest import examine_recorded
from .arrays import Array, named_arrays, write_arrays

Data = dict[str, Any]
Watch = Callable[["DetailedRecording"], None]
# What ``adapters.construct`` says of a class whose names told it the sizes.
_CONSTRUCTED: Final = "constructed as "


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleCall:
    """One call of a user's module: its arguments and its answer."""

    given: Arguments
    returned: Any = None


@dataclass
class DetailedRecording(Recording):
    """A recording that also hears how a user's module is called, and tells of calls beforehand.

    ``under_way`` is the call that was begun last, ``heard`` what the user's module was asked in
    each call, in their order. ``watch`` is told before each call: the process may not survive it.
    """

    watch: Watch = lambda _recording: None
    under_way: RecordedCall | None = None
    heard: list[list[ModuleCall]] = field(default_factory=list)

    def begin(self, made: RecordedCall) -> None:
        """Tell of a call that is about to be made."""
        self.under_way = made
        self.heard.append([])
        self.watch(self)

    def add_built(self, forward: Forward, inputs: Inputs) -> None:
        """Keep what a layer was built for, and listen to the module inside it."""
        recorded = any(made is forward for made, _ in self.built)
        super().add_built(forward, inputs)
        if isinstance(forward, AdaptedModule) and not recorded:
            forward.calling = _listening(forward.calling, self)

    def with_under_way(self) -> Recording:
        """The calls that came back, and the one that has not."""
        calls = [*self.calls, *([self.under_way] if self.under_way is not None else [])]
        return Recording(calls=calls, built=self.built)


class _RecordedModule:
    """Stands for a module where it is called."""

    def __init__(self, module: nn.Module, heard: list[ModuleCall]) -> None:
        self._module = module
        self._heard = heard

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        """Call the module, and keep what it was given and what came back."""
        given = moved((positional, keywords), CPU)
        self._heard.append(ModuleCall(given=given))
        returned = self._module(*positional, **keywords)
        self._heard[-1] = ModuleCall(given=given, returned=returned)
        return returned

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _listening(calling: Callable[..., Any], recording: DetailedRecording) -> Callable[..., Any]:
    def call(module: nn.Module, inputs: tuple[Tensor, ...], keywords: Data) -> Any:
        heard = recording.heard[-1] if recording.heard else []
        return calling(_RecordedModule(module, heard), inputs, keywords)

    return call


def under_way(subject: Subject, problem: Problem, recording: DetailedRecording) -> Data:
    """What is known while a call is made that may not come back."""
    return {
        "candidate": subject.candidate.name,
        "target": subject.candidate.target,
        "problem": problem.as_json(),
        "repeated": True,
        "inputs": described_inputs(subject.inputs(problem)),
        **described_calls(subject, recording.with_under_way()),
    }


def add_details(
    data: Data, subject: Subject, recording: DetailedRecording, *, compared: bool
) -> None:
    """Add to the description of a failure what only a bundle holds.

    ``compared`` says that numbers were compared: then there is a golden answer to each call.
    """
    for number, (call, entry) in enumerate(zip(recording.calls, data["calls"], strict=False)):
        heard = recording.heard[number] if number < len(recording.heard) else []
        entry.update(
            _rows(call),
            **(_right(subject, call) if compared else {}),
            **_as_heard(call, heard),
            **_gradients(call, recording.pulled),
            **({"recorded": {"leaves": _leaves(call)}} if call.inputs.grad_mode else {}),
        )
    for (forward, _), layer in zip(recording.built, data.get("layers", ()), strict=False):
        if isinstance(forward, AdaptedModule):
            layer["state"] = {
                name: table(tensor)
                for name, tensor in forward.module.state_dict().items()
                if isinstance(tensor, Tensor)
            }


def _rows(call: RecordedCall) -> Data:
    """Which rows of a packed answer belong to which sequence."""
    if not call.inputs.head_layout.has_sequences:
        return {}
    return {"rows": table(there(call.inputs, "query", call.inputs.query))}


def _right(subject: Subject, call: RecordedCall) -> Data:
    """The golden answer to a call and its bound, and whether the candidate's is beyond it."""
    candidate = subject.candidate
    if call.output is None or not candidate.golden_known or candidate.kind == "positions":
        return {}
    known = subject.golden(call.inputs)
    found = compare(call.output, known.output, known.bound, judged=known.judged)
    return {
        "golden": {
            "expected": table(known.output),
            "bound": table(known.bound.expand(known.output.shape)),
            "judged": table(known.judged.expand(known.output.shape)),
        },
        "beyond": bool(found.kind),
    }


def _as_heard(call: RecordedCall, heard: list[ModuleCall]) -> Data:
    """The one call of a user's module that a call of the harness became; nothing if it was not one.

    ``swapped`` says that the module's tokens come before its batch.
    """
    if len(heard) != 1:
        return {}
    positional, keywords = heard[0].given
    values = [*positional, *keywords.values()]
    if not all(value is None or isinstance(value, (Tensor, bool, int, float)) for value in values):
        return {}
    swapped = _is_swapped(call, heard[0].returned)
    if swapped is None:
        return {}
    return {
        "module_call": {
            "arguments": [_argument(value) for value in positional],
            "keywords": {name: _argument(value) for name, value in keywords.items()},
            "swapped": swapped,
        }
    }


def _argument(value: Any) -> Any:
    return described_tensor(value) if isinstance(value, Tensor) else value


def _is_swapped(call: RecordedCall, returned: Any) -> bool | None:
    """Whether the answer is what was returned with its first axes swapped; None if it is neither.

    Of a call without an answer nobody knows, and it makes no difference.
    """
    if call.output is None:
        return False
    first = returned[0] if isinstance(returned, (tuple, list)) and returned else returned
    if not isinstance(first, Tensor):
        return None
    plain = taken(first)
    plain = plain if call.inputs.batched else plain.unsqueeze(0)
    for swapped, seen in ((False, plain), (True, plain.transpose(0, 1))):
        if seen.shape == call.output.shape and _same(seen, call.output):
            return swapped
    return None


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _gradients(call: RecordedCall, pulled: list[RecordedBackward]) -> Data:
    """The gradients that flowed back through a call, by the names of its arguments."""
    mine = [one for one in pulled if one.answer is call.answer]
    own_axes = call.inputs.head_layout.is_own
    if len(mine) != 1 or not own_axes or mine[0].upstream.device.type != "cpu":
        return {}
    names = dict(zip(_numbered(call), INPUT_NAMES[call.inputs.mode], strict=False))
    found = {
        int(leaf.removeprefix("input ")): mine[0].gradients[names[leaf]]
        for leaf in mine[0].leaves
        if leaf in names and names[leaf] in mine[0].gradients
    }
    return {
        "pulled": {
            "upstream": table(mine[0].upstream),
            "found": {str(number): table(tensor) for number, tensor in found.items()},
        }
    }


def _leaves(call: RecordedCall) -> list[int]:
    """The numbers of the arguments that ask for gradients."""
    return [number for number, tensor in enumerate(call.arguments[0]) if tensor.requires_grad]


def _numbered(call: RecordedCall) -> tuple[str, ...]:
    return tuple(f"input {number}" for number in range(len(call.arguments[0])))


def construction(assumptions: tuple[str, ...]) -> Data:
    """The arguments with which a class was constructed once, as its assumptions say."""
    for told in assumptions:
        if told.startswith(_CONSTRUCTED):
            call = ast.parse(told.removeprefix(_CONSTRUCTED), mode="eval").body
            if isinstance(call, ast.Call):
                return {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    return {}


_COMPARED: Final = ("value", "finite")
UNDER_WAY: Final = "under-way.json"


def bundle_job(
    plan: CandidatePlan, argument: dict[str, Any], tell: Callable[[str, str], None]
) -> dict[str, Any]:
    """Examine a problem again and write its tensors to the folder of ``argument``.

    The rest of ``argument``, the answer and what is raised are those of the job of ``replay``; in
    the answer's ``counterexample`` tensors have the ``file`` and the ``array`` in which they are.
    """
    clause, subject, problem = rebuilt(plan, argument)
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


def access_of(plan: CandidatePlan) -> dict[str, Any]:
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
