"""Candidates in a process of their own: attacks, and what stays as it is."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import isolation_attacks
import psutil
import pytest

import conformance
from conformance.running.isolation import zygote
from conformance.running.workers.messages import RunOptions
from conformance.running.workers.pool import WorkerPool, warm_context
from conformance.session.checking import check

FILE = str(Path(isolation_attacks.__file__).resolve())
ANSWERS = ("numerics.golden", "state.unseen")
GRADIENTS = ("gradients.golden",)
ATTACKS = [
    name
    for name, entry in vars(isolation_attacks).items()
    if isinstance(entry, conformance.Candidate) and name != "honest"
]
# What only namespaces keep out of reach.
NEED_NAMESPACES = ("fills_its_folder", "priorities_of_others", "writes_into_processes")
OF_GRADIENTS = ("forges_gradients", "edits_upstream", "hides_its_history")
WHERE_RECORDED = "is_wrong_when_gradients_are_recorded"
pytestmark = [
    pytest.mark.skipif(
        bool(zygote.why_impossible()), reason="candidates are isolated on Linux alone"
    ),
    pytest.mark.usefixtures("warm_workers"),
]


@pytest.fixture(scope="module")
def judge() -> Iterator[conformance.Judge]:
    """A judge that isolates, which these tests share."""
    with conformance.Judge(timeout=20.0, isolated=True) as made:
        yield made


@pytest.fixture(scope="module")
def open_port() -> Iterator[int]:
    """A port of this machine that somebody listens at."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_passes(
    attack: str,
    judge: conformance.Judge,
    open_port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It fails, and neither files nor processes of it are left."""
    monkeypatch.chdir(tmp_path)
    Path("port").write_text(str(open_port), encoding="ascii")
    source = Path(FILE).read_bytes()
    only = GRADIENTS if attack in OF_GRADIENTS else ANSWERS
    only = ("state.grad-mode",) if attack == WHERE_RECORDED else only
    report = judge.check(f"{FILE}:{attack}", only=only, exitfirst=True, explain=False)
    held = report.record["isolated"]
    if attack in NEED_NAMESPACES and "of its own" not in held and report.conforms:
        pytest.skip(f"this system refuses namespaces: {held}")
    assert report.verdict == "fails", str(report)
    # Hypothesis keeps the constants of an editable install where the judge runs.
    assert {entry.name for entry in tmp_path.iterdir()} - {".hypothesis"} == {"port"}
    assert not Path("/tmp", isolation_attacks.FORGED).exists()  # noqa: S108 (where it was tried)
    assert Path(FILE).read_bytes() == source


@pytest.mark.parametrize("attack", ["sniffs_the_environment", "knows_the_questions"])
def test_an_attack_that_passes_where_candidate_and_judge_share_a_process(attack: str) -> None:
    """These two are right wherever they see that they are judged."""
    report = conformance.check(f"{FILE}:{attack}", only="numerics.golden", seed=0)
    assert report.conforms


def test_processes_that_a_candidate_leaves_are_ended_with_it(judge: conformance.Judge) -> None:
    """The daemon would go on for twenty seconds; nothing is below the zygote once all is told."""
    assert judge.check(f"{FILE}:leaves_a_daemon", only="shape.output").conforms
    nothing_is_left()


def nothing_is_left() -> None:
    """Wait until no process but the zygote is there."""
    (started,) = zygote.running()
    late = time.monotonic() + 10.0
    while left := [each for each in _below(started) if _lives(each)]:
        assert time.monotonic() < late, left
        time.sleep(0.05)


def _lives(process: psutil.Process) -> bool:
    """Whether a process is neither gone, as it may be by now, nor a zombie."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _below(number: int) -> list[psutil.Process]:
    return psutil.Process(number).children(recursive=True)


CORE = """
import conformance, math, torch


@conformance.core(masks=["keep", "bias"], causal="bottom-right", features=["scale", "out"])
def attend(query, key, value, *, keep=None, bias=None, causal=False, scale=None, out=None):
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if keep is not None:
        scores = scores.masked_fill(~keep, -math.inf)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
        scores = scores.masked_fill(~seen.tril(key.shape[-2] - query.shape[-2]), -math.inf)
    answer = scores.softmax(-1) @ value
    return answer if out is None else out.copy_(answer)
"""
LAYER = """
import conformance, torch


class attend(torch.nn.Module):
    def __init__(self, geometry, weights):
        super().__init__()
        self.heads, self.size = geometry.num_heads, geometry.head_size
        for role, tensor in vars(weights).items():
            own = None if tensor is None else torch.nn.Parameter(tensor.detach().clone())
            self.register_parameter(role, own)

    def forward(self, query, key, value):
        linear = torch.nn.functional.linear
        query = linear(query, self.q, self.q_bias).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key = linear(key, self.k, self.k_bias).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        value = linear(value, self.v, self.v_bias).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        mixed = (query @ key.mT * self.size**-0.5).softmax(-1) @ value
        return linear(mixed.transpose(1, 2).flatten(2), self.o, self.o_bias)


attend = conformance.layer(name="attend", features=["grad_weights"])(attend)
"""
ASKED = (
    *("shape.strided", "shape.rejects-*", "mask.golden", "mask.empty-row", "out.*"),
    *("gradients.golden", "gradients.weights", "state.*", "device.canaries"),
)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("source", [CORE, LAYER], ids=["core", "layer"])
def test_isolated_a_correct_candidate_gets_the_same_results(
    source: str, judge: conformance.Judge
) -> None:
    """Each status is the same from the same seed, but for the clauses that say why they are not."""
    report = judge.check_source(source, "attend", only=ASKED, seed=0)
    with conformance.Judge() as sharing:
        beside = sharing.check_source(source, "attend", only=ASKED, seed=0)
    others = {clause.id: clause.status for clause in beside.clauses}
    assert report.conforms
    assert beside.conforms
    left_out = 0
    for clause in report.clauses:
        if clause.reason.startswith("only without --isolated: "):
            left_out += 1
        else:
            assert clause.status == others[clause.id], clause
    assert left_out == (6 if source == CORE else 9)
    assert beside.record.get("isolated") is None
    assert report.record["isolated"].startswith("own process, ")


def test_the_seed_of_an_isolated_run_is_not_known_before(judge: conformance.Judge) -> None:
    """Two runs begin from two seeds, which their records hold."""
    reports = [judge.check(f"{FILE}:honest", only="shape.output") for _ in range(2)]
    first, second = (report.record["seed"] for report in reports)
    assert first != second


MODEL = """
import torch


class attend(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.heads = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.norm(x + self.heads(x, x, x, need_weights=False)[0])
"""


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import os\nos._exit(3)", r"ended its process \(exit status 3\) when it was loaded"),
        ("attend = 1 / 0", "ZeroDivisionError: division by zero"),
        (
            (
                "import conformance\n\nattend = conformance.core(semantics=conformance.Semantics("
                "score_mod=lambda score, *_: score))(lambda query, key, value: value)"
            ),
            "a score_mod is a function that the golden answer runs",
        ),
        (MODEL, "this candidate is a model, whose attentions the judge has to call alone"),
    ],
)
def test_what_cannot_be_isolated_is_refused(
    source: str, told: str, judge: conformance.Judge
) -> None:
    """In one sentence, as any target that cannot be used."""
    with pytest.raises(conformance.UsageError, match=told):
        judge.check_source(source, "attend")


ON_THE_WIRE = """
import sys
frame = sys._getframe()
while frame is not None and "Served" not in frame.f_globals:
    frame = frame.f_back
if frame is not None:
    send = frame.f_globals["send"]
    def sent(end, reply):
        for entry in reply.get("candidates", ()):
            entry["declaration"]["masks"], entry["declaration"]["causal"] = [], None
        send(end, reply)
    frame.f_globals["send"] = sent
"""
HIDDEN = ON_THE_WIRE.replace(
    """        for entry in reply.get("candidates", ()):
            entry["declaration"]["masks"], entry["declaration"]["causal"] = [], None
        send(end, reply)""",
    """        send(end, {**reply, "candidates": []} if "candidates" in reply else reply)""",
)
IDLE_CONTEXT = """
import torch


class attend(torch.nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.heads, self.inside = num_heads, torch.nn.Linear(embed_dim, 3 * embed_dim)
        self.outside = torch.nn.Linear(embed_dim, embed_dim)

    def forward(self, x, context=None):
        heads = (each.unflatten(-1, (self.heads, -1)) for each in self.inside(x).chunk(3, -1))
        query, key, value = (each.transpose(1, 2) for each in heads)
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return self.outside(mixed.transpose(1, 2).flatten(2))
"""


def test_a_target_that_hides_its_candidates_is_refused(judge: conformance.Judge) -> None:
    """Of several targets it would be the one that nobody judges."""
    source = "import conformance\nattend = conformance.core()(lambda query, key, value: value)\n"
    with pytest.raises(conformance.UsageError, match="a list of 0 candidates"):
        judge.check_source(source + HIDDEN, "attend")


def test_what_leaves_a_verdict_open_does_so_for_an_isolated_candidate(
    judge: conformance.Judge,
) -> None:
    """What is found where a target is loaded reaches the judge: a context changes no answer."""
    report = judge.check_source(IDLE_CONTEXT, "attend", only="shape.output", explain=False)
    (candidate,) = report.candidates
    assert (candidate.verdict, candidate.reason) == (
        "inconclusive",
        "context changes no answer: whatever is given, its tokens attend to themselves",
    )


def test_an_object_is_not_isolated(judge: conformance.Judge) -> None:
    """It is in the judge's process already."""
    with pytest.raises(conformance.UsageError, match="an object lives in this process"):
        judge.check(isolation_attacks.honest)


def test_what_a_candidate_does_to_its_process_is_a_verdict() -> None:
    """A crash and a hang are named as without isolation, and cost the next clause nothing."""
    body = "(query, key, value):\n    import os, signal, time\n    {}\n    return value"
    ends = {"crashed": "os.kill(os.getpid(), signal.SIGSEGV)", "hung": "time.sleep(60)"}
    with conformance.Judge(timeout=2.0, isolated=True) as impatient:
        for kind, end in ends.items():
            source = f"def attend{body.format(end)}"
            report = impatient.check_source(source, "attend", promises={}, only="shape.output")
            (clause,) = report.clauses
            assert clause.violation is not None
            assert clause.violation.kind == kind
    nothing_is_left()


def test_a_limit_on_memory_is_that_of_the_candidates_process() -> None:
    """What a worker may take limits the process that takes it; otherwise it has 8 GiB."""
    source = """
import torch
def attend(query, key, value):
    held = torch.empty(1 << 28) if query.numel() > 64 else None  # a gibibyte
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)
"""
    for most, status, limit in ((None, "passed", "8 GiB"), ("600M", "failed", "600 MiB")):
        with conformance.Judge(timeout=20.0, isolated=True, max_memory=most) as limited:
            report = limited.check_source(source, "attend", promises={}, only="shape.output")
        (clause,) = report.clauses
        assert clause.status == status
        assert f"memory ({limit})" in report.record["isolated"]
    assert clause.violation is not None
    assert (clause.violation.kind, "memory" in clause.violation.message) == ("raised", True)


ANY_MASK = """
def attend(query, key, value, *, keep=None, causal=False):
    return (query @ key.mT / max(query.shape[-1], 1) ** 0.5).softmax(-1) @ value
"""
PATCHED = """
import conformance as _conformance
_core = _conformance.core
_conformance.core = lambda **promises: _core({})
"""


@pytest.mark.parametrize("where", ["isolated", "beside"])
@pytest.mark.parametrize(
    "attack",
    ["", PATCHED.format(""), PATCHED.format("unchecked=['keep', 'causal']"), ON_THE_WIRE],
    ids=["honest", "promises nothing", "checks nothing", "lies on the wire"],
)
def test_what_is_promised_for_a_source_holds_whatever_the_source_does(
    attack: str, where: str, judge: conformance.Judge
) -> None:
    """Who ignores the masks that its judge has promised fails; its own words count for nothing."""
    promises = {"masks": ["keep"], "causal": "bottom-right"}
    with conformance.Judge(timeout=20.0) as sharing:
        report = (judge if where == "isolated" else sharing).check_source(
            ANY_MASK + attack,
            "attend",
            promises=promises,
            only="mask.golden",
            explain=False,
        )
    assert [clause.status for clause in report.clauses] == ["failed"]
    assert report.record["candidates"][0]["declaration"]["masks"] == ["keep"]


WITHOUT_NAMESPACES = """
import ctypes, os, pathlib, sys
user = os.getuid()
if ctypes.CDLL(None).unshare(0x10000000):
    sys.exit(77)
pathlib.Path("/proc/self/uid_map").write_text(f"0 {user} 1")
pathlib.Path("/proc/sys/user/max_user_namespaces").write_text("0")
os.execv(sys.executable, [sys.executable, "-m", "conformance", *sys.argv[1:]])
"""
CHAIN = """
import conformance, ctypes, os, time
NAME = {name!r}


@conformance.core()
def attend(query, key, value):
    if NAME and os.getpid() == attend.function.__globals__.setdefault("first", os.getpid()):
        globals()["NAME"] = None
        if os.fork() == 0:
            os.setsid()
            ctypes.CDLL(None).prctl(15, {name!r})
            until = time.monotonic() + 20.0
            while time.monotonic() < until:
                if os.fork():
                    os._exit(0)
            os._exit(0)
    return (query @ key.mT / max(query.shape[-1], 1) ** 0.5).softmax(-1) @ value
"""


def test_without_namespaces_what_was_started_ends_and_what_is_claimed_holds(
    tmp_path: Path,
) -> None:
    """A chain of processes, each of which forks the next, ends with its judge."""
    name = f"chain{os.getpid()}".encode()
    (tmp_path / "chain.py").write_text(CHAIN.format(name=name), encoding="ascii")
    command = [sys.executable, "-c", WITHOUT_NAMESPACES, "check", "--isolated", "chain.py"]
    done = subprocess.run(
        [*command, "--only", "shape.output", "--profile", "quick"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    if done.returncode == 77:
        pytest.skip("this system refuses namespaces to tests as well")
    held = " ".join(done.stdout.split())
    assert "1 conforms" in held, done.stderr
    assert "own process, no network, no local sockets, files read-only, no terminal" in held
    late = time.monotonic() + 5.0
    while left := [p for p in psutil.process_iter(["name"]) if p.info["name"] == name.decode()]:
        if not any(map(_lives, left)):
            break
        assert time.monotonic() < late, left
        time.sleep(0.05)


ODD = """
import torch
def attend(query, key, value):
    answer = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    return {}
"""


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("answer.to_sparse()", "the output is a torch.sparse_coo tensor, not a dense one"),
        ("answer.to('meta')", "the output is on the device meta where the inputs are on cpu"),
        ("torch.nested.nested_tensor([*answer])", "the output is a nested tensor, not a dense one"),
        (
            "torch.quantize_per_tensor(answer, 0.1, 0, torch.qint8)",
            "the output is a tensor of torch.qint8, not of a floating-point dtype",
        ),
    ],
)
def test_an_answer_that_is_no_dense_tensor_is_described(
    returned: str, told: str, judge: conformance.Judge
) -> None:
    """As in one process: the judge is told what it is, and why nobody reads its numbers."""
    source = ODD.format(returned)
    report = judge.check_source(
        source, "attend", promises={}, only="shape.output", explain=False, exitfirst=True
    )
    assert [clause.reason for clause in report.clauses] == [told]


CHILDREN = """
import os, time
def attend(query, key, value):
    for _ in range(4 if query.numel() > 64 else 0):
        if os.fork() == 0:
            held = bytearray(b"x") * (300 << 20)
            time.sleep(60)
            os._exit(0)
    if query.numel() > 64:
        time.sleep(15)
    return (query @ key.mT / max(query.shape[-1], 1) ** 0.5).softmax(-1) @ value
"""


def test_a_limit_on_memory_counts_what_a_candidate_starts() -> None:
    """Four children that hold 300 MiB each are more than 600 MiB, though none of them is."""
    with conformance.Judge(timeout=20.0, isolated=True, max_memory="600M") as limited:
        report = limited.check_source(
            CHILDREN, "attend", promises={}, only="shape.output", explain=False
        )
    (clause,) = report.clauses
    assert clause.violation is not None
    assert "took more than 600 MiB of memory with its children" in clause.violation.message


READER = """
import conformance, pathlib


def right(query, key, value):
    return (query @ key.mT / max(query.shape[-1], 1) ** 0.5).softmax(-1) @ value


@conformance.core()
def fails_first(query, key, value):
    return right(query, key, value) + 1.0


@conformance.core()
def reads(query, key, value):
    found = [path for path in pathlib.Path({db!r}).rglob("*") if path.is_file()]
    return right(query, key, value) + len(found)
"""


def test_no_database_tells_the_seed_of_an_isolated_run(
    tmp_path: Path,
) -> None:
    """What failed is written when no candidate is left: the next one finds an empty folder."""
    database = tmp_path / "db"
    file = tmp_path / "reader.py"
    file.write_text(READER.format(db=str(database)), encoding="ascii")
    options = RunOptions(
        targets=(f"{file}:fails_first", f"{file}:reads"),
        profile="quick",
        only=("numerics.golden",),
        isolated=True,
        databases=(str(database),),
        explain=False,
    )
    record = check(options, make_pool=partial(WorkerPool, context=warm_context()))
    assert [entry["verdict"] for entry in record["candidates"]] == ["fails", "conforms"]
    assert [path for path in database.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--compile"], "--compile compiles in the judge's process"),
        (["--device", "cuda:0"], "hands tensors over on the CPU, not on cuda:0"),
        (["--shard", "1/2"], "give --seed"),
    ],
)
def test_what_does_not_go_with_isolation_is_a_usage_error(options: list[str], told: str) -> None:
    """The command says what to drop, with exit code 2."""
    target = f"{FILE}:honest"
    command = [sys.executable, "-m", "conformance", "check", target, "--isolated", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert told in " ".join(done.stderr.split())


def test_the_page_lists_every_attack() -> None:
    """A row of docs/judge.md for each, by the name of its test."""
    page = Path(__file__).parents[2] / "docs" / "judge.md"
    section = page.read_text(encoding="utf-8").partition("| NAME |")[2].partition("\n\n")[0]
    assert re.findall(r"(?m)^\| `(\w+)` \|", section) == ATTACKS
