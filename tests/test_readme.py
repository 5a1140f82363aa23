"""What README shows can be typed as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from _paths import CHECKOUT

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
CONFORMANCE = [sys.executable, "-m", "conformance"]


def blocks(language: str) -> list[str]:
    """The fenced blocks of README in a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder holding README's example under the name that it gives itself."""
    example = blocks("python")[0]
    name = re.match(r"# (\S+\.py)\n", example)
    assert name
    (tmp_path / name[1]).write_text(example, encoding="utf-8")
    return tmp_path


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, whatever its exit status."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_example_conforms(project: Path) -> None:
    """The kernel and the layer of README pass the golden clauses when checked by path."""
    selected = ["--only", "*.golden", "--profile", "quick"]
    answer = run([*CONFORMANCE, "check", "my_attention.py", *selected], project)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "my_kernel" in answer.stdout
    assert "my_layer" in answer.stdout


def test_example_of_a_suite_passes(project: Path) -> None:
    """README's own test file collects and passes next to its example."""
    (project / "test_mine.py").write_text(blocks("python")[1], encoding="utf-8")
    quiet = ["-q", "-p", "no:cacheprovider"]
    pytest_command = [sys.executable, "-m", "pytest", *quiet, "-k", "golden"]
    answer = run(pytest_command, project)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert re.search(r"[1-9]\d* passed", answer.stdout)


def test_expected_failures_are_valid_toml() -> None:
    """The file of expected failures has the keys that ExpectedFailure takes."""
    (text,) = blocks("toml")
    (entry,) = tomllib.loads(text)["expected"]
    assert set(entry) == {"clause", "reason", "kind", "candidate", "dtype"}


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", README))))
def test_links_lead_somewhere(link: str) -> None:
    """Every relative link of README names a file of the repository."""
    assert link.startswith("https://") or (CHECKOUT / link).exists()
