"""What runs on each rank: it joins the process group, and answers the judge's requests.

torch's launcher has set ``RANK``, ``WORLD_SIZE`` and the others, as in a user's own run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .._golden import golden
from ..base.geometry import Geometry
from ..base.results import Violation
from ..declare.candidate import Candidate
from ..errors import UsageError
from ..targets.resolving import resolve_one
from .calling import in_eval, is_tensor, raised
from .devices import bits_of

_ROLES: Final = tuple(entry.name for entry in dataclasses.fields(golden.ProjectionWeights))
# What the functions of torch.distributed call. Functional collectives, and so DTensor, go another
# way: theirs are not delayed.
_MESSAGES: Final = tuple(
    name
    for name in (
        *("allgather", "_allgather_base", "allreduce", "alltoall", "alltoall_base", "broadcast"),
        *("gather", "recv", "reduce", "reduce_scatter", "_reduce_scatter_base", "scatter", "send"),
    )
    if name in vars(dist.ProcessGroup)
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a rank loads: a target, and which of its candidates by the name that it has there.

    ``shown`` is its name in the report; ``device`` is what it uses.
    """

    target: str
    name: str
    shown: str
    device: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """The process group that the ranks are to join: the file where they meet, and its limits.

    They may be ``starting`` for so long; later a collective takes ``seconds`` at most.
    """

    store: str
    count: int
    seconds: float
    starting: float


@dataclass(kw_only=True)
class Request:
    """One request of the judge to one rank; tensors are this rank's parts.

    do
        ``call``, ``build``, ``pull``, ``join``, ``die``, or ``rest``, which is not answered.
    positional, keywords, requires_grad
        The arguments of a call, and whether each tensor among them requires a gradient.
    number
        Under which a call or a layer is kept (None: not at all); for ``pull`` the call's.
    layer
        The number of the layer that is called; None for a core.
    late
        Seconds that the rank waits before each message of a call.
    drop
        Numbers of calls and layers that are not needed any more.
    """

    do: str
    positional: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    requires_grad: frozenset[str] = frozenset()
    grad: bool = False
    number: int | None = None
    layer: int | None = None
    geometry: Geometry | None = None
    weights: dict[str, Tensor] | None = None
    upstream: Tensor | None = None
    late: float = 0.0
    group: Group | None = None
    rank: int = 0
    drop: tuple[int, ...] = ()


@dataclass(kw_only=True)
class Reply:
    """The reply of a rank to a request.

    ``returned`` is a tensor, or None where the class of something else is ``described``.
    ``written`` holds the arguments that the call wrote into, ``gradients`` those of arguments and
    weights that one arrived at. So many messages were ``delayed``.
    """

    returned: Tensor | None = None
    described: str = ""
    requires_grad: bool = False
    delayed: int = 0
    written: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    violation: Violation | None = None


@dataclass(kw_only=True, eq=False)
class _Taped:
    """A call whose gradients may be asked for: its leaves by name, and its answer."""

    leaves: dict[str, Tensor]
    answer: Any


@dataclass(kw_only=True, eq=False)
class _Layer:
    forward: Any
    leaves: dict[str, Tensor]


class _Rank:
    """The requests that the judge may send, each a method of the name."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._candidate: Candidate | None = None
        self._taped: dict[int, _Taped] = {}
        self._layers: dict[int, _Layer] = {}

    def answer(self, request: Request) -> Reply:
        """The reply to a request; what the candidate raises is part of it."""
        for number in request.drop:
            self._taped.pop(number, None)
            self._layers.pop(number, None)
        do: Callable[[Request], Reply] = getattr(self, request.do)
        try:
            return do(request)
        except BaseException as error:  # noqa: BLE001 (a candidate may raise anything)
            return Reply(violation=raised(error))

    def join(self, request: Request) -> Reply:
        """Join the process group as one of its ranks, and load the candidate."""
        if request.group is None:
            msg = "a group is missing in the request"
            raise LookupError(msg)
        count, rank = request.group.count, request.rank
        # The limit of a group holds from its making on, so that all are there before it is made.
        store = dist.FileStore(request.group.store, count)  # type: ignore[attr-defined]  # it is public
        store.set(f"rank {rank}", "is here")
        every = [f"rank {number}" for number in range(count)]
        store.wait(every, timedelta(seconds=request.group.starting))
        on_gpu = self._source.device.startswith("cuda")
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu and dist.is_nccl_available() else "gloo",
            store=store,
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=request.group.seconds),
        )
        self._candidate = self._loaded()
        return Reply()

    def _loaded(self) -> Candidate:
        source = self._source
        every = resolve_one(source.target)
        named = every if len(every) == 1 else [each for each in every if each.name == source.name]
        if len(named) != 1:
            several = f"{len(named)} candidates" if named else "no candidate"
            msg = (
                f"{source.target} has {several} of the name {source.name} when a rank loads it: "
                "give each a name of its own"
            )
            raise UsageError(msg)
        return named[0]

    def build(self, request: Request) -> Reply:
        """Build a layer from this rank's weights, leaves where gradients are asked for."""
        weights = None
        leaves: dict[str, Tensor] = {}
        if request.weights is not None:
            leaves = {
                role: self._here(part).requires_grad_(role in request.requires_grad)
                for role, part in request.weights.items()
            }
            weights = golden.ProjectionWeights(**(dict.fromkeys(_ROLES) | leaves))  # type: ignore[arg-type]  # matrices are among the roles
        with torch.set_grad_enabled(bool(request.requires_grad)):
            forward = self._function(request.geometry, weights)
        if not callable(forward) or request.number is None:
            return Reply(described=_class_of(forward))
        self._layers[request.number] = _Layer(forward=in_eval(forward), leaves=leaves)
        return Reply()

    def call(self, request: Request) -> Reply:
        """Call the core, or a layer that was built."""
        arguments: dict[str, Any] = {
            **{f"input {place}": value for place, value in enumerate(request.positional)},
            **request.keywords,
        }
        moved: dict[int, Tensor] = {}
        for name, value in arguments.items():
            if is_tensor(value):  # what is one tensor for the judge is one tensor here
                fresh = moved.setdefault(id(value), self._here(value))
                arguments[name] = fresh.requires_grad_(
                    fresh.requires_grad or name in request.requires_grad
                )
        tensors = {name: value for name, value in arguments.items() if is_tensor(value)}
        before = {name: value.detach().clone() for name, value in tensors.items()}
        count = len(request.positional)
        values = list(arguments.values())
        layer = None if request.layer is None else self._layers[request.layer]
        forward = self._function if layer is None else layer.forward
        with _late(request.late) as delayed, torch.set_grad_enabled(request.grad):
            returned = forward(*values[:count], **dict(list(arguments.items())[count:]))
        written = {
            name: value.detach().cpu()
            for name, value in tensors.items()
            if not torch.equal(bits_of(value), bits_of(before[name]))
        }
        if not is_tensor(returned):
            described = _class_of(returned)
            return Reply(described=described, written=written, delayed=len(delayed))
        if request.number is not None:
            leaves = {
                name: value for name, value in tensors.items() if name in request.requires_grad
            }
            leaves |= {} if layer is None else layer.leaves
            self._taped[request.number] = _Taped(leaves=leaves, answer=returned)
        own = returned.detach().cpu().clone()
        return Reply(
            returned=own,
            requires_grad=returned.requires_grad,
            written=written,
            delayed=len(delayed),
        )

    def pull(self, request: Request) -> Reply:
        """The gradients that arrive at the arguments and weights of a call that was kept."""
        if request.number is None or request.upstream is None:
            msg = "a call and the gradient of its answer are missing in the request"
            raise LookupError(msg)
        taped = self._taped[request.number]
        for leaf in taped.leaves.values():
            leaf.grad = None
        if taped.answer.requires_grad:
            upstream = request.upstream.to(taped.answer.device)
            torch.autograd.backward([taped.answer], [upstream], retain_graph=True)
        return Reply(
            gradients={
                name: leaf.grad.detach().cpu()
                for name, leaf in taped.leaves.items()
                if leaf.grad is not None
            }
        )

    @property
    def _function(self) -> Any:
        if self._candidate is None:
            msg = "a rank is called before it has joined the others"
            raise LookupError(msg)
        function = self._candidate.function
        return in_eval(function) if isinstance(function, nn.Module) else function

    def _here(self, tensor: Tensor) -> Tensor:
        """A tensor on this rank's device."""
        device = torch.device(self._source.device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
        return tensor.to(device)


@contextlib.contextmanager
def _late(seconds: float) -> Iterator[list[str]]:
    """Send and receive so much later than usual; the names of the messages that are delayed."""
    delayed: list[str] = []
    if not seconds:
        yield delayed
        return
    # As they stand in the class: what ``getattr`` gives would not be bound to a group again.
    usual = {name: vars(dist.ProcessGroup)[name] for name in _MESSAGES}

    def later(name: str, message: Callable[..., Any]) -> Callable[..., Any]:
        def send(*arguments: Any, **keywords: Any) -> Any:
            delayed.append(name)
            time.sleep(seconds)
            return message(*arguments, **keywords)

        return send

    for name in _MESSAGES:
        setattr(dist.ProcessGroup, name, later(name, getattr(dist.ProcessGroup, name)))
    try:
        yield delayed
    finally:
        for name, message in usual.items():
            setattr(dist.ProcessGroup, name, message)


def _class_of(value: Any) -> str:
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def serve(ends: dict[int, Connection], source: Source) -> None:
    """Answer requests on this rank's own connection until the judge goes away."""
    torch.set_num_threads(1)
    threading.Thread(target=_follow_parent, daemon=True).start()
    number = int(os.environ["RANK"])
    for other, end in ends.items():
        if other != number:
            end.close()
    end, rank = ends[number], _Rank(source)
    while True:
        try:
            request: Request = pickle.loads(end.recv_bytes())  # noqa: S301 (of the judge itself)
        except (EOFError, OSError):
            os._exit(0)
        if request.do == "die":
            os._exit(1)
        if request.do == "rest":
            continue
        end.send_bytes(pickle.dumps(rank.answer(request)))


def _follow_parent() -> None:
    """End this process when the judge's has ended: a collective that waits would not notice."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def last_line(path: str) -> str:
    """The last line that a rank printed into its file, or ""."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
