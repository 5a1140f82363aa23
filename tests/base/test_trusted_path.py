"""Where the judge finds modules: in no folder that a candidate may lie in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.base.trusted_path import looking_only_there, trusted_path, whole_path
from conformance.running.isolation import zygote

# Each says that it ran, and is then what it hides. The last is no module of any library's here.
SHADOWED = ("safetensors", "psutil", "rich", "tomllib", "gmpy2")
SHADOW = """
import importlib, os, pathlib, sys
pathlib.Path({log!r}).open("a").write(__name__ + "\\n")
path, here = sys.path[:], os.path.dirname(os.path.abspath(__file__))
sys.path = [each for each in path if os.path.abspath(each or ".") != here]
del sys.modules[__name__]
sys.modules[__name__] = importlib.import_module(__name__)
sys.path = path
"""
WRONG = """
import conformance


@conformance.core()
def wrong(query, key, value):
    return (query @ key.mT).softmax(-1) @ value
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with a candidate, a script, and files that are called as libraries are."""
    for name in SHADOWED:
        text = SHADOW.format(log=str(tmp_path / "ran"))
        (tmp_path / f"{name}.py").write_text(text, encoding="ascii")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="ascii")
    (tmp_path / "script.py").write_text("import conformance\nconformance.Judge\n", encoding="ascii")
    return tmp_path


def ran(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """The exit code of a command in a folder, and the files there that were run as libraries."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    log = folder / "ran"
    return done.returncode, log.read_text(encoding="ascii").split() if log.exists() else []


@pytest.mark.skipif(bool(zygote.why_impossible()), reason="candidates are isolated on Linux alone")
def test_what_lies_beside_an_isolated_candidate_does_not_run_in_its_judge(hostile: Path) -> None:
    """Neither in the command, nor in its worker, nor where candidates' processes are forked."""
    options = ("--only", "numerics.golden", "--profile", "quick")
    command = ("-m", "conformance", "check", "--isolated", "wrong.py", *options)
    assert ran(hostile, *command) == (1, [])


def test_a_script_has_libraries_that_do_not_lie_beside_it(hostile: Path) -> None:
    """What the harness imports when it is first used is what it imports elsewhere."""
    assert ran(hostile, "script.py") == (0, [])


def test_processes_that_start_meanwhile_look_there_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards the path is what it was, and so is the variable."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before = sys.path[:]
    with looking_only_there():
        assert str(tmp_path) not in sys.path
        assert "PYTHONPATH" not in os.environ
    assert sys.path == before
    assert str(tmp_path) == os.environ["PYTHONPATH"]
    assert str(tmp_path) in whole_path()
    assert str(tmp_path) not in trusted_path()
