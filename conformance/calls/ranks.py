"""A candidate spanning ranks, called like a local one: parts go out, answers are joined."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .._golden import golden
from ..base.geometry import Geometry
from ..base.results import Violation
from ..declare.candidate import Candidate
from ..declare.ranks import Placed, Ranks, weight_place
from .calling import CandidateFailure, CandidateLost, RaisedElsewhere
from .rank_processes import RankProcesses, RankResult
from .rank_server import Reply, Request, Source


def spanning(candidate: Candidate) -> Candidate:
    """Return the candidate as called by the judge: on all its ranks, if it declares ranks."""
    ranks = candidate.declaration.ranks
    if ranks is None or isinstance(candidate.function, Spanning):
        return candidate
    return dataclasses.replace(candidate, function=Spanning(candidate, Calls(ranks)))


@dataclass(frozen=True)
class Calls:
    """Conditions of calls: the ranks, and exceptional behaviour of some.

    late: by rank the seconds to wait before each message of a call.
    absent: by rank the action in place of the call: "die" or "rest".
    """

    ranks: Ranks
    late: dict[int, float] = field(default_factory=dict)
    absent: dict[int, str] = field(default_factory=dict)


class Spanning:
    """The function of a candidate spanning ranks: a core, or the builder of a layer.

    ``results`` holds the outcome of the last request on each rank, ``replica`` the rank whose copy
    of replicated tensors counts.
    """

    def __init__(
        self, candidate: Candidate, calls: Calls, groups: dict[Any, RankProcesses] | None = None
    ) -> None:
        self.candidate = candidate
        self.calls = calls
        self._groups = {} if groups is None else groups
        self.results: list[RankResult] = []
        self.replica = 0
        # Gives the signature and the place in the source.
        self.__wrapped__ = candidate.function

    def under(self, calls: Calls) -> Spanning:
        """The same candidate, called in another way."""
        return Spanning(self.candidate, calls, self._groups)

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        """Call the core, or build the layer."""
        if self.candidate.kind == "layer":
            return _Forward(self, *positional).built()
        return _Call(self, None, positional, keywords).made(())

    @contextlib.contextmanager
    def taking(self, rank: int) -> Iterator[None]:
        """Use a rank's copies of replicated tensors meanwhile."""
        usual, self.replica = self.replica, rank
        try:
            yield
        finally:
            self.replica = usual

    @property
    def processes(self) -> RankProcesses:
        """The rank processes; the first request starts them."""
        ranks = self.calls.ranks
        key = (ranks.count, ranks.seconds)
        if key not in self._groups:
            self._groups[key] = RankProcesses(self._source, ranks.count, ranks.seconds)
        return self._groups[key]

    @property
    def _source(self) -> Source:
        candidate = self.candidate
        function = candidate.function
        home = getattr(function, "__module__", None) or type(function).__module__
        return Source(
            target=candidate.target or f"{home}:{candidate.first_name or candidate.name}",
            name=candidate.first_name or candidate.name,
            shown=candidate.name,
            device=candidate.declaration.devices[0],
        )

    def replies(self, requests: Sequence[Request], action: str = "") -> list[Reply]:
        """Return the replies of all ranks.

        Raises RaisedElsewhere if a rank raised, CandidateLost if a rank is lost.
        """
        self.results = self.processes.send(requests)
        return _answered(self.results, self.calls.ranks, action)


def _answered(every: Sequence[RankResult], ranks: Ranks, action: str) -> list[Reply]:
    replies = [each.reply for each in every if each.reply is not None]
    refused = {
        rank: each.reply.violation
        for rank, each in enumerate(every)
        if each.reply is not None and each.reply.violation is not None
    }
    dead = {rank: each for rank, each in enumerate(every) if each.lost == "died"}
    if not dead and not refused:
        if len(replies) == len(every):
            return replies
        silent = [rank for rank, each in enumerate(every) if each.lost]
        waited = f"within {ranks.seconds:g} s, and all ranks were stopped"
        words = "".join(every[rank].words for rank in silent[:1])
        msg = f"gave no answer on {_ranks(silent)} {waited}{words}"
        raise CandidateLost(msg, kind="hung")
    others = _others(every, {*dead} or {min(refused)})
    if dead:
        rank, lost = min(dead.items())
        msg = f"{lost.words} on rank {rank}{action}{others}"
        raise CandidateLost(msg)
    rank, violation = min(refused.items())
    message = f"{violation.message} on rank {rank}{action}{others}"
    raise RaisedElsewhere(dataclasses.replace(violation, message=message))


def _others(every: Sequence[RankResult], named: set[int]) -> str:
    """Describe the outcome on the ranks not yet named."""
    parts = []
    for rank, each in enumerate(every):
        if rank in named:
            continue
        if each.lost:
            parts.append(f"rank {rank} gave no answer{each.words}" if each.lost == "silent" else "")
        elif each.reply is not None and each.reply.violation is not None:
            parts.append(f"rank {rank} {each.reply.violation.message}")
        else:
            parts.append(f"rank {rank} answered")
    kept = [part for part in parts if part]
    return f" ({'; '.join(kept)})" if kept else ""


def _ranks(numbers: Sequence[int]) -> str:
    words = " and ".join(map(str, numbers))
    return f"rank {words}" if len(numbers) == 1 else f"ranks {words}"


class _Forward:
    """A layer built on every rank; built again after the ranks were lost."""

    def __init__(
        self, spanning: Spanning, geometry: Geometry, weights: golden.ProjectionWeights | None
    ) -> None:
        self._spanning, self._geometry = spanning, geometry
        every = {} if weights is None else vars(weights)
        self._weights: dict[str, Tensor] = {
            role: each for role, each in every.items() if each is not None
        }
        self._drawn = weights is not None
        self._generation = self._number = 0

    def built(self) -> Any:
        """Build the layer; if the builder returned no callable, return an object of its class."""
        described = self._build()
        return unreadable(described) if described else self

    def _build(self) -> str:
        spanning, ranks = self._spanning, self._spanning.calls.ranks
        self._number = spanning.processes.number()
        requires_grad = frozenset(
            role for role, each in self._weights.items() if each.requires_grad
        )
        requests = [
            Request(
                do="build",
                number=self._number,
                geometry=self._geometry,
                requires_grad=requires_grad,
                weights={
                    role: weight_place(role, ranks.weights).part(each.detach(), rank, ranks.count)
                    for role, each in self._weights.items()
                }
                if self._drawn
                else None,
            )
            for rank in range(ranks.count)
        ]
        replies = spanning.replies(requests)
        self._generation = spanning.processes.generation
        return next((reply.described for reply in replies if reply.described), "")

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        if self._generation != self._spanning.processes.generation:
            self._build()
        leaves = {role: each for role, each in self._weights.items() if each.requires_grad}
        call = _Call(self._spanning, self._number, positional, keywords, geometry=self._geometry)
        return call.made(tuple(leaves.items()))

    def __del__(self) -> None:
        if self._number:
            self._spanning.processes.drop(self._number)


class _Call:
    """One call on all ranks: its arguments, their placements, and its gradients."""

    def __init__(
        self,
        spanning: Spanning,
        layer: int | None,
        positional: tuple[Any, ...],
        keywords: dict[str, Any],
        *,
        geometry: Geometry | None = None,
    ) -> None:
        self._spanning, self._layer = spanning, layer
        self._ranks = spanning.calls.ranks
        self._positional, self._keywords = positional, keywords
        self._axes = "heads" if layer is None else "tokens"
        named = {f"input {place}": each for place, each in enumerate(positional)} | keywords
        self._tensors = {name: each for name, each in named.items() if isinstance(each, Tensor)}
        words = spanning.candidate.declaration.positional
        shown = {f"input {place}": word for place, word in enumerate(words)}
        self._places = {
            name: self._ranks.places(shown.get(name, name), self._axes) for name in self._tensors
        }
        # An identical tensor, placed alike, is one tensor on a rank, with one gradient.
        first: dict[tuple[int, Placed], str] = {}
        for name, each in self._tensors.items():
            first.setdefault((id(each), self._places[name]), name)
        self._leaves = tuple(first.values())
        self._output = self._ranks.places("output", self._axes)
        self._shape = self._answer_shape(geometry)
        self._number: int | None = None
        self._generation = 0
        self._weights: tuple[tuple[str, Tensor], ...] = ()
        self.returned: Any = None
        self.requires_grad = False

    def _answer_shape(self, geometry: Geometry | None) -> tuple[int, ...]:
        first = self._positional[0]
        width = self._positional[2].shape[-1] if geometry is None else geometry.output_size
        return (*first.shape[:-1], width)

    def made(self, weights: tuple[tuple[str, Tensor], ...]) -> Any:
        """Return the answer; gradients flow back to the arguments and to ``weights``."""
        self._weights = weights
        own = (self._tensors[name] for name in self._leaves)
        leaves = (*own, *(each for _, each in weights))
        if torch.is_grad_enabled() and any(each.requires_grad for each in leaves):
            self._number = self._spanning.processes.number()
            return _Recorded.apply(self, *leaves)  # type: ignore[no-untyped-call]  # torch's own
        return self.send()

    def send(self) -> Any:
        """Make the call; returns the whole answer, or an object of the returned class."""
        count = self._ranks.count
        requests = [self._request(rank) for rank in range(count)]
        replies = self._spanning.replies(requests)
        self._generation = self._spanning.processes.generation
        for rank, reply in enumerate(replies):
            for name, part in reply.written.items():
                with torch.no_grad():
                    self._places[name].put(self._tensors[name].detach(), part, rank, count)
        described = next((reply.described for reply in replies if reply.described), "")
        if described:
            return unreadable(described)
        self.requires_grad = any(reply.requires_grad for reply in replies)
        parts = [reply.returned for reply in replies if reply.returned is not None]
        self._check(parts)
        return self._joined(self._output, parts, self._shape).to(self._device)

    def _joined(self, place: Placed, parts: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """Join all ranks' parts; of replicated tensors take the chosen rank's."""
        return parts[self._spanning.replica] if place.whole else place.joined(parts, shape)

    @property
    def _device(self) -> torch.device:
        first: Tensor = self._positional[0]
        return first.device

    def _request(self, rank: int) -> Request:
        parts: dict[tuple[int, Placed], Tensor] = {}

        def part(name: str, value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            place = self._places[name]
            key = (id(value), place)
            if key not in parts:  # one tensor stays one
                parts[key] = place.part(value.detach(), rank, self._ranks.count).cpu()
            return parts[key]

        return Request(
            do=self._spanning.calls.absent.get(rank, "call"),
            positional=tuple(
                part(f"input {place}", each) for place, each in enumerate(self._positional)
            ),
            keywords={name: part(name, each) for name, each in self._keywords.items()},
            requires_grad=frozenset(
                name for name, each in self._tensors.items() if each.requires_grad
            )
            if self._number is not None
            else frozenset(),
            grad=torch.is_grad_enabled() or self._number is not None,
            number=self._number,
            layer=self._layer,
            late=self._spanning.calls.late.get(rank, 0.0),
        )

    def _check(self, parts: Sequence[Tensor]) -> None:
        """Require parts of the expected shapes and one dtype; raises CandidateFailure."""
        for rank, part in enumerate(parts):
            shape = self._output.part_shape(self._shape, rank, len(parts))
            if tuple(part.shape) != shape:
                message = (
                    f"rank {rank} of {len(parts)} returned {list(part.shape)} where its part of "
                    f"the output is {list(shape)}"
                )
                raise CandidateFailure(Violation(kind="shape", message=message))
            if part.dtype != parts[0].dtype:
                message = f"rank {rank} returned {part.dtype}, rank 0 {parts[0].dtype}"
                raise CandidateFailure(Violation(kind="dtype", message=message))

    def pull(self, upstream: Tensor) -> list[Tensor | None]:
        """Return a gradient for every tensor and weight handed over, None where none arrived."""
        if self._generation != self._spanning.processes.generation:
            msg = "lost its ranks before its gradients were asked for"
            raise CandidateLost(msg)
        count = self._ranks.count
        requests = [
            Request(
                do="pull",
                number=self._number,
                upstream=self._output.part(upstream.detach(), rank, count).cpu(),
            )
            for rank in range(count)
        ]
        replies = self._spanning.replies(requests)
        gradients = [
            self._gradient(self._places[name], name, self._tensors[name], replies)
            for name in self._leaves
        ]
        return gradients + [
            self._gradient(weight_place(role, self._ranks.weights), role, tensor, replies)
            for role, tensor in self._weights
        ]

    def _gradient(
        self, place: Placed, name: str, tensor: Tensor, replies: Sequence[Reply]
    ) -> Tensor | None:
        """Join the gradient of a tensor; ranks without a gradient contribute zeros."""
        arrived = [reply.gradients.get(name) for reply in replies]
        if all(each is None for each in arrived):
            return None
        parts = [
            torch.zeros(place.part_shape(tensor.shape, rank, len(replies)), dtype=tensor.dtype)
            if each is None
            else each
            for rank, each in enumerate(arrived)
        ]
        return self._joined(place, parts, tensor.shape).to(tensor.device)

    def __del__(self) -> None:
        if self._number is not None:
            self._spanning.processes.drop(self._number)


class _Recorded(torch.autograd.Function):
    """A call on ranks as an autograd operation of torch."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> Any:
        """Return the answer; an answer without a history is marked non-differentiable."""
        answer = call.send()
        ctx.call, ctx.count = call, len(tensors)
        ctx.set_materialize_grads(False)
        if isinstance(answer, Tensor) and not call.requires_grad:
            ctx.mark_non_differentiable(answer)
        return answer

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor | None) -> Any:
        if upstream is None:
            return (None,) * (1 + int(ctx.count))
        call: _Call = ctx.call
        needs = zip(call.pull(upstream), ctx.needs_input_grad[1:], strict=True)
        return None, *(gradient if needed else None for gradient, needed in needs)


def unreadable(described: str) -> Any:
    """Return an object whose class has the name of the class the candidate returned."""
    return type(described[:200], (), {"__module__": "builtins"})()
