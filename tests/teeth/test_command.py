"""``conformance teeth`` at the command line: exit codes, files, hangs, interrupts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from workspaces import KERNEL, UNSCALED, write

from conformance.__main__ import run

MISTAKES = """
import os, time
import conformance
from attn import unscaled

@conformance.core()
def dies(query, key, value):
    os._exit(7)

@conformance.core()
def hangs(query, key, value):
    open("started", "w").close()
    time.sleep(600)

CAUGHT = [
    conformance.Mistake(name="unscaled", sentence="There is no scale.", primary="numerics.scale",
                        candidate=unscaled),
    conformance.Mistake(name="dies", sentence="It dies.", primary="shape.output", candidate=dies),
]
SLIPS = conformance.Mistake(name="slips", sentence="There is no scale.", primary="shape.output",
                            candidate=unscaled)
HANGS = conformance.Mistake(name="hangs", sentence="It hangs.", primary="shape.output",
                            candidate=hangs)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with mistakes and a correct kernel."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write(tmp_path, {"attn.py": KERNEL + UNSCALED, "mine.py": MISTAKES})
    return tmp_path


def record(folder: Path) -> Any:
    """The record that was written."""
    return json.loads((folder / "out.json").read_text(encoding="utf-8"))


def test_everything_caught(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, the files, and a candidate that dies is caught by its primary clause."""
    files = ["--json", "out.json", "--html", "out.html", "--markdown", "out.md"]
    correct = ["--correct", "attn.py:my_kernel", "--jobs", "2"]
    assert run(["teeth", "mine.py:CAUGHT", "--first", *correct, *files]) == 0
    out, err = capsys.readouterr()
    assert not err
    assert out.splitlines()[-1].startswith("2 of 2 mistakes caught, 2 by their primary clause")
    rows = {row["name"]: row for row in record(folder)["mistakes"]}
    assert {name: row["first"] for name, row in rows.items()} == {
        "unscaled": "numerics.scale",
        "dies": "shape.output",
    }
    assert "my_kernel" in [row["name"] for row in record(folder)["correct"]]
    assert "unscaled" in (folder / "out.html").read_text(encoding="utf-8")
    assert "| unscaled |" in (folder / "out.md").read_text(encoding="utf-8")


def test_what_slips_and_what_is_flagged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A primary clause that passes and a correct candidate that is none: exit code 1."""
    arguments = ["mine.py:SLIPS", "--correct", "attn.py:unscaled", "--json", "out.json"]
    assert run(["teeth", *arguments]) == 1
    out = capsys.readouterr().out
    assert "but not by its primary clause shape.output (passed)" in out
    assert "correct, but flagged: unscaled by numerics.golden" in out
    (slips,) = record(folder)["mistakes"]
    assert slips["clauses"]["numerics.golden"] == "failed"
    assert slips["complete"]


def test_bad_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A target that is missing, and a file that cannot be written, are one sentence each."""
    assert folder.is_dir()
    for arguments, sentence in (
        (["gone.py"], "there is no file or folder gone.py"),
        (["mine.py:SLIPS", "--html", "."], "--html"),
        (["mine.py:SLIPS", "--only", "x*"], "--only 'x*' matches no mistake"),
    ):
        assert run(["teeth", *arguments]) == 2
        out, err = capsys.readouterr()
        assert not out
        assert sentence in err
        assert err.count("\n") == 1


def test_an_interrupt_keeps_what_was_done(folder: Path) -> None:
    """Ctrl-C ends a hanging mistake at once, with 130 and a record of what was done."""
    command = [sys.executable, "-Im", "conformance", "teeth", "mine.py:HANGS", "--json", "out.json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    )
    while not (folder / "started").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "interrupted: 0 of 1 mistakes caught" in " ".join(out.split())
    assert record(folder)["interrupted"] is True
