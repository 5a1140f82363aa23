"""Candidates as called by the judge: their code runs in another process, gradients included."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..._golden import golden
from ...base.geometry import FIELDS, Geometry
from ...base.parameter_names import OptionParameter
from ...base.printable_text import printable
from ...base.record import Reading
from ...calls.calling import CandidateLost, RaisedElsewhere, UnreadableElsewhere
from ...declare.candidate import Candidate
from ...errors import UsageError
from ...graphs.protocol import ProtocolError
from ...targets.resolving import promising
from . import declarations
from .remote import Remote
from .wire import field, written

_MOST_PARTS: Final = 8
_LONGEST: Final = 200
_LAST_LINE: Final = 1 << 30
_ROLES: Final = tuple(entry.name for entry in dataclasses.fields(golden.ProjectionWeights))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Isolated:
    """A candidate in another process, with the facts its process found when loading.

    ``unchecked``: parameters no call gives. ``location``: file and line of the source. ``held``:
    the barriers between its process and the judge, in words.
    """

    candidate: Candidate
    unchecked: tuple[OptionParameter, ...]
    location: dict[str, Any] | None
    held: str


def isolated_candidates(remote: Remote) -> list[Isolated]:
    """The candidates of a remote target; raises UsageError with one sentence."""
    try:
        entries, tensors = remote.loaded()
        weights = iter(tensors)
        if not entries or (remote.promises is not None and len(entries) != 1):
            remote.refuse(f"a list of {len(entries)} candidates")
        return [_isolated(remote, number, entry, weights) for number, entry in enumerate(entries)]
    except ProtocolError as error:
        msg = (
            f"the target described its candidates in a way that cannot be: {printable(str(error))}"
        )
        raise UsageError(msg) from None
    except (CandidateLost, RaisedElsewhere) as lost:
        msg = f"the target {lost} when it was loaded"
        raise UsageError(msg) from None


def _isolated(remote: Remote, number: int, entry: Any, weights: Any) -> Isolated:
    if remote.promises is None:
        candidate = _declaring(remote, number, entry, weights)
    else:  # whatever its process says it declares
        decorate, _ = promising(remote.target, remote.promises)
        made = decorate(_Core(remote, number)).located(remote.target)
        candidate = dataclasses.replace(made, isolated=True)
    return Isolated(
        candidate=candidate,
        unchecked=tuple(_option(option) for option in field(entry, "unchecked", list)),
        location=_location(entry.get("location")),
        held=", ".join(remote.held),
    )


def _declaring(remote: Remote, number: int, entry: Any, weights: Any) -> Candidate:
    """Build a candidate from its process's declaration."""

    def fit(geometry: Geometry) -> Geometry:
        reply, _ = remote.request("fit", candidate=number, geometry=dataclasses.asdict(geometry))
        sizes = field(reply, "geometry", dict)
        return Geometry(**{name: field(sizes, name, int) for name in FIELDS})

    declared = declarations.read(field(entry, "declaration", dict), fit)
    roles = entry.get("fixed")
    fixed = None
    if roles is not None:
        fixed = field(entry, "fixed", list)
        held: dict[str, Any] = {role: next(weights, None) for role in fixed if role in _ROLES}
        if any(held.get(role) is None for role in "qkv"):
            msg = "weights without their matrices"
            raise ProtocolError(msg)
        fixed = golden.ProjectionWeights(**{**dict.fromkeys(_ROLES), **held})
    function = _Builder if declared.kind == "layer" else _Core
    return Candidate(
        name=printable(field(entry, "name", str)),
        declaration=declared,
        function=function(remote, number),
        target=printable(field(entry, "target", str)),
        fixed_weights=fixed,
        weights_known=field(entry, "known", bool),
        isolated=True,
        reading=_reading(entry.get("reading")),
        warnings=tuple(map(printable, declarations.texts(entry, "warnings"))),
        unjudged=printable(field(entry, "unjudged", str)),
    )


def _reading(entry: Any) -> Reading | None:
    if entry is None:
        return None
    mistakes, meant, idle = (
        tuple(printable(str(one)) for one in field(entry, name, list))
        for name in ("mistakes", "meant", "idle_masks")
    )
    unread = printable(field(entry, "unread", str))
    unnamed = field(entry, "unnamed", bool)
    return Reading(unread=unread, mistakes=mistakes, meant=meant, idle_masks=idle, unnamed=unnamed)


def _option(entry: Any) -> OptionParameter:
    return OptionParameter(
        name=printable(field(entry, "name", str)),
        option=printable(field(entry, "option", str)),
        accepted=field(entry, "accepted", bool),
    )


def _location(entry: Any) -> dict[str, Any] | None:
    if entry is None:
        return None
    file = printable(field(entry, "file", str))
    line = None if entry.get("line") is None else min(field(entry, "line", int), _LAST_LINE)
    return {"file": file, "line": line}


@dataclasses.dataclass(frozen=True, eq=False)
class _Core:
    remote: Remote
    candidate: int

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        call = _Call(self.remote, self.candidate, None, positional, keywords)
        return call.made(())


@dataclasses.dataclass(frozen=True, eq=False)
class _Builder:
    remote: Remote
    candidate: int

    def __call__(self, geometry: Geometry, weights: golden.ProjectionWeights | None) -> Any:
        return _Forward.build_layer(self, geometry, weights)


class _Forward:
    """A layer in the candidate's process; rebuilt after that process was lost."""

    def __init__(
        self, builder: _Builder, geometry: Geometry, weights: golden.ProjectionWeights | None
    ) -> None:
        self._builder, self._geometry = builder, geometry
        every = {} if weights is None else vars(weights)
        self._roles = None if weights is None else [r for r in every if every[r] is not None]
        self._weights: tuple[Tensor, ...] = tuple(
            each for each in every.values() if each is not None
        )
        self._generation = self._number = 0

    @classmethod
    def build_layer(
        cls, builder: _Builder, geometry: Geometry, weights: golden.ProjectionWeights | None
    ) -> Any:
        """Build a layer; if the builder returned no callable, return a stand-in of its class."""
        forward = cls(builder, geometry, weights)
        described = forward.build()
        return forward if described is None else stranger(described)

    def build(self) -> str | None:
        """Build the layer; returns the class name of a result that is not callable."""
        remote, self._number = self._builder.remote, self._builder.remote.number()
        reply, _ = remote.request(
            "build",
            self._weights,
            candidate=self._builder.candidate,
            number=self._number,
            geometry=dataclasses.asdict(self._geometry),
            roles=self._roles,
        )
        self._generation = remote.generation
        return None if "described" not in reply else str(reply["described"])

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        remote = self._builder.remote
        if self._generation != remote.generation:
            self.build()
        call = _Call(remote, self._builder.candidate, self._number, positional, keywords)
        return call.made(tuple(each for each in self._weights if each.requires_grad))

    def __del__(self) -> None:
        if self._number:
            self._builder.remote.drop(self._number, self._generation)


class _Call:
    """One call: its arguments, and the numbers needed to request gradients."""

    def __init__(
        self,
        remote: Remote,
        candidate: int,
        layer: int | None,
        positional: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        self._remote, self._candidate, self._layer = remote, candidate, layer
        every = [each for each in (*positional, *keywords.values()) if isinstance(each, Tensor)]
        self._tensors = tuple({id(each): each for each in every}.values())
        numbers = {id(each): number for number, each in enumerate(self._tensors)}
        self._positional = [written(each, numbers) for each in positional]
        self._keywords = {name: written(each, numbers) for name, each in keywords.items()}
        self._number: int | None = None
        self._generation = 0
        self._returned: Any = None
        self.asks: list[bool] = []

    def made(self, weights: tuple[Tensor, ...]) -> Any:
        """Return the answer; gradients flow back to the arguments and to ``weights``."""
        asking = (*self._tensors, *weights)
        if torch.is_grad_enabled() and any(each.requires_grad for each in asking):
            self._number = self._remote.number()
            answers = list(_Recorded.apply(self, *asking))  # type: ignore[no-untyped-call]  # torch's own
        else:
            answers = self.send()
        return self._whole(self._returned, answers)

    def send(self) -> list[Tensor]:
        reply, answers = self._remote.request(
            "call",
            self._tensors,
            written=True,
            candidate=self._candidate,
            layer=self._layer,
            positional=self._positional,
            keywords=self._keywords,
            keeps=self._number,
            grad=torch.is_grad_enabled() or self._number is not None,
        )
        self._generation = self._remote.generation
        self._returned, asks = reply.get("returned"), reply.get("asks")
        if not isinstance(asks, list) or len(asks) != len(answers):
            self._remote.refuse("tensors without a history")
        self.asks = [each is True for each in asks]
        return answers

    def pull(self, upstream: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        """Return a gradient for every tensor and weight handed over, None where none arrived."""
        if self._generation != self._remote.generation:
            msg = "lost its process before its gradients were asked for"
            raise CandidateLost(msg)
        used = [number for number, each in enumerate(upstream) if each is not None]
        gradients = [each.detach() for each in upstream if each is not None]
        reply, tensors = self._remote.request("pull", gradients, call=self._number, answers=used)
        places = reply.get("given")
        if not isinstance(places, list) or len(places) != len(tensors):
            self._remote.refuse("gradients of nothing")
        arrived = dict(zip(map(str, places), tensors, strict=True))
        return [arrived.get(str(number)) for number in range(len(self._tensors) + len(_ROLES))]

    def _whole(self, shown: Any, answers: list[Tensor]) -> Any:
        if shown is None:
            return None
        one = isinstance(shown, dict) and len(shown) == 1
        ((kind, value),) = shown.items() if one else [("", None)]
        if kind == "tuple" and isinstance(value, list) and len(value) <= _MOST_PARTS:
            if any(isinstance(each, dict) and "tuple" in each for each in value):
                return stranger("nested tuples")
            return tuple(self._whole(each, answers) for each in value)
        if kind == "other" and isinstance(value, str):
            return stranger(value)
        if kind == "unreadable" and isinstance(value, str):
            return UnreadableElsewhere(described=printable(value)[:_LONGEST])
        held: Any = {"answer": answers, "given": self._tensors}.get(kind, ())
        if type(value) is not int or not 0 <= value < len(held):
            self._remote.refuse("an answer of no known kind")
        return held[value]

    def __del__(self) -> None:
        if self._number is not None:
            self._remote.drop(self._number, self._generation)


class _Recorded(torch.autograd.Function):
    """A remote call as an autograd operation of torch, so that gradients work as usual."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the answer's tensors; tensors without a history are marked non-differentiable."""
        answers = call.send()
        ctx.call, ctx.count = call, len(tensors)
        ctx.set_materialize_grads(False)
        pairs = zip(answers, call.asks, strict=True)
        ctx.mark_non_differentiable(*(answer for answer, asks in pairs if not asks))
        return tuple(answers)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        gradients = ctx.call.pull(upstream)[: ctx.count]
        needs = zip(gradients, ctx.needs_input_grad[1:], strict=True)
        return None, *(gradient if needed else None for gradient, needed in needs)


def stranger(described: str) -> Any:
    """Return an object whose class has the name of the class the candidate returned."""
    return type(printable(described)[:_LONGEST], (), {"__module__": "builtins"})()
