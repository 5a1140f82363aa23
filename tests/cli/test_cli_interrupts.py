"""What the command does when it is interrupted, and when nobody reads what it prints."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import psutil
import pytest
import watchfiles
from command_line import COMMAND, FEW, record
from view_records import of
from workspaces import KERNEL, UNSCALED, write

from conformance.base.record import record_text
from conformance.cli.check import Changes
from conformance.errors import UsageError

# No run that was interrupted takes so long: one that does was not.
LONGEST = 300  # seconds


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a process, or its worker, has made a file."""
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_a_valid_report(folder: Path, number: signal.Signals) -> None:
    """Ctrl-C ends the run with 130 and a record of what was done, which says so.

    The first two calls are the trial of one that is slow: a clause is asked from the third on.
    """
    body = (
        "    made = ('started', 'twice', 'once')\n"
        "    open(made[-1 - sum(map(os.path.exists, made[1:]))], 'w').close()\n"
        "    time.sleep(0.2)\n"
        "    return attend"
    )
    write(folder, {"attn.py": f"import os, time\n{KERNEL.replace('    return attend', body)}"})
    process = subprocess.Popen(
        [*COMMAND, "check", "attn.py", "--profile", "quick", "--json", "out.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Under nohup a SIGHUP is ignored, by what is started as well.
        preexec_fn=partial(signal.signal, number, signal.SIG_DFL),  # noqa: PLW1509
    )
    wait_for(folder / "started", process)
    process.send_signal(number)
    out, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 130
    assert "interrupted: the rest was not done" in out
    assert "Traceback" not in err
    report = record(folder)
    assert report["interrupted"] is True
    assert report["candidates"][0]["verdict"] == "inconclusive"
    assert not list(folder.glob("*.tmp"))


CALLS_END = """
import time
import torch
import conformance

calls = []


@conformance.core()
def unscaled(query, key, value):
    calls.append(1)
    if len(calls) == 40:
        open("started", "w").close()
        time.sleep(600)
    return (query @ key.mT).softmax(-1) @ value
"""


def test_an_interrupt_in_the_search_for_a_name_leaves_the_failure(folder: Path) -> None:
    """What was found before Ctrl-C is in the report as it was found, and decides the verdict."""
    write(folder, {"attn.py": CALLS_END})
    process = subprocess.Popen(
        [*COMMAND, "check", "attn.py", "--profile", "quick", "-x", "--json", "out.json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for(folder / "started", process)
    process.send_signal(signal.SIGINT)
    assert "unscaled" in process.communicate(timeout=LONGEST)[0]
    assert process.returncode == 130
    report = record(folder)
    assert (report["interrupted"], report["candidates"][0]["verdict"]) == (True, "fails")
    failed = [one for one in report["candidates"][0]["clauses"] if one["status"] == "failed"]
    assert [bool(one["counterexample"]) for one in failed] == [True]


def test_an_interrupt_while_loading(folder: Path) -> None:
    """An interrupt before anything is loaded leaves a valid record, too."""
    write(folder, {"attn.py": "import time\nopen('started', 'w').close()\ntime.sleep(600)\n"})
    process = subprocess.Popen(
        [*COMMAND, "check", "attn.py", "--json", "out.json"], stderr=subprocess.PIPE, text=True
    )
    wait_for(folder / "started", process)
    process.send_signal(signal.SIGINT)
    assert "Traceback" not in process.communicate(timeout=LONGEST)[1]
    assert process.returncode == 130
    assert record(folder)["candidates"] == []


INTERRUPTED_IMPORT = """
import runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            exec("signal.raise_signal(signal.SIGINT)", {{"signal": signal}})

sys.meta_path.insert(0, Finder())
sys.argv = ["conformance", "--help"]
runpy.run_module("conformance", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["conformance.base.record", "conformance.cli"])
def test_an_interrupt_while_the_command_itself_loads(module: str) -> None:
    """As early as that one line says so, and the code is 130: the signal does not end the process.

    The interrupt meets a text that is executed, as most of a dataclass is.
    """
    code = INTERRUPTED_IMPORT.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "conformance: interrupted\n")


def test_repeated_interrupts_do_not_cut_off_the_report(folder: Path) -> None:
    """Whoever presses Ctrl-C again and again gets the report of the first time."""
    body = "    open('started', 'w').close()\n    time.sleep(0.2)\n    return attend"
    write(folder, {"attn.py": f"import time\n{KERNEL.replace('    return attend', body)}"})
    process = subprocess.Popen(
        [*COMMAND, "check", "attn.py", "--profile", "quick", "--json", "out.json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(folder / "started", process)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    assert (process.returncode, process.communicate()[1]) == (130, "")
    assert record(folder)["interrupted"] is True


def printing(folder: Path) -> list[str]:
    """A command that prints, and need not load torch for that."""
    write(folder, {"out.json": record_text(of())})
    return [*COMMAND, "diff", "out.json", "out.json"]


def test_a_reader_that_leaves_early(folder: Path) -> None:
    """A closed pipe, as under ``head``, ends the program without a word."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        printing(folder), stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert not done.stderr


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "code"), [("unscaled", 1), ("my_kernel", 0)])
def test_a_reader_that_leaves_early_changes_no_verdict(folder: Path, name: str, code: int) -> None:
    """The exit code and the record are the run's, whoever stops reading its table."""
    write(folder, {"attn.py": KERNEL + UNSCALED})
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, "check", f"attn.py:{name}", *FEW, "--json", "out.json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (code, "")
    assert len(record(folder)["candidates"]) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_output_that_cannot_be_written(folder: Path) -> None:
    """A full disk is said in one sentence and is no mistake of the harness."""
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            printing(folder), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    sentence = "conformance: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, sentence)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("closed", [(0, 1, 2), (0,), (1,), (2,)])
def test_closed_standard_streams(folder: Path, closed: tuple[int, ...]) -> None:
    """A caller that closes standard streams, as some schedulers do, gets the same verdict."""
    write(folder, {"attn.py": KERNEL})
    program = (
        f"import os; [os.close(each) for each in {closed}]; "
        f"os.execv({COMMAND[0]!r}, {[*COMMAND, 'check', 'attn.py', *FEW, '--json', 'out.json']})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert record(folder)["candidates"][0]["verdict"] == "conforms"


def test_an_interrupt_while_a_watch_starts_says_nothing_else(folder: Path) -> None:
    """What all runs of a watch are forked from imports for seconds: it is ended, without a word."""
    write(folder, {"attn.py": KERNEL})
    process = subprocess.Popen(
        [*COMMAND, "check", "attn.py", *FEW, "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + LONGEST
    while not any("forkserver" in line for line in _commands_below(process.pid)):
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(0.5)
    started = psutil.Process(process.pid).children()
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=LONGEST)
    left = psutil.wait_procs(started, timeout=1)[1]  # it would go on importing for longer
    # Where no process collects orphans, an ended one stays as a zombie.
    assert all(child.status() == psutil.STATUS_ZOMBIE for child in left)
    _, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 130, err
    assert "KeyboardInterrupt" not in err


def _commands_below(pid: int) -> list[str]:
    """The command lines of a process' children."""
    lines = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            lines.append(" ".join(child.cmdline()))
    return lines


def test_an_interrupt_after_bad_input_is_an_interrupt(folder: Path) -> None:
    """A watch that waits for bad input to be mended has no verdict to end with."""
    write(folder, {"attn.py": "import nothing_of_that_name\n"})
    process = subprocess.Popen(
        [*COMMAND, "check", "attn.py", *FEW, "--watch"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while not process.stderr.readline().startswith("waiting"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LONGEST)
    assert process.returncode == 130


def test_a_watch_runs_again_and_ends_with_an_interrupt(folder: Path) -> None:
    """A file that cannot be imported ends no watch: when it is mended, it is judged."""
    write(folder, {"attn.py": "import nothing_of_that_name\n"})
    process = subprocess.Popen(
        [*COMMAND, "check", "attn.py", *FEW, "--watch", "--json", "out.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "nothing_of_that_name" in process.stderr.readline()
    assert (process.stderr.readline(), process.stderr.readline()[:7]) == ("\n", "waiting")
    write(folder, {"attn.py": KERNEL})
    wait_for(folder / "out.json", process)
    assert (process.stderr.readline(), process.stderr.readline()[:7]) == ("\n", "waiting")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONGEST)
    # One change may be told twice: then the signal ends the run that has begun again.
    assert process.returncode in (0, 130), err
    assert "Traceback" not in err
    assert "my_kernel (core, attn.py:my_kernel): conforms" in out


def test_a_change_ends_the_run_of_what_was_there_before(folder: Path) -> None:
    """What hangs, and is mended meanwhile, is judged anew at once and not after its time limit."""
    write(folder, {"attn.py": "while True:\n    pass\n" + KERNEL})
    process = subprocess.Popen(
        [*COMMAND, "check", "attn.py", *FEW, "--watch", "--timeout", "600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ending = threading.Timer(LONGEST, process.kill)  # so that no line is waited for without end
    ending.start()
    try:
        while not any("forkserver" in line for line in _commands_below(process.pid)):
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(3)
        write(folder, {"attn.py": KERNEL})
        assert process.stderr is not None
        told = iter(process.stderr.readline, "")
        said = "".join(takewhile(lambda line: not line.startswith("waiting"), told))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LONGEST)
    finally:
        ending.cancel()
        process.kill()
    assert "a file changed: it is judged anew" in said
    assert "my_kernel (core, attn.py:my_kernel): conforms" in out
    assert "Traceback" not in err


def test_a_watch_that_cannot_wait_for_changes_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the system has no room for another watched folder: nothing is waited for."""

    def refusing(*_folders: Path, **_options: Any) -> Any:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(watchfiles, "watch", refusing)
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(UsageError, match=r"cannot wait for changes: .*no space"):
        Changes([str(folder)]).__enter__()
    assert signal.getsignal(signal.SIGUSR1) is before
