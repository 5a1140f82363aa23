"""The findings under docs/findings are still there, each shown by its own script."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from _paths import CHECKOUT

from survey import environment, library

FOLDER = CHECKOUT / "docs" / "findings"
SCRIPTS = sorted(FOLDER.glob("*.py"))
# What is imported of ours, to make a library importable.
HELPER = "cpu_torchvision"
EVERY = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


def surveyed(script: Path) -> str:
    """The library of the survey in whose environment a script runs, "" for ours."""
    match = re.search(
        r"^# Runs in the environment of the survey for (\w+)\.$",
        script.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return match[1] if match else ""


OURS = [script for script in SCRIPTS if not surveyed(script)]
THEIRS = [script for script in SCRIPTS if surveyed(script)]


@pytest.mark.nightly
@pytest.mark.parametrize("script", THEIRS, ids=lambda path: path.stem)
def test_a_script_shows_the_finding_of_a_library(script: Path, tmp_path: Path) -> None:
    """It exits 0 in the environment that the survey makes for its library."""
    one = library.read(surveyed(script))
    paths = {**os.environ, "PYTHONPATH": str(library.FOLDER)}
    with environment.environment(one, tmp_path, keep=False) as python:
        run = subprocess.run(
            [python, script], capture_output=True, text=True, env=paths, timeout=600, check=False
        )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.strip()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("script", OURS, ids=lambda path: path.stem)
def test_a_script_shows_its_finding(script: Path) -> None:
    """It exits 0, which it does only while the defect is there, and says what it saw."""
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.strip()


@EVERY
def test_a_script_needs_nothing_of_the_harness(script: Path) -> None:
    """It imports its library, what that pins, torch, jax, onnx, onnxruntime and numpy."""
    imported = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).split(".")[0])
    name = surveyed(script)
    pins = library.read(name).pins if name else ()
    theirs = {one for one in imported if name and one.startswith(name)}
    theirs |= {pin.partition("==")[0].replace("-", "_") for pin in pins}
    known = {HELPER, "jax", "onnx", "onnxruntime", "numpy", "torch", *sys.stdlib_module_names}
    assert imported <= known | theirs


def test_every_finding_is_described_and_listed() -> None:
    """Each script has a page of its name, and the list links each page."""
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert SCRIPTS
    for script in SCRIPTS:
        page = script.with_suffix(".md")
        assert script.name in page.read_text(encoding="utf-8")
        assert f"({page.name})" in listed
    assert len(list(FOLDER.glob("0*.md"))) == len(SCRIPTS)
