"""Memory that is too much is noticed; hanging is told from a busy machine."""

from __future__ import annotations

import itertools
import re
import threading
import time
from pathlib import Path

import psutil
import pytest
from workspaces import KERNEL, write

import conformance
from conformance.__main__ import run
from conformance.running.workers import usage
from conformance.running.workers.usage import (
    MemoryLimit,
    usual_limit,
)

Capture = pytest.CaptureFixture[str]
LINUX = pytest.mark.skipif(not psutil.LINUX, reason="wall time is the limit elsewhere")
TAKES = KERNEL.replace(
    "    return attend(query, key, value)",
    """
    if query.shape[2] > 2:
        import time
        kept = bytearray(3 * 1024**3)
        kept[::4096] = bytes(len(kept[::4096]))
        time.sleep(60.0)
    return attend(query, key, value)""",
)


@pytest.mark.usefixtures("warm_workers")
def test_a_candidate_that_takes_too_much_is_stopped(folder: Path, capsys: Capture) -> None:
    """It crashes by saying how much it took; the next clause gets a worker of its own."""
    write(folder, {"attn.py": TAKES})
    words = ["--profile", "quick", "--only", "shape.output", "--max-memory", "2G"]
    assert run(["check", "attn.py", *words]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "took more than 2 GiB of memory and was stopped" in said


@pytest.mark.parametrize("text", ["much", "0", "-2G", "8X", ""])
def test_a_size_that_is_none_is_refused(text: str, capsys: Capture) -> None:
    """In a sentence, as any bad input; the judge in Python refuses the same."""
    assert run(["check", "attn.py", "--max-memory", text]) == 2
    assert "is no size of memory: write 8G or 500M" in capsys.readouterr().err
    with pytest.raises(conformance.UsageError, match="is no size of memory"):
        conformance.Judge(max_memory=text)


@pytest.mark.usefixtures("warm_workers")
def test_a_limit_below_what_a_worker_takes_is_refused(folder: Path, capsys: Capture) -> None:
    """The sentence says how much that is; nothing fails for it."""
    write(folder, {"attn.py": KERNEL})
    assert run(["check", "attn.py", "--max-memory", "1K"]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert re.search(r"a worker takes [\d.]+ MiB before .*, more than 1 KiB: allow it", said.err)


def test_shared_memory_alone_is_not_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """What many processes share counts once: the exact sum decides."""
    rough, exact, clock = 900, 300, iter([0.0, 1.0, 2.0])
    monkeypatch.setattr(
        usage, "used_memory", lambda _pid, exactly=False: exact if exactly else rough
    )
    limit = MemoryLimit(1, 500, clock=lambda: next(clock))
    assert not limit.is_exceeded()
    exact = 600
    assert limit.is_exceeded()


def test_a_count_that_takes_long_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact sum of many processes is waited for no longer than a moment, and counts later."""
    ready, moments = threading.Event(), itertools.count()

    def used(_pid: int, *, exactly: bool = False) -> int:
        return 900 if not exactly or ready.wait(20.0) else 0

    monkeypatch.setattr(usage, "used_memory", used)
    began = time.monotonic()
    limit = MemoryLimit(1, 500, clock=lambda: float(next(moments)))
    assert not limit.is_exceeded()
    assert time.monotonic() - began < 15.0
    ready.set()
    while not limit.is_exceeded():
        assert time.monotonic() - began < 15.0


def test_the_usual_limit_leaves_some_of_the_machine() -> None:
    """Three quarters of what there is, or of what the container may have."""
    assert 0 < usual_limit() <= 0.75 * psutil.virtual_memory().total
