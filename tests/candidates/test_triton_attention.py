"""The Triton kernel is offered where it can run, and says what is missing elsewhere."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from _paths import CHECKOUT

import candidates

INSTALLED = importlib.util.find_spec("triton") is not None
CHECK = (sys.executable, "-m", "conformance", "check", "candidates/triton_attention.py")


def run(interpret: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Check the candidate with ``TRITON_INTERPRET`` set so."""
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.run(
        [*CHECK, "--profile", "quick", "--only", "mask.causal-alignment", *options],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_a_check_of_the_folder_has_it_only_where_it_runs() -> None:
    """Triton is installed there, and a GPU is, or it is interpreted."""
    runs = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
    assert ("triton_attention" in candidates.__conformance__) is (INSTALLED and runs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_no_clause_fails() -> None:
    """What it needs is named, and nothing is held against the kernel."""
    told = " ".join(run("0").stdout.split())
    assert "inconclusive, no clause was run: the device cuda is not here" in told


@pytest.mark.skipif(INSTALLED, reason="Triton is installed")
def test_the_interpreter_needs_triton() -> None:
    """One sentence says what to install."""
    answer = run("1")
    assert answer.returncode == 2
    assert "Triton is not installed: pip install triton" in answer.stderr


@pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
def test_the_interpreted_kernel_conforms() -> None:
    """The interpreter's answers are within the bounds, the causal diagonal at its place."""
    answer = run("1", "--only", "numerics.golden", "--dtype", "float32")
    assert answer.returncode == 0, answer.stdout + answer.stderr
