"""Candidates that span ranks: parts go out, one answer comes back, and lost ranks are a verdict."""

from __future__ import annotations

import dataclasses
import multiprocessing
import multiprocessing.util
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
import torch

from conformance.base.files import SCRATCH
from conformance.calls.calling import CandidateLost, RaisedElsewhere, RanksUnusableError, guarded
from conformance.calls.ranks import Calls, Spanning, spanning
from conformance.declare.candidate import Candidate
from conformance.declare.decorators import renamed
from conformance.identification.opening import resolve_one

SOURCE = """
    import os, time
    import torch
    import torch.distributed as dist
    import conformance

    PARTS = conformance.Ranks(
        2, query="sequence", key="sequence", value="sequence", output="sequence", seconds={seconds}
    )

    @conformance.core(ranks=PARTS)
    def attention(query, key, value):
        {body}
"""


def candidate(folder: Path, body: str, seconds: float = 10.0) -> Candidate:
    """A core on two ranks whose body sees its own part."""
    file = folder / f"ranks_{abs(hash(body))}.py"
    file.write_text(textwrap.dedent(SOURCE).format(seconds=seconds, body=body), encoding="utf-8")
    return spanning(resolve_one(str(file))[0])


def call(made: Candidate) -> torch.Tensor:
    """The answer to four queries and four keys, two of each for a rank."""
    query = torch.arange(4.0).reshape(1, 1, 4, 1)
    answer: torch.Tensor = made(query, query + 10, query + 20)
    return answer


def test_each_rank_has_its_part_and_the_answer_is_put_together(tmp_path: Path) -> None:
    """Ranks are in one process group, and each is called with the part that is declared."""
    body = "dist.barrier(); return query + key + value + 100 * dist.get_rank()"
    assert call(candidate(tmp_path, body)).flatten().tolist() == [30.0, 33.0, 136.0, 139.0]


def test_the_folder_of_ranks_is_where_a_worker_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is removed with the worker's, when that is killed."""
    multiprocessing.util.get_temp_dir()  # a socket in a folder of a test has too long a name
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv(SCRATCH, str(own))
    made = candidate(tmp_path, "return query + 1")
    call(made)
    assert [path.name for path in own.glob("*-ranks-*")]


@pytest.mark.parametrize(
    ("owner", "name", "told"),
    [
        (torch.distributed, "is_available", "this torch has no torch.distributed"),
        (multiprocessing, "get_all_start_methods", f"they are forked, which {sys.platform} cannot"),
    ],
)
def test_where_ranks_cannot_be_started_one_sentence_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, told: str
) -> None:
    """Neither every torch nor every system has what they need; nothing of it is imported before."""
    made = candidate(tmp_path, "return query")
    monkeypatch.setattr(owner, name, list)
    monkeypatch.setitem(sys.modules, "torch.distributed.elastic.multiprocessing", None)
    with pytest.raises(RanksUnusableError, match=told):
        call(made)


def test_gradients_come_home(tmp_path: Path) -> None:
    """The gradient of a divided tensor is put together of the parts of all ranks."""
    made = candidate(tmp_path, "return query * (1 + dist.get_rank())")
    query = torch.ones(1, 1, 4, 1, requires_grad=True)
    made(query, query.detach(), query.detach()).sum().backward()
    assert query.grad is not None
    assert query.grad.flatten().tolist() == [1.0, 1.0, 2.0, 2.0]


def test_one_tensor_that_is_key_and_value_has_one_gradient(tmp_path: Path) -> None:
    """A gradient that arrives under two names is handed over once."""
    made = candidate(tmp_path, "return key + 2 * value")
    key = torch.ones(1, 1, 4, 1, requires_grad=True)
    made(key.detach(), key, key).sum().backward()
    assert key.grad is not None
    assert key.grad.flatten().tolist() == [3.0] * 4


def test_what_a_rank_writes_into_its_part_is_seen(tmp_path: Path) -> None:
    """A write into an argument arrives in the judge's tensor, where a clause looks for it."""
    made = candidate(tmp_path, "query[:] = dist.get_rank(); return value")
    query = torch.full((1, 1, 4, 1), 7.0)
    made(query, query.clone(), query.clone())
    assert query.flatten().tolist() == [0.0, 0.0, 1.0, 1.0]


def test_a_rank_that_was_late_is_as_before(tmp_path: Path) -> None:
    """Messages are sent late in the calls that say so, again and again, and in no other."""
    body = "total = value.sum(); dist.all_reduce(total); dist.barrier(); return value + total"
    made = candidate(tmp_path, body)
    usual = call(made)
    assert isinstance(made.function, Spanning)
    calls = Calls(made.function.calls.ranks, late={1: 0.05})
    late = dataclasses.replace(made, function=made.function.under(calls))
    assert all(torch.equal(call(late), usual) for _ in range(3))
    assert torch.equal(call(made), usual)


def test_an_exception_says_on_which_rank(tmp_path: Path) -> None:
    """The message is that of the rank that raised, and says what became of the other."""
    body = "dist.get_rank() and 1 / 0; dist.barrier(); return value"
    with pytest.raises(RaisedElsewhere) as error:
        call(candidate(tmp_path, body))
    assert str(error.value).startswith("raised ZeroDivisionError: division by zero (")
    assert str(error.value).endswith(") on rank 1 (rank 0 gave no answer)")


def test_what_an_exception_leaves_unread_is_not_read_later(tmp_path: Path) -> None:
    """A message of a call that one rank left by an exception never reaches the next call."""
    body = (
        "message = value.sum() + torch.zeros(1); dist.get_rank() and dist.send(message, 0); "
        "dist.get_rank() or query.sum() or 1 / 0; "
        "dist.get_rank() or dist.recv(message, 1); return value * 0 + message"
    )
    made = candidate(tmp_path, body)
    tokens = torch.ones(1, 1, 4, 1)
    with pytest.raises(RaisedElsewhere):
        made(tokens * 0, tokens, tokens * 7)
    assert made(tokens, tokens, tokens * 4).flatten().tolist() == [8.0] * 4


@pytest.mark.parametrize(
    ("refuses", "kept"),
    [
        ("1 / 0", True),
        ("dist.all_reduce(total); 1 / 0", True),
        ("dist.all_reduce(total); dist.get_rank() or 1 / 0", True),
        # What is left of these would be read by the next call, or break it.
        ("dist.get_rank() and dist.all_reduce(total, async_op=True); 1 / 0", False),
        ("dist.isend(total, 1 - dist.get_rank()); 1 / 0", False),
        ("dist.get_rank() or dist.new_group([0]); 1 / 0", False),
        ("dist.destroy_process_group(); 1 / 0", False),
    ],
)
def test_ranks_that_are_even_after_an_exception_go_on(
    tmp_path: Path, refuses: str, *, kept: bool
) -> None:
    """All ranks answered, and nothing they sent is left: they are not started anew."""
    body = (
        "total = query.sum() + torch.zeros(1); lost = bool(total.item()); "
        "lost and refuse(total); lost or dist.all_reduce(total); "
        "return value + total + os.getpid()"
    )
    made = candidate(tmp_path, body)
    (file,) = tmp_path.glob("ranks_*.py")
    more = f"\ndef refuse(total):\n    {refuses}\n"
    file.write_text(file.read_text(encoding="utf-8") + more, encoding="utf-8")
    tokens = torch.zeros(1, 1, 4, 1, dtype=torch.float64)  # holds the number of any process
    before = made(tokens, tokens, tokens)
    with pytest.raises((RaisedElsewhere, CandidateLost)):
        made(tokens + 1, tokens, tokens)
    assert torch.equal(made(tokens, tokens, tokens), before) is kept


def test_calls_in_two_ways_keep_their_gradients(tmp_path: Path) -> None:
    """A call made in another way, on the same ranks, does not replace one that is kept."""
    made = candidate(tmp_path, "return query * key * (1 + dist.get_rank())")
    assert isinstance(made.function, Spanning)
    other = dataclasses.replace(made, function=made.function.under(made.function.calls))
    query = torch.ones(1, 1, 4, 1, requires_grad=True)
    first = made(query, query.detach() * 3, query.detach())
    second = other(query, query.detach() * 5, query.detach())
    first.sum().backward()
    assert query.grad is not None
    assert query.grad.flatten().tolist() == [3.0, 3.0, 6.0, 6.0]
    second.sum().backward()
    assert query.grad.flatten().tolist() == [8.0, 8.0, 16.0, 16.0]


def test_what_a_rank_cannot_load_is_no_verdict(tmp_path: Path) -> None:
    """A file that fails in a rank alone is a user's error, and no pipe or folder is left."""
    made = candidate(tmp_path, "return value")
    assert call(made).flatten().tolist() == [20.0, 21.0, 22.0, 23.0]
    assert isinstance(made.function, Spanning)
    made.function.processes.close()
    (file,) = tmp_path.glob("ranks_*.py")
    file.write_text("import nothing_of_this_name\n", encoding="utf-8")
    before = psutil.Process().num_fds()
    with pytest.raises(RanksUnusableError, match=r"cannot be started: /.* imported: .*nothing_"):
        guarded(call, (made,), {})
    assert psutil.Process().num_fds() == before


def test_a_renamed_candidate_is_loaded_by_its_first_name(tmp_path: Path) -> None:
    """The second of a name has another name in the report, and is the same for its ranks."""
    made = candidate(tmp_path, "return value + 1")
    assert isinstance(made.function, Spanning)
    second = spanning(renamed(made.function.candidate, "attention-2"))
    assert call(second).flatten().tolist() == [21.0, 22.0, 23.0, 24.0]


def test_what_a_rank_forges_is_a_lost_rank(tmp_path: Path) -> None:
    """Bytes that a candidate writes in place of a reply end its ranks, and nothing else."""
    body = (
        "import gc; from multiprocessing.connection import Connection; "
        "[each.send_bytes(b'no reply') for each in gc.get_objects() "
        "if type(each) is Connection and not each.closed and each.writable]; return value"
    )
    with pytest.raises(CandidateLost, match="sent what is no reply on rank 0"):
        call(candidate(tmp_path, body))


def test_a_copy_of_a_rank_does_not_answer(tmp_path: Path) -> None:
    """A rank that forks answers each request once: the copy's answer is not that of the next."""
    made = candidate(tmp_path, "os.fork(); return value + query")
    tokens = torch.ones(1, 1, 4, 1)
    for number in range(3):
        assert made(tokens * number, tokens, tokens).flatten().tolist() == [number + 1.0] * 4


def test_nothing_of_a_rank_is_unpickled(tmp_path: Path) -> None:
    """A reply that would run code where it is unpickled, and the files of torch's launcher."""
    mark = tmp_path / "reached"
    more = f"""
import gc, pickle
from multiprocessing.connection import Connection
from multiprocessing.queues import SimpleQueue

class Runs:
    def __reduce__(self):
        return open, ({str(mark)!r}, "w")

def attack():
    for each in gc.get_objects():
        if type(each) is Connection and not each.closed and each.writable:
            each.send_bytes(pickle.dumps(Runs()))
        if type(each) is SimpleQueue:
            each.put(Runs())
    import sys
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()):
            if isinstance(value, str) and os.path.isfile(value):
                open(value, "wb").write(pickle.dumps(Runs()))
        frame = frame.f_back
    os._exit(1)
"""
    made = candidate(tmp_path, "attack()")
    (file,) = tmp_path.glob("ranks_*.py")
    file.write_text(file.read_text(encoding="utf-8") + more, encoding="utf-8")
    with pytest.raises(CandidateLost):
        call(made)
    assert not mark.exists()


def test_messages_of_functional_collectives_are_not_late(tmp_path: Path) -> None:
    """A reply says how many messages were delayed: none of those that DTensor sends."""
    body = "own = value.sum(); {}; dist.all_reduce(own); return value"
    functional = (
        "from torch.distributed import _functional_collectives as f; "
        "f.all_reduce(own, 'sum', dist.group.WORLD).wait(); return value"
    )
    counts = []
    for each in (body.format("own"), body.format(functional)):
        function = candidate(tmp_path, each, seconds=60.0).function
        assert isinstance(function, Spanning)
        late = function.under(Calls(function.calls.ranks, late={1: 0.01}))
        late(*(torch.ones(1, 1, 4, 1) for _ in range(3)))
        counts.append([r.reply.delayed for r in late.results if r.reply is not None])
    assert counts == [[0, 1], [0, 0]]


@pytest.mark.parametrize(
    ("number", "words"),
    [(9, "SIGKILL; the system may have run out of memory"), (40, "signal 40")],
)
def test_a_killed_rank_is_a_verdict(tmp_path: Path, number: int, words: str) -> None:
    """A rank that dies in the middle of a call ends it on the others, and the next call works."""
    mark = tmp_path / "killed"
    body = (
        f"first = not os.path.exists({str(mark)!r}); dist.barrier(); open({str(mark)!r}, 'w'); "
        "first and dist.get_rank() and "
        f"os.kill(os.getpid(), {number}); dist.barrier(); return value"
    )
    made, began = candidate(tmp_path, body), time.monotonic()
    with pytest.raises(CandidateLost) as lost:
        call(made)
    assert f"killed its process ({words}) on rank 1 (rank 0 raised" in str(lost.value)
    assert time.monotonic() - began < 60.0
    assert call(made).flatten().tolist() == [20.0, 21.0, 22.0, 23.0]


def test_a_rank_that_never_sends_is_a_verdict(tmp_path: Path) -> None:
    """A collective that waits for a rank which never calls it ends within the time limit."""
    body = "dist.get_rank() and time.sleep(600); dist.barrier(); return value"
    made, began = candidate(tmp_path, body, seconds=2.0), time.monotonic()
    with pytest.raises((CandidateLost, RaisedElsewhere)) as lost:
        call(made)
    assert time.monotonic() - began < 60.0
    assert "rank 1 gave no answer" in str(lost.value)
    assert "Timed out" in str(lost.value)


def test_who_waits_for_one_that_raised_has_its_own_time(tmp_path: Path) -> None:
    """Rank 0 waits for a dead rank and raises; rank 1 waits for rank 0 until its own limit."""
    body = (
        "other = {0: 2, 1: 0}[dist.get_rank()]; dist.recv(value[:1, :1, :1].clone(), other); "
        "return value"
    )
    function = candidate(tmp_path, body).function
    assert isinstance(function, Spanning)
    ranks = dataclasses.replace(function.calls.ranks, count=3, seconds=2.0)
    run = function.under(Calls(ranks, absent={2: "die"}))
    with pytest.raises(CandidateLost):
        run(*(torch.ones(1, 1, 6, 1) for _ in range(3)))
    replies = [each.reply for each in run.results]
    assert [each is not None and each.violation is not None for each in replies] == [
        True,
        True,
        False,
    ]


def test_a_loop_on_all_ranks_is_a_verdict(tmp_path: Path) -> None:
    """Where no collective ends the wait, all ranks are stopped at the limit, and none is left."""
    body = f"open({str(tmp_path)!r} + f'/{{os.getpid()}}.pid', 'w'); time.sleep(600); return value"
    made = candidate(tmp_path, body, seconds=1.0)
    with pytest.raises(CandidateLost) as lost:
        call(made)
    assert lost.value.kind == "hung"
    assert "on ranks 0 and 1 within 1 s, and all ranks were stopped" in str(lost.value)
    ranks = [int(file.stem) for file in tmp_path.glob("*.pid")]
    assert len(ranks) == 2
    assert not any(psutil.pid_exists(rank) for rank in ranks)


JUDGE = """
    import sys, time
    import torch
    from conformance.calls.ranks import spanning
    from conformance.identification.opening import resolve_one

    if __name__ == "__main__":
        made = spanning(resolve_one(sys.argv[1])[0])
        made(*(torch.ones(1, 1, 4, 1) for _ in range(3)))
        print(made.function.processes._folder.name, flush=True)
        made(*(torch.zeros(1, 1, 4, 1) for _ in range(3)))
"""


def test_ranks_end_with_the_judge(tmp_path: Path) -> None:
    """A judge that is killed leaves no rank behind, not even one that waits, and no folder."""
    body = (
        f"open({str(tmp_path)!r} + f'/{{os.getpid()}}.pid', 'w'); "
        "value.sum() or time.sleep(600); return value"
    )
    candidate(tmp_path, body, seconds=300.0)
    (file,) = tmp_path.glob("ranks_*.py")
    judge = tmp_path / "judge.py"
    judge.write_text(textwrap.dedent(JUDGE), encoding="utf-8")
    with subprocess.Popen([sys.executable, judge, file], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        temporary = Path(process.stdout.readline().decode().strip())
        assert list(temporary.glob("*/*/*/stdout.log"))
        process.kill()
    ranks = [int(mark.stem) for mark in tmp_path.glob("*.pid")]
    assert len(ranks) == 2
    left = [psutil.Process(each) for each in ranks if psutil.pid_exists(each)]
    _, alive = psutil.wait_procs(left, 20)
    assert not alive
    assert not temporary.exists()


RETURNED: dict[str, object] = {
    "functional.all_reduce(value, 'sum', dist.group.WORLD)": [42.0, 44.0, 42.0, 44.0],
    "value.to_sparse()": "Tensor",
    "value.to(torch.complex128)": "complex128",
    "DTensor.from_local(value, init_device_mesh('cpu', (2,)))": "DTensor",
    "value.expand(2, 1, 2, 1)[:1]": [20.0, 21.0, 22.0, 23.0],
    "value if dist.get_rank() else None": "NoneType",
    "value if dist.get_rank() else value.numpy()": "ndarray",
}


@pytest.fixture(scope="module")
def returning(tmp_path_factory: pytest.TempPathFactory) -> Candidate:
    """A candidate that returns one of these: its keys hold which."""
    folder = tmp_path_factory.mktemp("returning")
    every = ", ".join(f"lambda: {returned}" for returned in RETURNED)
    body = f"return [{every}][int(key.flatten()[0])]()"
    made = candidate(folder, body, seconds=60.0)  # torch imports in the call
    (file,) = folder.glob("ranks_*.py")
    more = (
        "from torch.distributed import _functional_collectives as functional\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.tensor import DTensor\n"
    )
    file.write_text(more + textwrap.dedent(file.read_text(encoding="utf-8")), encoding="utf-8")
    return made


@pytest.mark.parametrize("returned", RETURNED)
def test_what_is_returned_arrives_or_is_named(returning: Candidate, returned: str) -> None:
    """Tensors arrive by their numbers, those still on the way too; what has none has its class."""
    query, got = torch.arange(4.0).reshape(1, 1, 4, 1), RETURNED[returned]
    which = torch.full_like(query, float(list(RETURNED).index(returned)))
    answer = returning(query, which, query + 20)
    if isinstance(got, str):
        assert got in f"{type(answer).__name__} {getattr(answer, 'dtype', '')}"
    else:
        assert answer.flatten().tolist() == got
