"""What docs/kernels.md shows can be typed as it stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from _paths import CHECKOUT

PAGE = (CHECKOUT / "docs" / "kernels.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of the page in a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder holding the files of the page under the names that they give themselves."""
    for example in blocks("python"):
        name = re.match(r"# (\S+\.py)\n", example)
        assert name
        (tmp_path / name[1]).write_text(example, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("command", [block.strip() for block in blocks("console")])
def test_command_ends_well(command: str, project: Path) -> None:
    """Every command of the page ends with exit status 0 on the files of the page."""
    program, *arguments = shlex.split(command)
    assert program == "conformance"
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [sys.executable, "-m", "conformance", *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        env=one_thread,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "conforms" in answer.stdout


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", PAGE))))
def test_links_lead_somewhere(link: str) -> None:
    """Every relative link of the page names a file of the repository."""
    assert link.startswith("https://") or (CHECKOUT / "docs" / link).resolve().exists()
