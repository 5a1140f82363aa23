"""What installed distributions bring along shows up everywhere, or is refused in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from third_party import CLAUSES, MISTAKES, distribution, example
from workspaces import KERNEL, write

from conformance.clauses.registry import specification_hash

COMMAND = (sys.executable, "-m", "conformance")
SLUG = "house.twice-the-values"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The distribution of docs/extending.md, and a kernel to check."""
    points = {CLAUSES: "house = thirdparty", MISTAKES: "house = thirdparty:MISTAKES"}
    write(tmp_path / "work", {"attn.py": KERNEL})
    return distribution(tmp_path, example(), points)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command beside the distribution, which lies on Python's path."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    work = folder / "work"
    work.mkdir(exist_ok=True)
    return subprocess.run(
        command,
        cwd=work,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def record(folder: Path) -> Any:
    """The record that a command has written."""
    return json.loads((folder / "work" / "out.json").read_text(encoding="utf-8"))


def test_it_is_listed_and_explained(installed: Path) -> None:
    """``list`` and ``explain`` have the clause after the specification's own, with its origin."""
    listed = json.loads(run(installed, *COMMAND, "list", "--json").stdout)
    assert listed[-1]["id"] == SLUG
    assert [entry["origin"] for entry in listed] == ["" for _ in listed[1:]] + ["thirdparty"]
    explained = run(installed, *COMMAND, "explain", SLUG).stdout
    for text in ("twice as large give", "level: MUST", "comes from: thirdparty", "linear in"):
        assert text in explained


def test_it_is_checked_and_selected(installed: Path) -> None:
    """``check`` runs it in the worker; the fingerprint knows it, and failures their mistakes."""
    halved = KERNEL.replace("** -0.5", "** -0.5 / 2")
    write(installed / "work", {"halved.py": halved})
    selected = ("--only", "house.*", "--only", "numerics.scale", "--profile", "quick")
    done = run(
        installed, *COMMAND, "check", "attn.py", "halved.py", *selected, "--json", "out.json"
    )
    assert done.returncode == 1, done.stderr
    with_it = record(installed)
    right, wrong = (
        {clause["id"]: clause for clause in entry["clauses"]} for entry in with_it["candidates"]
    )
    assert (right[SLUG]["family"], right[SLUG]["status"]) == ("house", "passed")
    assert right[SLUG]["requirement"].startswith("Values that are twice")
    assert with_it["tool"]["specification"] != specification_hash()  # here, without it
    (entry,) = wrong["numerics.scale"]["diagnosis"]
    assert entry["name"] == "house-half-scale"
    assert entry["text"] == "The scale is half of what it should be."


def test_teeth_runs_clause_and_mistakes(installed: Path) -> None:
    """The catalogue has the mistakes, and the clause is judged by whether it catches one."""
    done = run(installed, *COMMAND, "teeth", "--first", "--only", "house-*", "--json", "out.json")
    assert (done.returncode, done.stderr) == (0, "")
    found = record(installed)
    assert [row["name"] for row in found["mistakes"]] == [
        "house-values-normalised",
        "house-half-scale",
    ]
    assert {row["origin"] for row in found["mistakes"]} == {"thirdparty 1.0"}
    (clause,) = [entry for entry in found["clauses"] if entry["id"] == SLUG]
    assert clause["caught"] == ["house-values-normalised"]
    assert not [row for row in found["correct"] if row["flagged"]]


BREAKING = """
from conformance.diagnosis import Diagnostician

def explain(*_arguments):
    raise MemoryError("no room")

Diagnostician.explain = explain
"""


def test_a_diagnosis_that_breaks_costs_no_verdict(tmp_path: Path) -> None:
    """What brings the search for a name down leaves the failure as it is in the record."""
    installed = distribution(tmp_path, BREAKING, {CLAUSES: "house = thirdparty"})
    write(installed / "work", {"halved.py": KERNEL.replace("** -0.5", "** -0.5 / 2")})
    options = ("--profile", "quick", "--only", "numerics.scale", "--json", "out.json")
    done = run(installed, *COMMAND, "check", "halved.py", *options)
    assert (done.returncode, done.stderr) == (1, "")
    (clause,) = record(installed)["candidates"][0]["clauses"]
    assert (clause["status"], clause["diagnosis"][0]["name"]) == ("failed", "unknown-mistake")
    assert "ended with an error of ours, MemoryError: no room" in clause["diagnosis"][0]["text"]
    assert clause["counterexample"]


def test_pytest_collects_it(installed: Path) -> None:
    """``pytest --pyargs conformance`` has a test for it."""
    options = ("-q", "-p", "no:cacheprovider", "-k", "house", "-rA")
    options = (*options, "--conformance-profile", "quick")
    target = ("--pyargs", "conformance", "--candidate", "attn.py:my_kernel")
    done = run(installed, sys.executable, "-m", "pytest", *options, *target)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SLUG}[my_kernel]" in done.stdout


CLAUSE = """
import conformance

@conformance.clause({slug!r}, level={level!r}, sentence={sentence!r}, source="here",
                    space=conformance.Space({space}))
def check(subject, problem):
    return conformance.Finding()
"""
GOOD = {"slug": "house.holds", "level": "MUST", "sentence": "It holds.", "space": ""}
BROKEN = {
    "an import that fails": ("import no_such_module\n", "No module named 'no_such_module'"),
    "a script": ("raise SystemExit(3)\n", "SystemExit: 3"),
    "a slug that is taken": (
        CLAUSE.format(**{**GOOD, "slug": "shape.output"}),
        "two clauses are called shape.output",
    ),
    "no slug": (CLAUSE.format(**{**GOOD, "slug": "My Clause"}), "has no valid slug"),
    "no level": (CLAUSE.format(**{**GOOD, "level": "OUGHT"}), "the level 'OUGHT': give MUST"),
    "no sentence": (CLAUSE.format(**{**GOOD, "sentence": " "}), "has the sentence ' '"),
    "no recipe": (CLAUSE.format(**{**GOOD, "space": "values=('nice',)"}), "values is 'nice'"),
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("module", "why"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_distribution_is_one_sentence(tmp_path: Path, module: str, why: str) -> None:
    """A command names the distribution and the entry point and exits with 2, no traceback."""
    folder = distribution(tmp_path, module, {CLAUSES: "house = thirdparty"})
    assert_refused(run(folder, *COMMAND, "list"), why)


def assert_refused(done: subprocess.CompletedProcess[str], why: str) -> None:
    """Require one sentence on standard error, exit code 2, and nothing else."""
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "the clauses 'house' that thirdparty 1.0 registers (thirdparty)" in done.stderr
    assert why in done.stderr


MISTAKE = "import conformance\nM = conformance.Mistake(name='m', sentence='Wrong.', {})\n"
BROKEN_MISTAKES = {
    "no clause of that name": (
        MISTAKE.format("primary='shape.outptu', changes={'scale': 'none'}"),
        "names the clause 'shape.outptu', which does not exist; did you mean 'shape.output'?",
    ),
    "no point": (
        MISTAKE.format("primary='shape.output', changes={'scael': 'none'}"),
        "changes= of the mistake 'm'",
    ),
    "nothing": (MISTAKE.format("primary='shape.output'"), "neither candidate= nor changes="),
    "no mistake": ("M = 3\n", "it holds 3: give a conformance.Mistake"),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("module", "why"), BROKEN_MISTAKES.values(), ids=BROKEN_MISTAKES.keys())
def test_a_broken_mistake_is_one_sentence(tmp_path: Path, module: str, why: str) -> None:
    """``teeth`` names the distribution and the entry point and exits with 2."""
    folder = distribution(tmp_path, module, {MISTAKES: "house = thirdparty:M"})
    done = run(folder, *COMMAND, "teeth", "--only", "m")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "the mistakes 'house' that thirdparty 1.0 registers (thirdparty:M)" in done.stderr
    assert why in done.stderr
