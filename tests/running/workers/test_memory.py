"""A worker that takes too much memory is stopped, and the verdict says so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psutil
import pytest
from command_line import COMMAND
from workspaces import KERNEL, write

import conformance
from conformance.running.workers import memory
from conformance.running.workers.memory import MemoryLimit, usual_limit

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


def test_a_candidate_that_takes_too_much_is_stopped(folder: Path) -> None:
    """It crashes by saying how much it took; the next clause gets a worker of its own."""
    write(folder, {"attn.py": TAKES})
    done = subprocess.run(
        [*COMMAND, "check", "attn.py", "--only", "shape.output", "--max-memory", "2G"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "took more than 2 GiB of memory and was stopped" in " ".join(done.stdout.split())


@pytest.mark.parametrize("text", ["much", "0", "-2G", "8X", ""])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    """In a sentence, as any bad input; the judge in Python refuses the same."""
    done = subprocess.run(
        [*COMMAND, "check", "attn.py", "--max-memory", text],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "is no size of memory: write 8G or 500M" in done.stderr
    with pytest.raises(conformance.UsageError, match="is no size of memory"):
        conformance.Judge(max_memory=text)


def test_a_limit_below_what_a_worker_takes_is_refused(folder: Path) -> None:
    """The sentence says how much that is; nothing fails for it."""
    write(folder, {"attn.py": KERNEL})
    done = subprocess.run(
        [*COMMAND, "check", "attn.py", "--max-memory", "1K"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(r"a worker takes \d+ MiB before .*, more than 1 KiB: allow it", done.stderr)


def test_shared_memory_alone_is_not_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """What many processes share counts once: the exact sum decides."""
    rough, exact, clock = 900, 300, iter([0.0, 1.0, 2.0])
    monkeypatch.setattr(
        memory, "used_memory", lambda _pid, exactly=False: exact if exactly else rough
    )
    limit = MemoryLimit(1, 500, clock=lambda: next(clock))
    assert not limit.is_exceeded()
    exact = 600
    assert limit.is_exceeded()


def test_the_usual_limit_leaves_some_of_the_machine() -> None:
    """Three quarters of what there is, or of what the container may have."""
    assert 0 < usual_limit() <= 0.75 * psutil.virtual_memory().total
