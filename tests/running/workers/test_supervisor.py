from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from workspaces import KERNEL, write

from conformance.base.files import SCRATCH
from conformance.base.patience import ProcessState
from conformance.base.profile import PROFILES
from conformance.base.results import ClauseResult
from conformance.errors import UsageError
from conformance.running.clause_run import PlannedClause
from conformance.running.workers.messages import Order, RunOptions
from conformance.running.workers.supervisor import Supervisor, start_process

pytestmark = pytest.mark.usefixtures("warm_workers")

CLAUSES = ("shape.output", "shape.dtype", "shape.strided", "shape.expanded", "mask.causal")


def kernel(body: str) -> str:
    """A candidate that does something on queries longer than two, and attends."""
    return f"""
import os, signal, sys, time
{
        KERNEL.replace(
            "    return attend(query, key, value)",
            '''
    if query.shape[2] > 2:
        '''
            + body
            + '''
    return attend(query, key, value)''',
        )
    }"""


def results(
    *targets: str, timeout: float = 20.0, only: tuple[str, ...] = CLAUSES
) -> list[list[ClauseResult]]:
    """The results of each candidate of the targets."""
    options = RunOptions(targets=targets, profile="quick", only=only)
    with Supervisor(options, timeout=timeout) as supervisor:
        supervisor.start()
        loaded = supervisor.load()
        return [list(supervisor.run_candidate(index)) for index in range(len(loaded))]


def test_a_correct_candidate_runs_through(folder: Path) -> None:
    """What conforms passes, what does not apply says why, and what it prints disturbs nothing."""
    write(folder, {"attn.py": kernel("print('noise'); print('more', file=sys.stderr)")})
    ((*ran, causal),) = results("attn.py")
    assert [result.status for result in ran] == ["passed"] * 4
    assert (causal.status, causal.reason) == ("not-applicable", "no causal flag is declared")


def test_a_crash_is_a_verdict(folder: Path) -> None:
    """A candidate that kills its process fails the clause, with the problem that did it."""
    body = "print('oh no'); os.kill(os.getpid(), signal.SIGSEGV)"
    write(folder, {"attn.py": kernel(body), "good.py": KERNEL})
    crashed, good = results("attn.py", "good.py")
    assert [result.status for result in crashed] == [
        "failed", "failed", "failed", "untestable", "not-applicable",
    ]  # fmt: skip
    first = crashed[0]
    assert first.violation is not None
    assert first.violation.kind == "crashed"
    assert first.violation.message == (
        "the candidate killed its process (SIGSEGV), after printing 'oh no'"
    )
    assert first.counterexample is not None
    assert first.counterexample["problem"]["geometry"]["query_length"] > 2
    assert crashed[3].reason == "not run: the candidate crashed in 3 clauses in a row"
    assert {result.status for result in good} == {"passed", "not-applicable"}


def test_an_exit_is_a_verdict(folder: Path) -> None:
    """A candidate that ends its process without an exception fails with its exit status."""
    write(folder, {"attn.py": kernel("os._exit(7)")})
    ((result,),) = results("attn.py", only=("shape.output",))
    assert result.reason == "the candidate ended its process (exit status 7)"


def test_a_hang_is_a_verdict(folder: Path) -> None:
    """A candidate that does not return is stopped in time, and the next clause gets its turn."""
    write(folder, {"attn.py": kernel("time.sleep(600)")})
    (hung,) = results("attn.py", timeout=1.0, only=("shape.output",))
    assert hung[0].violation is not None
    assert hung[0].violation.kind == "hung"
    assert hung[0].violation.message == "the candidate gave no answer within 1 s and was stopped"
    assert hung[0].counterexample is not None


DOUBLED = KERNEL.replace("return attend(query,", "return attend(2 * query,")


def called(body: str) -> str:
    """A wrong candidate that does something in its fortieth call and in all after it."""
    return "import os, sys, time\nCALLS = []\n" + DOUBLED.replace(
        "    return attend",
        f"    CALLS.append(1)\n    if len(CALLS) > 40: {body}\n    return attend",
    )


def test_a_slow_candidate_is_named_and_does_not_hang(folder: Path) -> None:
    """The limit is that of a call: the search for a name makes many and may take longer."""
    slow = DOUBLED.replace("    return attend", "    time.sleep(0.02)\n    return attend")
    write(folder, {"attn.py": f"import time\n{slow}"})
    ((result,),) = results("attn.py", timeout=1.0, only=("numerics.scale",))
    assert result.violation is not None
    assert result.violation.kind == "value"
    assert result.diagnosis[0]["name"] == "scores: doubled"
    assert result.seconds > 1.0, "the whole took no longer than a call may: it proves nothing"


def test_a_failure_is_told_while_its_cause_is_looked_for(folder: Path) -> None:
    """Before the candidate has been called for that: this one then ends its process."""
    write(folder, {"attn.py": called("os._exit(3)")})
    told: list[tuple[str, str]] = []
    options = RunOptions(targets=("attn.py",), profile="quick", only=("numerics.scale",))
    with Supervisor(options, timeout=20.0) as supervisor:
        supervisor.start()
        (loaded,) = supervisor.load()
        supervisor.on_failure = lambda failing, slug: told.append((failing.name, slug))
        list(supervisor.run_candidate(0))
    assert told == [(loaded.name, "numerics.scale")]


@pytest.mark.parametrize(
    ("body", "end"),
    [
        ("os._exit(3)", "the candidate ended its process (exit status 3)"),
        (
            "time.sleep(600)",
            "the candidate gave no answer within 3 s and was stopped; --timeout sets the limit",
        ),
    ],
)
def test_a_failure_that_was_found_stays(folder: Path, body: str, end: str) -> None:
    """What hangs or dies when it is called again has failed by the wrong answer that it gave."""
    write(folder, {"attn.py": called(body)})
    ((result,),) = results("attn.py", timeout=3.0, only=("numerics.scale",))
    assert result.violation is not None
    assert result.violation.kind == "value"
    assert result.reason == result.violation.message
    assert result.reason.endswith(f"; in the search for its cause {end}")
    assert result.counterexample is not None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit('bye')", "raised SystemExit: bye (attn.py:16)"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt (attn.py:16)"),
        ("os.kill(os.getpid(), signal.SIGINT)", ""),
    ],
)
def test_ends_that_are_exceptions_are_the_candidates(folder: Path, body: str, said: str) -> None:
    """SystemExit and KeyboardInterrupt out of a candidate fail it; a SIGINT it sends is ignored."""
    write(folder, {"attn.py": kernel(body)})
    ((result,),) = results("attn.py", only=("shape.output",))
    assert (result.violation.message if result.violation else "") == said


LOADING = {
    "dies": ("import os; os._exit(3)", "loading attn.py ended its process (exit status 3)"),
    "hangs": (
        "import time; time.sleep(600)",
        "loading attn.py gave no answer within 3 s and was stopped; --timeout sets the limit",
    ),
    "interrupts": (
        "raise KeyboardInterrupt",
        "loading attn.py raised KeyboardInterrupt (attn.py:1)",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), LOADING.values(), ids=LOADING.keys())
def test_loading_that_goes_wrong_is_refused(folder: Path, text: str, sentence: str) -> None:
    """A target that hangs, dies or interrupts while it is imported is bad input."""
    write(folder, {"attn.py": text})
    with pytest.raises(UsageError) as caught:
        results("attn.py", timeout=1.5)
    assert str(caught.value) == sentence


def test_a_builder_that_dies_is_a_verdict(folder: Path) -> None:
    """A layer whose builder kills the process fails its clauses; it is not bad input."""
    write(
        folder,
        {
            "attn.py": """
            import os
            import conformance
            @conformance.layer()
            def dies(geometry, weights):
                os._exit(9)
            """
        },
    )
    ((result,),) = results("attn.py", only=("shape.output",))
    assert result.violation is not None
    assert result.violation.kind == "crashed"


@pytest.mark.parametrize(
    "then", [pytest.param("time.sleep(600)", marks=pytest.mark.nightly), "pass", "os._exit(1)"]
)
def test_children_of_a_candidate_are_ended_too(folder: Path, then: str) -> None:
    """What a candidate has started does not outlive the run, whether it hangs, answers or dies."""
    start = "open('pid', 'w').write(str(subprocess.Popen(['sleep', '600']).pid))"
    body = f"import subprocess; os.path.exists('pid') or {start}; {then}"
    write(folder, {"attn.py": kernel(body)})
    results("attn.py", timeout=5.0, only=("shape.output",))
    pid = int((folder / "pid").read_text(encoding="utf-8"))
    until = time.monotonic() + 10.0
    while _is_running(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _is_running(pid)


def _is_running(pid: int) -> bool:
    """Whether a process has not ended: one may not yet be collected by the first of the system."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def test_a_forked_copy_of_the_worker_says_nothing(folder: Path) -> None:
    """A candidate that forks and lets both copies return is answered for once."""
    write(folder, {"attn.py": kernel("os.fork()")})
    ((result,),) = results("attn.py", only=("shape.output",))
    assert result.status == "passed"
    assert result.examples >= PROFILES["quick"].examples


def test_signals_are_let_through_again(folder: Path) -> None:
    """Starting a worker leaves the caller's own signals as they were."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    write(folder, {"attn.py": KERNEL})
    results("attn.py", only=("shape.output",))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == before


def test_too_many_hangs_in_all_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that hangs now and then is left alone after eight clauses that hung."""
    planned = [
        PlannedClause(
            id=f"own.{n}", family="own", level="MUST", dtype="float32", device="cpu", reason=""
        )
        for n in range(30)
    ]
    supervisor = Supervisor(RunOptions(targets=()))
    loaded = [SimpleNamespace(planned=planned)]
    monkeypatch.setattr(supervisor, "_loaded", loaded)

    def run(_index: int, number: int, _order: Order, _limit: float) -> ClauseResult:
        if number % 2:
            return planned[number].result("passed")
        return planned[number].failure("hung", "the graph gave no answer", None)

    monkeypatch.setattr(supervisor, "_run", run)
    outcomes = [(result.status, result.reason) for result in supervisor.run_candidate(0)]
    assert [status for status, _ in outcomes[:15]] == ["failed", "passed"] * 7 + ["failed"]
    assert outcomes[15:] == [("untestable", "not run: the candidate hung in 8 clauses")] * 15


@pytest.mark.parametrize(("per_reading", "status"), [(0.0, "passed"), (0.5, "failed")])
def test_who_gets_no_processor_is_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, per_reading: float, status: str
) -> None:
    """Wall time alone hangs nobody: a call twice as long as its limit passes while it starves.

    The same call is hung if its threads have used the limit meanwhile.
    """
    readings = count()

    def read(_pid: int) -> ProcessState:
        return ProcessState(seconds={(1, 1): per_reading * next(readings)}, is_runnable=True)

    slow = "if os.path.exists('slow'): os.remove('slow'); time.sleep(2)"
    write(folder, {"attn.py": kernel(slow)})
    options = RunOptions(targets=("attn.py",), profile="quick", only=("shape.output",))
    with Supervisor(options) as supervisor:
        supervisor.start()
        supervisor.load()
        monkeypatch.setattr("conformance.running.workers.supervisor.process_state", read)
        supervisor._timeout = 1.0
        (folder / "slow").touch()  # trial calls while loading were fast
        (result,) = supervisor.run_candidate(0)
    assert result.status == status
    assert (result.violation is None) or result.violation.kind == "hung"


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """No worker imports the script that started it: without ``if __name__`` it runs once."""
    script = """
import conformance

print("begins")
print(conformance.check("attn.py", only="shape.output").verdict)
"""
    write(tmp_path, {"attn.py": KERNEL, "run.py": script})
    done = subprocess.run(
        [sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["begins", "conforms"], done.stderr


FAULTY = """
from dataclasses import dataclass

from conformance.running.workers.messages import Loaded
from conformance.running.workers.planning import plan_targets


@dataclass
class Faulty:
    plan: object

    def loaded(self) -> Loaded:
        return self.plan.loaded()


def load(options, tell):
    return [Faulty(plan) for plan in plan_targets(options, tell)]
"""


def test_a_fault_of_the_harness_is_no_crash_of_the_candidate(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a worker fails at something of its own, that is an error and no verdict."""
    monkeypatch.syspath_prepend(str(folder))
    write(folder, {"attn.py": KERNEL, "faulty.py": FAULTY})
    options = RunOptions(
        targets=("attn.py",), profile="quick", only=("shape.output",), loader="faulty:load"
    )
    with Supervisor(options, timeout=20.0) as supervisor:
        supervisor.start()
        supervisor.load()
        (result,) = supervisor.run_candidate(0)
    assert result.status == "error"
    assert "has no attribute 'planned'" in result.reason


def test_what_a_worker_leaves_in_its_folder_is_removed_with_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is killed removes nothing itself, nor does one that a warm process has forked."""
    temporary = folder / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    body = f"tempfile.mkdtemp(dir=os.environ['{SCRATCH}']); os._exit(7)"
    write(folder, {"attn.py": f"import tempfile{kernel(body)}", "good.py": KERNEL})
    (crashed,), (good,) = results("attn.py", "good.py", only=("shape.output",))
    assert (crashed.status, good.status) == ("failed", "passed")
    assert not list(temporary.glob("conformance-*"))


def test_a_worker_whose_supervisor_is_killed_removes_its_folder(folder: Path) -> None:
    """It ends, too, in the midst of a call."""
    write(folder, {"attn.py": kernel("open('calling', 'w').close(); time.sleep(60)")})
    temporary = folder / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "conformance", "check", "attn.py", "--only", "shape.output"]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(temporary)}) as run:
        late = time.monotonic() + 60.0
        while not (folder / "calling").exists():
            assert time.monotonic() < late
            time.sleep(0.05)
        assert list(temporary.glob("conformance-*"))
        run.kill()
    while list(temporary.glob("conformance-*")):
        assert time.monotonic() < late
        time.sleep(0.05)


def written_to_sockets(sent: bytes) -> str:
    """A line that writes to each socket of its process."""
    return (
        f"[os.write(fd, {sent!r}) for fd in range(3, 64) if os.path.exists(f'/proc/self/fd/{{fd}}')"
        " and os.readlink(f'/proc/self/fd/{fd}').startswith('socket:')]"
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it looks for them in /proc")
@pytest.mark.parametrize("sent", [b"cno_such_module\nname\n.", b"not pickled", b"N.", b"K\x01."])
def test_who_writes_over_the_workers_messages_gets_a_verdict(folder: Path, sent: bytes) -> None:
    """As a library does that takes file descriptor 3 for its own; the next candidate is judged."""
    body = written_to_sockets(len(sent).to_bytes(4, "big") + sent)
    write(folder, {"attn.py": kernel(body), "good.py": KERNEL})
    (garbled,), (good,) = results("attn.py", "good.py", only=("shape.output",))
    assert (garbled.status, good.status) == ("failed", "passed")
    assert garbled.violation is not None
    assert garbled.violation.kind == "crashed"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it looks for them in /proc")
def test_half_a_message_is_not_waited_for_without_end(folder: Path) -> None:
    """What is printed to descriptor 3 reads as the length of a message that never comes whole."""
    write(folder, {"attn.py": kernel(written_to_sockets(b"printed here")), "good.py": KERNEL})
    began = time.monotonic()
    (half,), (good,) = results("attn.py", "good.py", timeout=2.0, only=("shape.output",))
    assert (half.status, good.status) == ("failed", "passed")
    assert half.violation is not None
    assert half.violation.kind == "hung"
    assert time.monotonic() - began < 60.0


def test_what_forks_workers_may_have_been_killed() -> None:
    """Its end is seen after a moment: a start is tried again, and what lasts is raised."""

    class Process:
        def __init__(self, failures: int) -> None:
            self.left = failures

        def start(self) -> None:
            self.left -= 1
            if self.left >= 0:
                raise (EOFError, ConnectionRefusedError)[self.left % 2]

    once: Any = Process(3)
    never: Any = Process(1000)
    start_process(once)
    assert once.left == -1
    with pytest.raises(ConnectionError):
        start_process(never)
