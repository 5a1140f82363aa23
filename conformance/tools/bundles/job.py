"""The worker's job of ``bundle``: examine a counterexample again and keep its tensors whole.

The tensors are written to a folder of the command. The known facts are written before every call of
the candidate, too: a call that kills its process leaves its arguments behind.
"""

from __future__ import annotations

import ast
import copy
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
from ...calls import torch_state
from ...calls.calling import Forward
from ...calls.devices import CPU, Arguments, moved, taken
from ...calls.differentiating import INPUT_NAMES
from ...calls.recording import RecordedBackward, RecordedCall, Recording
from ...clauses.subject import Subject
from ...oracle.comparison import MOST_ELEMENTS, compare, equal_numbers, kept_whole, table
from ...problems.inputs import Inputs
from ...problems.problem import Problem
from ...running.shrinking.counterexample import (
    describe,
    described_calls,
    described_inputs,
    described_tensor,
)
from ...running.shrinking.smallest import examine_recorded
from ...running.workers.planning import CandidatePlan
from ...running.workers.replaying import access, outcome, rebuilt, wrap_unreduced
from .arrays import Array, named_arrays, write_arrays

Data = dict[str, Any]
Watch = Callable[["DetailedRecording"], None]
# How ``adapters.construct`` begins the assumption about a class that it constructed.
_CONSTRUCTED: Final = "constructed as "


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleCall:
    """One call of a user's module: its arguments and its answer."""

    arguments: Arguments
    returned: Any = None


@dataclass
class DetailedRecording(Recording):
    """A recording that also records the calls of a user's module, and reports calls beforehand.

    ``under_way`` is the call begun last, ``module_calls`` are the calls of the user's module by
    call of the harness. ``watch`` is called before every call: the process may not survive the
    call.
    """

    watch: Watch = lambda _recording: None
    under_way: RecordedCall | None = None
    module_calls: list[list[ModuleCall]] = field(default_factory=list)

    def begin(self, made: RecordedCall) -> None:
        """Report a call that is about to be made."""
        self.under_way = made
        self.module_calls.append([])
        self.watch(self)

    def add_built(self, forward: Forward, inputs: Inputs) -> None:
        """Keep a layer's builder arguments, and record the calls of the module inside the layer."""
        recorded = any(made is forward for made, _ in self.built)
        super().add_built(forward, inputs)
        if isinstance(forward, AdaptedModule) and not recorded:
            forward.calling = _recorded(forward.calling, self)

    def with_under_way(self) -> Recording:
        """The returned calls, and the call under way."""
        calls = [*self.calls, *([self.under_way] if self.under_way is not None else [])]
        return Recording(calls=calls, built=self.built)


class _RecordedModule:
    """Records the calls of a module in its place."""

    def __init__(self, module: nn.Module, calls: list[ModuleCall]) -> None:
        vars(self).update(_module=module, _calls=calls)

    def __deepcopy__(self, memo: dict[int, Any]) -> _RecordedModule:
        return _RecordedModule(copy.deepcopy(self._module, memo), self._calls)

    def __setattr__(self, name: str, value: Any) -> None:
        """Give the module itself what a caller gives it, such as the slots of a cache."""
        setattr(self._module, name, value)

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        """Call the module, and keep its arguments and what it returns."""
        arguments = moved((positional, keywords), CPU)
        self._calls.append(ModuleCall(arguments=arguments))
        returned = self._module(*positional, **keywords)
        self._calls[-1] = ModuleCall(arguments=arguments, returned=returned)
        return returned

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _recorded(calling: Callable[..., Any], recording: DetailedRecording) -> Callable[..., Any]:
    def call(module: nn.Module, inputs: tuple[Tensor, ...], keywords: Data) -> Any:
        calls = recording.module_calls[-1] if recording.module_calls else []
        return calling(_RecordedModule(module, calls), inputs, keywords)

    return call


def under_way(subject: Subject, problem: Problem, recording: DetailedRecording) -> Data:
    """The description of a failure while a call is made that may not return."""
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
    """Add to the description of a failure the details of bundles.

    ``compared`` says that numbers were compared: then every call has a golden answer.
    """
    for number, (call, entry) in enumerate(zip(recording.calls, data["calls"], strict=False)):
        calls = recording.module_calls[number] if number < len(recording.module_calls) else []
        entry.update(
            **(_right(subject, call) if compared else {}),
            **_as_module_call(call, calls),
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


def _right(subject: Subject, call: RecordedCall) -> Data:
    candidate = subject.candidate
    if call.output is None or not candidate.golden_known or candidate.kind == "positions":
        return {}
    expected = subject.golden(call.inputs)
    comparison = compare(call.output, expected.output, expected.bound, judged=expected.judged)
    return {
        "golden": {
            "expected": table(expected.output),
            "bound": table(expected.bound.expand(expected.output.shape)),
            "judged": table(expected.judged.expand(expected.output.shape)),
        },
        "beyond": bool(comparison.kind),
    }


def _as_module_call(call: RecordedCall, calls: list[ModuleCall]) -> Data:
    """The module's call inside a call of the harness; nothing if there is not exactly one.

    ``swapped`` says that the module's tokens come before its batch.
    """
    if len(calls) != 1:
        return {}
    positional, keywords = calls[0].arguments
    values = [*positional, *keywords.values()]
    if not all(value is None or isinstance(value, (Tensor, bool, int, float)) for value in values):
        return {}
    swapped = _is_swapped(call, calls[0].returned)
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
    """Whether the answer is the returned tensor with its first axes swapped; None if neither.

    For a call without an answer it is unknown and makes no difference.
    """
    if call.output is None:
        return False
    first = returned[0] if isinstance(returned, (tuple, list)) and returned else returned
    if not isinstance(first, Tensor):
        return None
    plain = taken(first)
    plain = plain if call.inputs.batched else plain.unsqueeze(0)
    for swapped, tensor in ((False, plain), (True, plain.transpose(0, 1))):
        if tensor.shape == call.output.shape and bool(equal_numbers(tensor, call.output).all()):
            return swapped
    return None


def _gradients(call: RecordedCall, pulled: list[RecordedBackward]) -> Data:
    """The gradients that flowed back through a call, by the number of the argument."""
    passes = [backward for backward in pulled if backward.answer is call.answer]
    own_axes = call.inputs.head_layout.is_own
    if len(passes) != 1 or not own_axes or passes[0].upstream.device.type != "cpu":
        return {}
    backward = passes[0]
    names = {f"input {number}": name for number, name in enumerate(INPUT_NAMES[call.inputs.mode])}
    gradients = {
        int(leaf.removeprefix("input ")): backward.gradients[names[leaf]]
        for leaf in backward.leaves
        if leaf in names and names[leaf] in backward.gradients
    }
    return {
        "pulled": {
            "upstream": table(backward.upstream),
            "found": {str(number): table(tensor) for number, tensor in gradients.items()},
        }
    }


def _leaves(call: RecordedCall) -> list[int]:
    return [number for number, tensor in enumerate(call.arguments[0]) if tensor.requires_grad]


def construction(assumptions: tuple[str, ...]) -> Data:
    """The keyword arguments of the class's constructor, read from the candidate's assumptions."""
    for assumption in assumptions:
        if assumption.startswith(_CONSTRUCTED):
            call = ast.parse(assumption.removeprefix(_CONSTRUCTED), mode="eval").body
            if isinstance(call, ast.Call):
                return {
                    str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords
                }
    return {}


_COMPARED: Final = ("value", "finite")
UNDER_WAY: Final = "under-way.json"


def bundle_job(
    plan: CandidatePlan, argument: dict[str, Any], tell: Callable[[str, str], None]
) -> dict[str, Any]:
    """Examine a problem again and write its tensors to the folder of ``argument``.

    The rest of ``argument``, the answer and the errors raised are those of the job of ``replay``;
    in the answer's ``counterexample`` every tensor names its ``file`` and its ``array`` in the
    file.
    """
    clause, subject, problem = rebuilt(plan, argument)
    folder = Path(argument["folder"])

    def watch(recording: DetailedRecording) -> None:
        tell("calling", plan.candidate.name)  # a new time limit
        _note(folder, subject, problem, recording, access_of(plan))

    recording = DetailedRecording(watch=watch)
    with torch_state.one_thread(), torch_state.neutral(), kept_whole() as tensors:
        finding, _ = examine_recorded(clause, subject, problem, recording)
        if finding.violation is None:
            return {"outcome": "passes"}
        shown = describe(clause.id, subject, wrap_unreduced(problem, finding.violation, recording))
        compared = finding.violation.kind in _COMPARED
        add_details(shown, subject, recording, compared=compared)
        data = {**shown, "access": access_of(plan)}
        _write(folder, data, tensors)
    violation = {**vars(finding.violation), "compared": {}}
    result: dict[str, Any] = plain(
        {
            "outcome": outcome(argument, finding.violation),
            "violation": violation,
            "counterexample": data,
        }
    )
    return result


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
    """A tensor as an array; of bfloat16 and float8 the bits, as NumPy lacks these."""
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.uint16).numpy()
    if tensor.is_floating_point() and tensor.itemsize == 1:
        return tensor.contiguous().view(torch.uint8).numpy()
    return tensor.numpy()
