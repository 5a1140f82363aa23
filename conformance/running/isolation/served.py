"""The candidate's process: loads a target and answers requests in sequence.

The judge trusts none of its answers: a candidate may change everything in this process.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..._golden import golden
from ...base.geometry import Geometry
from ...base.parameter_names import OptionParameter
from ...base.results import Violation
from ...calls.arrays import Stranger, builder_of_tensors, of_tensors
from ...calls.calling import (
    CandidateFailure,
    Forward,
    in_eval,
    is_tensor,
    plainly,
    raised,
    unreadable,
)
from ...calls.devices import module_in_dtype
from ...calls.differentiating import pull_back
from ...calls.weight_leaves import WeightLeaves, parameters_of
from ...declare.candidate import Candidate
from ...errors import UsageError
from ...graphs.protocol import Head
from ...identification.opening import resolve_one
from ...targets.preflight import check_layer, unchecked_options
from ...targets.resolving import promised_core
from ...targets.source_location import whereabouts
from .declarations import as_json
from .wire import Arena, can_be_sent, handed_over, read, receive, send

_LONGEST: int = 4000


@dataclasses.dataclass(kw_only=True, eq=False)
class _Layer:
    forward: Any
    candidate: Candidate
    leaves: WeightLeaves | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Taped:
    tensors: list[Tensor]
    answers: list[Tensor]
    layer: _Layer


class Served:
    """The judge's requests, each a method of the same name."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._candidates: list[Candidate] = []
        self._cores: dict[int, _Layer] = {}
        self._layers: dict[int, _Layer] = {}
        self._taped: dict[int, _Taped] = {}

    def answer(self, head: Head) -> Head:
        """The reply to a request."""
        for number in head.get("drop", ()):
            self._taped.pop(number, None)
            self._layers.pop(number, None)
        do: Callable[[Head], Head] = getattr(self, head["do"])
        try:
            return do(head)
        except UsageError as error:
            return {"refused": str(error)[:_LONGEST]}
        except CandidateFailure as failure:
            return _said(failure.violation)
        except BaseException as error:  # noqa: BLE001 (a candidate may raise anything)
            return _said(raised(error))

    def load(self, head: Head) -> Head:
        """Load a target and describe its candidates for the judge."""
        sys.path[:] = head["path"]  # in the judge's order: the same name is the same file
        promises = head["promises"]
        if promises is None:
            self._candidates = resolve_one(head["target"])
        else:
            self._candidates = [promised_core(head["target"], ast.literal_eval(promises))]
        entries: list[Head] = []
        weights: list[Tensor] = []
        for candidate in self._candidates:
            unchecked: tuple[OptionParameter, ...] = ()
            if head["preflight"]:
                forward = check_layer(candidate)
                unchecked = unchecked_options(candidate, forward, head["unchecked"])
            fixed = candidate.fixed_weights
            roles = {} if fixed is None else vars(fixed)
            held = {role: tensor for role, tensor in roles.items() if tensor is not None}
            entries.append(
                {
                    "name": candidate.name,
                    "target": candidate.target,
                    "declaration": as_json(candidate.declaration),
                    "fixed": None if fixed is None else list(held),
                    "known": candidate.weights_known,
                    "warnings": candidate.warnings,
                    "unjudged": candidate.unjudged,
                    "reading": None
                    if candidate.reading is None
                    else dataclasses.asdict(candidate.reading),
                    "location": whereabouts(candidate),
                    "unchecked": [dataclasses.asdict(option) for option in unchecked],
                }
            )
            weights.extend(held.values())
        return {"candidates": entries, "tensors": self._arena.put(weights, 0)[0]}

    def fit(self, head: Head) -> Head:
        """The nearest geometry that a candidate's own rule allows."""
        build = self._candidates[head["candidate"]].declaration.pins.build
        geometry = Geometry(**head["geometry"])
        return {"geometry": dataclasses.asdict(geometry if build is None else build(geometry))}

    def build(self, head: Head) -> Head:
        """Build a layer from weights, which are leaves where gradients are asked for."""
        candidate = self._candidates[head["candidate"]]
        tensors, _ = handed_over(self._arena, head, copied=True)
        asks = any(entry["asks"] for entry in head["tensors"])
        geometry = Geometry(**head["geometry"])
        weights = _weights(head["roles"], tensors)
        build = builder_of_tensors(candidate.function, candidate.declaration.arrays)
        with torch.set_grad_enabled(asks):
            try:
                forward = build(geometry, weights)
            except BaseException as error:
                raise CandidateFailure(raised(error)) from error
        if not callable(forward):
            return {"described": _described(forward)}
        layer = self._layers[head["number"]] = _Layer(forward=forward, candidate=candidate)
        if candidate.draws_weights:
            layer.forward = in_eval(forward)
        if asks and weights is not None:
            layer.leaves = self._leaves(layer, weights, lambda other: build(geometry, other))
        return {}

    def _leaves(
        self, layer: _Layer, weights: golden.ProjectionWeights, build: Callable[[Any], Forward]
    ) -> WeightLeaves:
        def again(other: golden.ProjectionWeights) -> Forward:
            try:
                return build(other)
            except Exception as error:
                raise CandidateFailure(raised(error)) from error

        roles = {role: each for role, each in vars(weights).items() if each is not None}
        promised = "grad_weights" in layer.candidate.declaration.features
        parameters = parameters_of(layer.forward, weights, again)
        return WeightLeaves(by_role=roles, promised=promised, parameters=parameters)

    def call(self, head: Head) -> Head:
        """Call a core or a built layer; with a number its gradients can be asked for later."""
        keeps = head["keeps"]
        tensors, write_back = handed_over(self._arena, head, copied=keeps is not None)
        positional = [read(value, tensors) for value in head["positional"]]
        keywords = {name: read(value, tensors) for name, value in head["keywords"].items()}
        layer = self._layer(head)
        forward = _prepared(layer, positional, keywords)
        with torch.set_grad_enabled(head["grad"]):
            returned = forward(*positional, **keywords)
        write_back()
        answers: list[Tensor] = []
        shape = _shown(returned, answers, () if keeps is not None else tensors)
        if keeps is not None:
            self._taped[keeps] = _Taped(tensors=tensors, answers=answers, layer=layer)
        described, _ = self._arena.put(answers, head["end"])
        asks = [answer.requires_grad for answer in answers]
        return {"returned": shape, "tensors": described, "asks": asks}

    def _layer(self, head: Head) -> _Layer:
        if head["layer"] is not None:
            return self._layers[head["layer"]]
        candidate = self._candidates[head["candidate"]]
        made = _Layer(forward=candidate.function, candidate=candidate)
        return self._cores.setdefault(head["candidate"], made)

    def pull(self, head: Head) -> Head:
        """The gradients of a call's tensors, then of its layer's weights by role."""
        taped = self._taped[head["call"]]
        upstream, _ = handed_over(self._arena, head, copied=True)
        leaves = taped.layer.leaves
        of_weights = () if leaves is None else leaves.tensors
        asking = [tensor for tensor in taped.tensors if tensor.requires_grad]
        forward = taped.layer.forward
        own = list(forward.parameters()) if isinstance(forward, nn.Module) else []
        before = [(each, each.grad) for each in own]
        for each in (*asking, *of_weights, *own):
            each.grad = None
        pairs = zip(head["answers"], upstream, strict=True)
        used = [(taped.answers[number], gradient.detach()) for number, gradient in pairs]
        answers, incoming = zip(*used, strict=True)
        pull_back(answers, incoming, again=True)
        gradients = [each.grad for each in taped.tensors]
        if leaves is not None:
            by_role = leaves.gather(tuple(each.grad for each in of_weights))
            gradients += [by_role.get(role) for role in leaves.by_role]
        for each in (*asking, *of_weights):
            each.grad = None
        for each, gradient in before:
            each.grad = gradient
        arrived = [number for number, each in enumerate(gradients) if each is not None]
        dense = [each for each in gradients if each is not None]
        return {"given": arrived, "tensors": self._arena.put(dense, head["end"])[0]}


def _weights(roles: list[str] | None, tensors: list[Tensor]) -> golden.ProjectionWeights | None:
    if roles is None:
        return None
    every = dict.fromkeys(field.name for field in dataclasses.fields(golden.ProjectionWeights))
    return golden.ProjectionWeights(**{**every, **dict(zip(roles, tensors, strict=True))})  # type: ignore[arg-type]  # matrices are among the roles


def _prepared(layer: _Layer, positional: list[Any], keywords: dict[str, Any]) -> Forward:
    """Return the callable: a user's module in eval mode and in the dtype of the tokens."""
    candidate, own = layer.candidate, layer.forward
    if candidate.kind == "layer" and candidate.draws_weights:
        return own  # type: ignore[no-any-return]  # it could be called
    if isinstance(own, nn.Module):
        rounds = candidate.kind == "layer" and candidate.weights_known

        def answers(module: nn.Module) -> bool:
            copies = [each.detach().clone() if is_tensor(each) else each for each in positional]
            try:
                with torch.no_grad():
                    in_eval(module)(*copies, **keywords)
            except Exception:  # noqa: BLE001 (the module is tried in another dtype)
                return False
            return True

        own = in_eval(module_in_dtype(own, positional[0].dtype, answers, rounds=rounds))
    return of_tensors(own, candidate.declaration.arrays if candidate.kind != "layer" else "torch")


def _shown(value: Any, answers: list[Tensor], given: Any) -> Any:
    """Describe a returned value as JSON; new tensors are appended to ``answers``."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return {"tuple": [_shown(each, answers, given) for each in value[:8]]}
    if not is_tensor(value):
        return {"other": _described(value)}
    why, held = unreadable(value, "cpu"), plainly(value)
    if not why and held is not None and not can_be_sent(held):
        why = f"a tensor of {held.dtype}, not of a floating-point dtype"
    if why or held is None:
        return {"unreadable": why}
    for number, each in enumerate(given):
        same = held.data_ptr() == each.data_ptr() and held.stride() == each.stride()
        if same and held.shape == each.shape and held.dtype == each.dtype:
            return {"given": number}
    answers.append(held)
    return {"answer": len(answers) - 1}


def _described(value: Any) -> str:
    kind = type(value.value) if isinstance(value, Stranger) else type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"[:200]


def _said(violation: Violation) -> Head:
    return {
        "raised": violation.message[:_LONGEST],
        "got": str(violation.got)[:200],
        "traceback": violation.traceback[:_LONGEST],
    }


def serve(end: socket.socket, arena: Arena, *, before_each: Callable[[], None]) -> None:
    """Answer requests until the judge goes away."""
    served, own = Served(arena), os.getpid()
    while True:
        head = receive(end)
        before_each()
        reply = served.answer(head)
        if os.getpid() != own:
            os._exit(1)  # a copy that the candidate has forked and let return
        send(end, {**reply, "of": head["of"]})
