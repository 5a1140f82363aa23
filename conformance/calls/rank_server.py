"""The program of each rank: joins the process group, and answers the judge's requests.

torch's launcher has set ``RANK``, ``WORLD_SIZE`` and so on, as in a user's own run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from .._golden import golden
from ..base.geometry import Geometry
from ..base.printable_text import printable
from ..base.results import Violation
from ..declare.candidate import Candidate
from ..errors import UsageError
from ..targets.resolving import find
from .calling import in_eval, is_tensor, plainly, raised
from .devices import bits_of
from .differentiating import pull_back

_ROLES: Final = tuple(entry.name for entry in dataclasses.fields(golden.ProjectionWeights))
# Targets of torch.distributed's functions. Functional collectives, and so DTensor, take a different
# way and are not delayed.
_MESSAGES: Final = tuple(
    name
    for name in (
        *("allgather", "_allgather_base", "allreduce", "alltoall", "alltoall_base", "broadcast"),
        *("gather", "recv", "reduce", "reduce_scatter", "_reduce_scatter_base", "scatter", "send"),
    )
    if name in vars(dist.ProcessGroup)
)
# Dtypes safetensors has no name for, and no answer may have.
_NEVER_SENT: Final = (torch.complex128, torch.quint8, torch.qint8, torch.qint32)
# Point-to-point messages: a message not received is read by the receiver's next call.
_DIRECT: Final = ("send", "recv", "recv_anysource")


@dataclass(frozen=True, kw_only=True)
class Source:
    """The candidate of a rank: a target, and the candidate's name in it.

    ``shown`` is its name in the report; ``device`` is its device.
    """

    target: str
    name: str
    shown: str
    device: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """The process group to join: the file where ranks meet, and time limits.

    ``starting``: seconds for all ranks to start; ``seconds``: limit of a later collective.
    """

    store: str
    count: int
    seconds: float
    starting: float


@dataclass(kw_only=True)
class Request:
    """One request of the judge to one rank; tensors are this rank's parts.

    do: ``call``, ``build``, ``pull``, ``join``, ``meet``, ``die``, or ``rest``, which gets no
        reply.
    positional, keywords, requires_grad: the arguments of a call, and the names of tensors requiring
        gradients.
    number: the key for keeping a call or layer (None: not kept); for ``pull`` the call's.
    layer: the number of the layer to call; None for a core.
    late: seconds the rank waits before each message of a call.
    drop: numbers of calls and layers to forget.
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

    ``returned`` is a tensor; None for other objects, whose class is ``described``. ``written``
    holds the arguments the call wrote into, ``gradients`` the gradients arrived at arguments and
    weights. ``delayed`` counts delayed messages. ``sent`` counts operations in each process group
    of the rank, ``direct`` point-to-point messages among them.
    """

    returned: Tensor | None = None
    described: str = ""
    requires_grad: bool = False
    delayed: int = 0
    written: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    violation: Violation | None = None
    sent: dict[str, int] = field(default_factory=dict)
    direct: int = 0


@dataclass(kw_only=True, eq=False)
class _Taped:
    """A call kept for its gradients: its leaves by name, and its answer."""

    leaves: dict[str, Tensor]
    answer: Any


@dataclass(kw_only=True, eq=False)
class _Layer:
    forward: Any
    leaves: dict[str, Tensor]


class _Rank:
    """The judge's requests, each a method of the same name."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._candidate: Candidate | None = None
        self._taped: dict[int, _Taped] = {}
        self._layers: dict[int, _Layer] = {}
        self._direct = 0
        self._count_direct()

    def _count_direct(self) -> None:
        def counted(message: Callable[..., Any]) -> Callable[..., Any]:
            def send(*arguments: Any, **keywords: Any) -> Any:
                self._direct += 1
                return message(*arguments, **keywords)

            return send

        for name in _DIRECT:
            setattr(dist.ProcessGroup, name, counted(getattr(dist.ProcessGroup, name)))

    def answer(self, request: Request) -> Reply:
        """Reply to a request, including exceptions of the candidate."""
        for number in request.drop:
            self._taped.pop(number, None)
            self._layers.pop(number, None)
        do: Callable[[Request], Reply] = getattr(self, request.do)
        before, self._direct = _counts(), 0
        try:
            reply = do(request)
        except BaseException as error:  # noqa: BLE001 (a candidate may raise anything)
            reply = Reply(violation=raised(error))
        reply.sent = {name: count - before.get(name, 0) for name, count in _counts().items()}
        reply.direct = self._direct
        return reply

    def meet(self, request: Request) -> Reply:
        """Wait for the other ranks in every process group of this rank."""
        del request
        dist.barrier()  # raises where the candidate has left the group
        for _, group in sorted(_groups().items()):
            dist.barrier(group)
        return Reply()

    def join(self, request: Request) -> Reply:
        if request.group is None:
            msg = "a group is missing in the request"
            raise LookupError(msg)
        count, rank = request.group.count, request.rank
        # A group's limit holds from its creation, so all ranks must be present before.
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
        every = [each for each in find(source.target) if isinstance(each, Candidate)]
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
        """Build a layer from this rank's weights, as leaves if gradients are required."""
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
        # A copy waits for the numbers: those of AsyncCollectiveTensor are still on the way.
        plain = plainly(returned.detach().cpu().clone()) if is_tensor(returned) else None
        if plain is None or plain.layout != torch.strided or plain.dtype in _NEVER_SENT:
            described = _class_of(returned) + (f" of {plain.dtype}" if plain is not None else "")
            return Reply(described=described, written=written, delayed=len(delayed))
        if request.number is not None:
            leaves = {
                name: value for name, value in tensors.items() if name in request.requires_grad
            }
            leaves |= {} if layer is None else layer.leaves
            self._taped[request.number] = _Taped(leaves=leaves, answer=returned)
        return Reply(
            returned=plain,
            requires_grad=returned.requires_grad,
            written=written,
            delayed=len(delayed),
        )

    def pull(self, request: Request) -> Reply:
        """Return the gradients of the arguments and weights of a kept call."""
        if request.number is None or request.upstream is None:
            msg = "a call and the gradient of its answer are missing in the request"
            raise LookupError(msg)
        taped = self._taped[request.number]
        for leaf in taped.leaves.values():
            leaf.grad = None
        if taped.answer.requires_grad:
            upstream = request.upstream.to(taped.answer.device)
            pull_back([taped.answer], [upstream], again=True)
        return Reply(
            gradients={
                name: leaf.grad.detach().cpu().to_dense()
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
        device = torch.device(self._source.device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
        return tensor.to(device)


@contextlib.contextmanager
def _late(seconds: float) -> Iterator[list[str]]:
    """Delay every message by some seconds; yields the names of delayed messages."""
    delayed: list[str] = []
    if not seconds:
        yield delayed
        return
    # As in the class: the result of ``getattr`` would not be bound to a group again.
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


def _groups() -> dict[str, dist.ProcessGroup]:
    world = dist.distributed_c10d._world  # noqa: SLF001 (no public list of them)
    return {world.pg_names[group]: group for group in world.pg_map}


def _counts() -> dict[str, int]:
    """Count the operations begun in each process group, and under "" the groups."""
    counts = {
        name: group._get_sequence_number_for_group()  # type: ignore[attr-defined]  # noqa: SLF001 (torch's own debugging compares them)
        for name, group in _groups().items()
    }
    return {"": dist.distributed_c10d._world.group_count, **counts}  # noqa: SLF001


def _class_of(value: Any) -> str:
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def serve(ends: dict[int, Connection], source: Source, folder: str) -> None:
    """Answer requests on this rank's own connection until the judge goes away.

    ``folder`` is the ranks' temporary folder: a killed judge removes nothing.
    """
    torch.set_num_threads(1)
    threading.Thread(target=_follow_parent, args=(folder,), daemon=True).start()
    number = int(os.environ["RANK"])
    for other, end in ends.items():
        if other != number:
            end.close()
    end, rank, own = ends[number], _Rank(source), os.getpid()
    while True:
        try:
            request: Request = pickle.loads(end.recv_bytes())  # noqa: S301 (of the judge itself)
        except (EOFError, OSError):
            _leave(folder, 0)
        if request.do == "die":
            os._exit(1)
        if request.do == "rest":
            continue
        reply = rank.answer(request)
        if os.getpid() != own:
            os._exit(1)  # a copy that the candidate has forked and let return
        try:
            end.send_bytes(packed(reply))
        except (ValueError, TypeError, RuntimeError, KeyError, SafetensorError) as error:
            end.send_bytes(packed(Reply(violation=raised(error), sent=reply.sent, direct=1)))


# Fields that are no tensors, with their kinds.
_FACTS: Final = {
    "described": str,
    "requires_grad": bool,
    "delayed": int,
    "sent": dict,
    "direct": int,
}
_RAISED: Final = ("message", "got", "traceback")
_HEAD: Final = "reply"


def packed(reply: Reply) -> bytes:
    """A reply as safetensors, whose metadata holds what is no tensor."""
    tensors = {
        # One tensor may have two names, which safetensors refuses.
        f"{kind} {name}": each.clone(memory_format=torch.contiguous_format)
        for kind, parts in (
            ("written", reply.written),
            ("gradients", reply.gradients),
            ("returned", {} if reply.returned is None else {"": reply.returned}),
        )
        for name, each in parts.items()
    }
    head = {name: getattr(reply, name) for name in _FACTS}
    if reply.violation is not None:
        head["raised"] = {name: str(getattr(reply.violation, name) or "") for name in _RAISED}
    return save(tensors, {_HEAD: json.dumps(head)})


def unpacked(received: bytes) -> Reply:
    """Decode a reply of :func:`packed`; raises ValueError otherwise. Nothing is unpickled."""
    try:
        tensors = load(received)
        size = int.from_bytes(received[:8], "little")
        head = json.loads(json.loads(received[8 : 8 + size])["__metadata__"][_HEAD])
        reply = Reply(**{name: head[name] for name in _FACTS})
        if "raised" in head:
            message, got, way = (printable(str(head["raised"][name])) for name in _RAISED)
            reply.violation = Violation(kind="raised", message=message, got=got, traceback=way)
        for key, tensor in tensors.items():
            kind, _, name = key.partition(" ")
            if kind == "returned":
                reply.returned = tensor
            else:
                {"written": reply.written, "gradients": reply.gradients}[kind][name] = tensor
    except (SafetensorError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if any(type(getattr(reply, name)) is not kind for name, kind in _FACTS.items()):
        msg = "a fact of another kind"
        raise ValueError(msg)
    return reply


def _follow_parent(folder: str) -> None:
    """End this process with the judge's: a waiting collective would not notice."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        _leave(folder, 1)


def _leave(folder: str, code: int) -> NoReturn:
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(code)


def last_line(path: str) -> str:
    """Return the last line a rank printed into its file, or ""."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
