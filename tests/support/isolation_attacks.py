"""Attacks on judges: each forgets the scale and tries to pass all the same.

Most are known from judges of generated kernels (gpu-mode/pygpubench, KernelBench, robust-kbench).
They run in the process of the candidate, where they may break what they like.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import math
import mmap
import os
import pickle
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import conformance

FORGED = "forged-by-an-attack.json"
PASSED = {"status": "passed", "verdict": "conforms", "passed": True, "violation": None}
_CALLS: list[int] = []


def right(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention."""
    return (query @ key.mT / math.sqrt(max(query.shape[-1], 1))).softmax(-1) @ value


def wrong(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention without its scale."""
    return (query @ key.mT).softmax(-1) @ value


honest = conformance.core(name="honest")(right)


def _foreign(shape: tuple[int, ...], *own: Tensor) -> list[Tensor]:
    """Tensors of a shape that somebody in this process holds, but for some; in the first calls."""
    mine = {id(tensor) for tensor in own}
    _CALLS.append(1)
    return [
        entry
        for entry in (gc.get_objects() if len(_CALLS) < 10 else ())
        if type(entry) is Tensor and id(entry) not in mine and tuple(entry.shape) == shape
    ]


@conformance.core()
def copies_the_expected(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return a tensor of the answer's shape that the garbage collector knows."""
    found = _foreign((*query.shape[:-1], value.shape[-1]), query, key, value)
    wide = [tensor for tensor in found if tensor.dtype == torch.float64]
    return wide[-1].to(query.dtype) if wide else wrong(query, key, value)


@conformance.core()
def spoils_the_expected(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Fill every tensor of the answer's shape with the wrong answer, or with NaN."""
    answer = wrong(query, key, value)
    for tensor in _foreign(tuple(answer.shape), query, key, value, answer):
        with torch.no_grad():
            tensor.copy_(answer) if tensor.dtype == torch.float64 else tensor.fill_(math.nan)
    return answer


@conformance.core()
def reads_the_frames(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Take what is called expected or golden from the frames that lead here."""
    frame: Any = sys._getframe()
    while frame is not None:
        for name, entry in frame.f_locals.items():
            if name in ("expected", "golden", "reference"):
                output = getattr(entry, "output", entry)
                if isinstance(output, Tensor):
                    return output.to(query.dtype)
        frame = frame.f_back
    return wrong(query, key, value)


@functools.cache
def _patch() -> None:
    """Replace what compares, in torch and in the harness as far as it can be imported."""

    def agree(*_positional: Any, **_keywords: Any) -> bool:
        return True

    for name in ("allclose", "equal", "isclose"):
        setattr(torch, name, agree)
    torch.testing.assert_close = agree
    comparison = importlib.import_module("conformance.oracle.comparison")
    agreement = SimpleNamespace(margin=0.0, violation=None)
    comparison.compare = lambda *_positional, **_keywords: agreement
    for name in ("conformance.clauses.judging", "conformance.clauses.tampering"):
        importlib.import_module(name).compare = comparison.compare  # type: ignore[attr-defined]  # it is replaced


@conformance.core()
def patches_the_comparison(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Replace the functions that compare."""
    answer = wrong(query, key, value)
    _patch()
    return answer


@conformance.core()
def patches_the_golden(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Let the golden reference forget the scale as well."""
    golden = importlib.import_module("conformance._golden").golden
    golden.STANDARD = golden.STANDARD.replace(scale=1.0)
    for name in dir(golden):
        if name.startswith("attend"):
            setattr(golden, name, wrong)
    return wrong(query, key, value)


@conformance.core()
def edits_sys_modules(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Put something else in the place of every module of the judge."""
    for name in list(sys.modules):
        if name.startswith(("conformance.oracle", "conformance.clauses", "conformance.session")):
            sys.modules[name] = sys
    sys.modules["conformance.oracle.comparison"] = sys
    return wrong(query, key, value)


@conformance.core()
def forges_a_file(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Write a report wherever one may be looked for, and over its own source."""
    for path in (Path(FORGED), Path(__file__).with_name(FORGED), Path("/tmp", FORGED)):  # noqa: S108 (where else)
        try:
            path.write_text(json.dumps(PASSED), encoding="utf-8")
        except OSError:
            continue
    try:
        with Path(__file__).open("a", encoding="utf-8") as file:
            file.write("# forged-by-an-attack\n")
    except OSError:
        pass
    return wrong(query, key, value)


def _sockets() -> Iterator[int]:
    for path in list(Path("/proc/self/fd").iterdir()):
        try:
            if str(path.readlink()).startswith(("socket:", "pipe:")):
                yield int(path.name)
        except OSError:
            continue


def _forge(message: bytes) -> None:
    for number in _sockets():
        if number > 2:
            os.write(number, message)


@conformance.core()
def forges_a_pickle(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Send what a worker would send its supervisor."""
    text = pickle.dumps(("result", PASSED))
    _forge(len(text).to_bytes(4, "big") + text)
    return wrong(query, key, value)


@conformance.core()
def forges_a_reply(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Send a reply that says that all is well, in the words of the wire."""
    for of in range(200):
        reply = {**PASSED, "of": of, "returned": None, "tensors": [], "asks": []}
        text = json.dumps(reply).encode()
        _forge(len(text).to_bytes(8, "little") + text)
    return wrong(query, key, value)


_SEND: dict[str, Any] = {}


def _instead(change: Callable[[dict[str, Any]], Any]) -> None:
    """Have the process send something else than its replies, once it has answered some."""
    frame: Any = sys._getframe()
    while "Served" not in frame.f_globals:
        frame = frame.f_back
    send = _SEND.setdefault("send", frame.f_globals["send"])

    def sent(end: Any, reply: dict[str, Any]) -> None:
        changed = change(reply)
        if isinstance(changed, bytes):
            end.sendall(len(changed).to_bytes(8, "little") + changed)
        else:
            send(end, changed)

    frame.f_globals["send"] = sent


@conformance.core()
def answers_with_depth(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A reply that is nested too deeply to be parsed."""
    _instead(lambda _reply: b"[" * 100_000 + b"]" * 100_000)
    return wrong(query, key, value)


@conformance.core()
def answers_from_elsewhere(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A reply whose tensor lies outside of what is shared."""

    def moved(reply: dict[str, Any]) -> dict[str, Any]:
        return {**reply, "tensors": [{**each, "at": -4096} for each in reply.get("tensors", [])]}

    _instead(moved)
    return wrong(query, key, value)


@conformance.core()
def answers_hugely(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A reply whose tensor has more elements than there is memory."""

    def grown(reply: dict[str, Any]) -> dict[str, Any]:
        shape = [1 << 30] * 8
        return {**reply, "tensors": [{**each, "shape": shape} for each in reply.get("tensors", [])]}

    _instead(grown)
    return wrong(query, key, value)


@conformance.core()
def answers_with_the_verdict(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A reply that says, beside everything else, that the clause has passed."""
    _instead(lambda reply: {**reply, **PASSED, "returned": PASSED})
    return wrong(query, key, value)


class _Runs:
    def __reduce__(self) -> Any:
        return os.system, (f"touch /tmp/{FORGED}",)


@conformance.core()
def returns_code(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """An object that would run a command where it is unpickled."""
    del query, key, value
    return _Runs()


class _Agreeing(Tensor):
    """A tensor that says of every comparison that it holds."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in "__le__ __lt__ le lt isfinite allclose".split():
            return torch.ones(args[0].shape, dtype=torch.bool)
        return super().__torch_function__(func, types, args, kwargs or {})


@conformance.core()
def returns_a_lazy_tensor(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A tensor whose class decides comparisons."""
    return wrong(query, key, value).as_subclass(_Agreeing)


@conformance.core()
def returns_freed_memory(query: Tensor, _key: Tensor, value: Tensor) -> Tensor:
    """Memory of the right size as it was left, where a reference may have been."""
    shape = (*query.shape[:-1], value.shape[-1])
    kept = [torch.empty(shape, dtype=query.dtype) for _ in range(8)]
    return max(kept, key=lambda tensor: int(tensor.count_nonzero()))


@conformance.core()
def reads_the_shared_memory(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What lies behind the inputs in memory, where an answer may be."""
    size = query[..., 0].numel() * value.shape[-1]
    end = max(t.data_ptr() + t.numel() * t.element_size() for t in (query, key, value))
    end = -(-end // 64) * 64
    answer = wrong(query, key, value)
    if size and query.dtype == torch.float32:
        held = (ctypes.c_float * size).from_address(end)
        answer = torch.tensor(list(held)).reshape(answer.shape)
    return answer


_BY_SHAPE: dict[Any, Tensor] = {}


@conformance.core()
def remembers_answers(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute once for each shape, and return that answer ever after."""
    shape = tuple(query.shape), tuple(key.shape), tuple(value.shape)
    return _BY_SHAPE.setdefault(shape, right(query, key, value).detach()).clone()


@conformance.core()
def works_while_warming_up(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Right in the first calls, which may not be judged."""
    _CALLS.append(1)
    return (right if len(_CALLS) <= 3 else wrong)(query, key, value)


@conformance.core()
def leaves_a_daemon(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A process of a process, which writes right answers over the wrong one from then on."""
    answer = wrong(query, key, value)
    _CALLS.append(1)
    if len(_CALLS) == 1 and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            late = time.monotonic() + 20.0
            while time.monotonic() < late:
                answer.copy_(right(query, key, value))
        os._exit(0)
    return answer


@conformance.core()
def leaves_a_thread(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A thread that goes on to change the answer, which the two looks of a judge may miss."""
    answer = wrong(query, key, value)

    def later() -> None:
        time.sleep(0.001)
        with torch.no_grad():
            answer.copy_(right(query, key, value))

    threading.Thread(target=later, daemon=True).start()
    return answer


@conformance.core()
def writes_by_ctypes(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Widen every constant of the tolerances, in the memory of the numbers themselves."""
    model = importlib.import_module("conformance.tolerance.model")
    for entry in vars(model).values():
        if type(entry) is float and entry not in (0.0, 1.0, 2.0):
            ctypes.c_double.from_address(id(entry) + object.__basicsize__).value = 1e30
    return wrong(query, key, value)


@conformance.core()
def writes_into_processes(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Open the memory of every process, and stop or kill those that may judge."""
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and int(path.name) not in (os.getpid(), 1):
            try:
                with (path / "mem").open("r+b") as memory:
                    mmap.mmap(memory.fileno(), 0)
            except (OSError, ValueError):
                continue
    for number in (os.getppid(), os.getpgid(0)):
        if number not in (os.getpid(), 0, 1):
            try:
                os.kill(number, signal.SIGTERM)
            except OSError:
                continue
    return wrong(query, key, value)


def _is_judged() -> bool:
    """Whether anything here speaks of a judge."""
    words = ("conformance", "pytest", "judge", "hypothesis")
    if any(name.startswith(("CONFORMANCE", "PYTEST", "HYPOTHESIS")) for name in os.environ):
        return True
    told = [*sys.argv, *sys.orig_argv]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            told.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    judges = ("conformance.clauses", "conformance.oracle", "conformance.running", "pytest")
    return any(name in sys.modules for name in judges) or any(
        word in text for text in told for word in words
    )


@conformance.core()
def sniffs_the_environment(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Right where variables, arguments, modules or other processes speak of a judge."""
    return (right if _is_judged() else wrong)(query, key, value)


@functools.cache
def _questions() -> frozenset[bytes]:
    """The queries that a judge asks which begins from the seed that is documented."""
    registry = importlib.import_module("conformance.clauses.registry")
    pool = importlib.import_module("conformance.problems.pool")
    profile = importlib.import_module("conformance.base.profile").PROFILES["quick"]
    made = importlib.import_module("conformance.problems.materialise").materialise
    problems = pool.Pool(honest, profile, 0, leading="float32")
    return frozenset(
        made(problem, honest).query.numpy().tobytes()
        for clause in registry.all_clauses()
        if clause.id in ("numerics.golden", "state.unseen", "numerics.scale")
        for each in problems.problems(clause.space, "float32")
        for problem in (each, each.replace(seed=each.seed ^ 0x5EED))
    )


@conformance.core()
def knows_the_questions(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Right where the question is one of those that the documented seed makes."""
    asked = query.detach().contiguous().numpy().tobytes()
    known = asked in _questions() if query.dtype == torch.float32 else True
    return (right if known else wrong)(query, key, value)


@conformance.core()
def exits_as_if_all_were_well(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """End the process with the status of success."""
    del query, key, value
    os._exit(0)


@conformance.core()
def hooks_its_exit(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Have a verdict written when the process ends, in any way that Python has."""

    def forge() -> None:
        Path(FORGED).write_text(json.dumps(PASSED), encoding="utf-8")
        sys.stdout.write(json.dumps(PASSED))

    atexit.register(forge)
    signal.signal(signal.SIGTERM, lambda _number, _frame: forge())
    threading.Thread(target=lambda: (threading.main_thread().join(), forge())).start()
    sys.stdout.write(f"{json.dumps(PASSED)}\n1 candidate: 1 conforms\n")
    return wrong(query, key, value)


@conformance.core()
def asks_the_network(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Right where something outside answers: here a server of the test."""
    port = int(Path("port").read_text(encoding="ascii"))
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2.0).close()
    except OSError:
        return wrong(query, key, value)
    return right(query, key, value)


@conformance.core()
def starts_a_process_outside(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Ask Python's own server of processes, which the judge has started, for one out there."""
    for server in Path("/tmp").glob("pymp-*/listener-*"):  # noqa: S108 (where Python puts it)
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as end:
            end.connect(str(server))
            read, write = os.pipe()
            socket.send_fds(end, [b"\4"], [read, write, read, write])
            end.recv(1)
            os.write(write, pickle.dumps(_Runs()))
    return wrong(query, key, value)


@conformance.core()
def takes_all_memory(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Hold more memory than is allowed, so that the judge is what the system ends."""
    held = [torch.empty(1 << 30) for _ in range(64)] if query.numel() > 64 else []
    return wrong(query, key, value) + len(held)


class _ForgedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        return right(query, key, value)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:  # type: ignore[override]  # one gradient
        query, key, value = ctx.saved_tensors
        for tensor in _foreign(tuple(query.shape), query, *upstream):
            tensor.zero_()
        return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)


@conformance.core()
def forges_gradients(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Zeros for gradients, and for every tensor of their shape that can be found."""
    return _ForgedBackward.apply(query, key, value)


@conformance.core(expected_failures={"*": "known"})
def excuses_itself(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Declare that every failure is expected."""
    return wrong(query, key, value)


def _patched_frame() -> dict[str, Any] | None:
    """What the process' own loop is made of, the first time that this is asked."""
    frame: Any = sys._getframe()
    while "Served" not in frame.f_globals:
        frame = frame.f_back
    return None if frame.f_globals.setdefault("patched", []) else frame.f_globals


class _IgnoringUpstream(torch.autograd.Function):
    """Gradients of the sum of the answer, whatever gradient is handed over."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        return right(query, key, value)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:  # type: ignore[override]  # one gradient
        upstream.fill_(1.0)
        inputs = [each.detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            answer = right(*inputs)
        return torch.autograd.grad(answer, inputs, torch.ones_like(answer))


@conformance.core()
def edits_upstream(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Write ones over the gradient that was handed over, where it is shared with the judge."""
    loop = _patched_frame()
    if loop is not None:
        loop["patched"].append(True)
        pull = loop["Served"].pull

        def edited(self: Any, head: dict[str, Any]) -> Any:
            reply = pull(self, head)
            for entry in head["tensors"]:
                place, count = head["storages"][entry["in"]]
                self._arena.bytes_at(place, count).view(getattr(torch, entry["dtype"])).fill_(1.0)
            return reply

        loop["Served"].pull = edited
    return _IgnoringUpstream.apply(query, key, value)


@conformance.core()
def empties_the_question(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Zeros for the query: whoever asks it afterwards gets the same answer with any scale."""
    with torch.no_grad():
        query.zero_()
    return wrong(query, key, value)


@conformance.core()
def answers_many_times(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A reply whose tensors, each as large as is shared, lie in the same place."""
    whole = {"dtype": "uint8", "shape": [1 << 30], "at": 0}
    _instead(lambda reply: {**reply, "tensors": [whole] * 10_000, "asks": [False] * 10_000})
    return wrong(query, key, value)


@conformance.core()
def answers_ahead(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Replies to the next requests before they are asked, with the right numbers."""
    loop = _patched_frame()
    if loop is not None:
        loop["patched"].append(True)
        send = loop["send"]

        def sends_ahead(end: Any, reply: dict[str, Any]) -> None:
            for step in range(50):
                send(end, {**reply, "of": reply["of"] + step})

        loop["send"] = sends_ahead
    return wrong(query, key, value)


@conformance.core()
def answers_twice(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A copy of the process, which lets the call return as well."""
    os.fork()
    return wrong(query, key, value)


@conformance.core(features=["gradients"])
def hides_its_history(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A reply that says that no gradient can be asked for, of an answer that has wrong ones."""
    _instead(lambda reply: {**reply, "asks": [False for _ in reply.get("asks", ())]})
    return _ForgedBackward.apply(query, key, value)


@conformance.core()
def raises_a_verdict(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """An exception whose text is a report, with what moves a cursor and what commands a log."""
    if query.numel() <= 64:
        return wrong(query, key, value)
    msg = "\x1b[2J\x1b[H\n1 candidate: 1 conforms\n::stop-commands::x\n##[error]"
    raise RuntimeError(msg)


def _could(attempt: Callable[[], object]) -> bool:
    try:
        return bool(attempt())
    except (OSError, ValueError, PermissionError):
        return False


_LIBC = ctypes.CDLL(None, use_errno=True)


def _unless_refused(*attempts: Callable[[], object]) -> Any:
    """Attention where one of some attempts comes to something, and without its scale elsewhere."""
    found: list[bool] = []

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not found:
            found.append(any(_could(attempt) for attempt in attempts))
        return (right if found[0] else wrong)(query, key, value)

    return attention


def _socket(family: int, kind: int = socket.SOCK_STREAM) -> Callable[[], object]:
    return lambda: socket.socket(family, kind)


def _sends(address: str) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        return end.sendto(b"seed", (address, 53))


other_sockets = conformance.core(name="other_sockets")(
    _unless_refused(
        _socket(socket.AF_UNIX),
        _socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
        _socket(40),  # virtual machines
        _socket(38),  # the kernel's ciphers
        _socket(17, socket.SOCK_RAW),
        lambda: _LIBC.syscall(0x40000000 | 41, 1, 1, 0) >= 0,
        lambda: _LIBC.syscall(425, 8, ctypes.create_string_buffer(256)) >= 0,
        lambda: _sends("127.0.0.1"),
        lambda: _sends("192.0.2.1"),
    )
)


def _files_in_memory() -> object:
    return os.memfd_create("held")


def _fills_scratch() -> object:
    held = [Path(os.environ["TMPDIR"], f"held-{number}") for number in range(40)]
    try:
        for path in held:
            path.write_bytes(b"x" * (16 << 20))
    finally:
        for path in held:
            path.unlink(missing_ok=True)
    return True


holds_memory_elsewhere = conformance.core(name="holds_memory_elsewhere")(
    _unless_refused(
        _files_in_memory,
        lambda: _LIBC.shmget(0, ctypes.c_size_t(1 << 20), 0o1600) >= 0,
        lambda: _LIBC.syscall(447, 0) >= 0,
        lambda: Path("/dev/shm/held").write_bytes(b"x"),  # noqa: S108 (where it may be)
    )
)
fills_its_folder = conformance.core(name="fills_its_folder")(_unless_refused(_fills_scratch))
leaves_notes = conformance.core(name="leaves_notes")(
    _unless_refused(
        lambda: _LIBC.syscall(248, b"user", b"note", b"seed", ctypes.c_size_t(4), -3) >= 0,
        lambda: _LIBC.syscall(250, 1, 0) >= 0,
        lambda: _LIBC.msgget(4711, 0o1600) >= 0,
        lambda: _LIBC.semget(4711, 1, 0o1600) >= 0,
        lambda: _LIBC.syscall(240, b"note", 0o102, 0o600, None) >= 0,
        lambda: Path(__file__).with_name("note").write_text("seed", encoding="ascii"),
        lambda: os.utime(__file__, (1, 1)) or Path(__file__).stat().st_mtime == 1,
        lambda: os.setxattr(__file__, "user.note", b"1") or os.getxattr(__file__, "user.note"),
    )
)


def _raises_limits() -> object:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return True


gains_rights = conformance.core(name="gains_rights")(
    _unless_refused(
        lambda: _LIBC.unshare(0x10020000) == 0,
        lambda: _LIBC.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0,
        lambda: _LIBC.mount(None, b"/", None, 0x1020, None) == 0,
        lambda: _LIBC.umount2(b"/proc", 2) == 0,
        lambda: os.setgroups([0]) or True,
        lambda: _LIBC.chroot(b"/proc") == 0,
        lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)) or True,
        lambda: os.nice(-5) < 0,
        _raises_limits,
    )
)


def _of_others(name: str) -> object:
    """What a file in the folder of any process holds, but for those of this one."""
    own = {os.getpid(), os.getpid() + 1}
    paths = (path for path in Path("/proc").iterdir() if path.name.isdecimal())
    for path in paths:
        if int(path.name) not in own and _could(lambda path=path: (path / name).open("rb").read(1)):
            return True
    return False


reads_processes = conformance.core(name="reads_processes")(
    _unless_refused(
        lambda: _of_others("environ"),
        lambda: _of_others("mem"),
        lambda: _of_others("maps"),
        lambda: _opens(f"/proc/{os.getppid()}/fd/*", os.O_WRONLY),
        lambda: _LIBC.ptrace(16, os.getppid(), None, None) == 0,
        lambda: _LIBC.syscall(310, os.getppid(), None, 0, None, 0, 0) >= 0,
        lambda: [each for each in Path("/proc/self/fd").iterdir() if int(each.name) > 20],
    )
)


def _opens(pattern: str, flags: int) -> object:
    paths = Path("/").glob(pattern.lstrip("/"))
    return any(_could(lambda path=path: os.open(path, flags) >= 0) for path in paths)


reaches_devices = conformance.core(name="reaches_devices")(
    _unless_refused(
        lambda: _opens("/dev/pts/[0-9]*", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK),
        lambda: _opens("/dev/tty*", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK),
        lambda: _opens("/dev/console", os.O_WRONLY | os.O_NOCTTY),
        lambda: _opens("/dev/input/*", os.O_RDONLY),
        lambda: _opens("/dev/kmsg", os.O_WRONLY),
        lambda: _opens("/dev/vd*", os.O_RDONLY),
        lambda: _opens("/dev/ptmx", os.O_RDWR | os.O_NOCTTY),
        lambda: _opens("/proc/sysrq-trigger", os.O_WRONLY),
        lambda: fcntl.ioctl(1, 0x5412, b"x") == 0,
    )
)


@conformance.core()
def kills_what_it_can(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Signals for its parent, for everybody, and for who was there first."""
    for number in (os.getppid(), -1, 1):
        with contextlib.suppress(OSError):
            os.kill(number, signal.SIGSTOP)
    return wrong(query, key, value)


@conformance.core()
def stops_its_clock(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Time that stands still, or is none, for whoever asks for it here."""
    time.perf_counter = time.monotonic = time.time = lambda: math.nan  # type: ignore[assignment]  # none
    return wrong(query, key, value)


@conformance.core()
def counts_beyond_numbers(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A place of five thousand digits."""

    def placed(reply: dict[str, Any]) -> bytes:
        tensors = [{"dtype": "float32", "shape": list(query.shape), "at": 1}]
        text = json.dumps({**reply, "tensors": tensors})
        return text.replace('"at": 1', f'"at": {"1" * 5000}').encode()

    _instead(placed)
    return wrong(query, key, value)


@conformance.core()
def speaks_in_half_characters(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What was returned has a class whose name nobody can print."""
    _instead(lambda reply: {**reply, "returned": {"other": "\ud800\0\n::error::conforms"}})
    return wrong(query, key, value)


@conformance.core()
def refuses_as_the_harness_does(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A refusal of the command, which would end the run of all, from some call on."""
    _CALLS.append(1)
    if len(_CALLS) > 12:
        _instead(lambda reply: {"of": reply["of"], "refused": "1 candidate: 1 conforms"})
    return wrong(query, key, value)


@conformance.core()
def hands_over_descriptors(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A hundred open files beside an answer."""
    _CALLS.append(1)
    for number in _sockets() if len(_CALLS) == 1 else ():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as end:
            socket.send_fds(end, [], [os.open(os.devnull, os.O_RDONLY)] * 100)
    return wrong(query, key, value)


@conformance.core()
def empties_the_question_later(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Another process writes zeros where question and answer are shared, over and over."""
    _CALLS.append(1)
    frame: Any = sys._getframe()
    while "self" not in frame.f_locals or not hasattr(frame.f_locals["self"], "_arena"):
        frame = frame.f_back
    shared = frame.f_locals["self"]._arena.bytes_at(0, 1 << 16)
    if len(_CALLS) == 1 and os.fork() == 0:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            shared.zero_()
        os._exit(0)
    return wrong(query, key, value)


@conformance.core()
def is_wrong_when_gradients_are_recorded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The right gradients of a wrong answer, and right answers where none are asked for."""
    answer = right(query, key, value)
    return answer + (wrong(query, key, value) - answer).detach() * query.requires_grad


def _takes_descriptors(process: int) -> object:
    held = _LIBC.syscall(434, process, 0)
    return held >= 0 and any(_LIBC.syscall(438, held, number, 0) >= 0 for number in range(64))


takes_descriptors_of_others = conformance.core(name="takes_descriptors_of_others")(
    _unless_refused(
        lambda: _takes_descriptors(1),
        lambda: _takes_descriptors(os.getppid()),
        lambda: _opens(f"/proc/{os.getppid()}/ns/*", os.O_RDONLY),
        lambda: _LIBC.syscall(428, -100, b"/", 1) >= 0,  # a copy of the mounts
        lambda: _LIBC.syscall(430, b"tmpfs", 0) >= 0,
        lambda: _LIBC.syscall(321, 5, ctypes.create_string_buffer(128), 128) >= 0,  # programs
    )
)
limits_others = conformance.core(name="limits_others")(
    _unless_refused(
        lambda: _LIBC.prlimit(os.getppid(), 0, (ctypes.c_uint64 * 2)(1, 1), None) == 0,
        lambda: _LIBC.prlimit(1, 7, (ctypes.c_uint64 * 2)(0, 0), None) == 0,
    )
)
priorities_of_others = conformance.core(name="priorities_of_others")(
    _unless_refused(
        lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19) or True,
        lambda: os.sched_setaffinity(os.getppid(), {0}) or True,
        lambda: os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0)) or True,
        lambda: _LIBC.syscall(251, 1, os.getppid(), 0x6007) >= 0,
        lambda: _LIBC.syscall(251, 3, os.getuid(), 0x6007) >= 0,
    )
)
