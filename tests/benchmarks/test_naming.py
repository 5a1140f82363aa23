"""The corpus of wrong attentions: every change applies, and kernels are sound before it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from _paths import CHECKOUT

from benchmarks.naming_corpus import KERNELS, MUTANTS, correct, mutated
from conformance.base.profile import PROFILES
from conformance.running.runner import CandidateRun

# Clauses that tell quickly whether a kernel is sound.
CHECKED = ("numerics.golden", "mask.golden", "mask.causal")


def test_every_change_applies() -> None:
    """The text that a mutant replaces occurs once in its kernel, and what comes of it compiles."""
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 150
    for mutant in MUTANTS:
        compile(mutated(mutant), mutant.name, "exec")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_are_correct(kernel: str) -> None:
    """What the mutants are made of conforms: what is wrong with them is the change alone."""
    run = CandidateRun(
        correct(kernel), profile=PROFILES["quick"], dtypes=("float32",), only=CHECKED
    )
    results = [run.run(planned) for planned in run.planned()]
    assert "passed" in {result.status for result in results}
    assert "failed" not in {result.status for result in results}


def naming(*options: str) -> subprocess.CompletedProcess[str]:
    """What the benchmark prints, and how it ends."""
    command = [sys.executable, str(CHECKOUT / "benchmarks" / "naming.py"), *options]
    # A script's parts lie beside it, where a safe path does not look.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.nightly  # no benchmark decides a verdict
def test_the_benchmark_prints_what_mutants_are_called(tmp_path: Path) -> None:
    """One mutant: its line, its diagnosis and the counts are printed, and kept as JSON."""
    kept = tmp_path / "naming.json"
    done = naming("--only", "naive-bias-subtracted", "--json", str(kept))
    assert done.returncode == 0
    assert "bias-subtracted" in done.stdout
    assert "1 mutants" in done.stdout
    (entry,) = json.loads(kept.read_text(encoding="utf-8"))
    assert entry["names"] == ["bias-subtracted"]


def test_a_file_that_cannot_be_written_is_told_first() -> None:
    """Nothing is diagnosed whose diagnoses would be lost."""
    done = naming("--json", "nowhere/all.json")
    assert done.returncode == 2
    assert "nowhere/all.json cannot be written" in done.stderr
    assert not done.stdout
