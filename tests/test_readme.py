"""What README shows can be typed as it stands, and is short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _paths import CHECKOUT

from benchmarks.drawing.terminal import COMMAND

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted(
    {CHECKOUT / "README.md", *CHECKOUT.glob("docs/*.md"), *CHECKOUT.glob("docs/ci/*")}
)
# A version behind an action or hook of this project: there is no release yet.
PINNED = re.compile(r"attention-conformance(?:@v?|==|[^\n]*\n\s+rev: v?)\d")


def test_readme_is_short() -> None:
    """README has at most 120 lines, and the first command after the install line is a check."""
    assert len(README.splitlines()) <= 120
    commands = re.findall(r"^```console\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert commands[0] == "pip install ./attention-conformance\n"
    assert re.match(r"conformance check \S+\.py:\w+", commands[1])


def test_readme_shows_the_command_of_its_picture() -> None:
    """The picture at the top is of a command that README shows."""
    assert f"\n{COMMAND}\n" in README


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", README))))
def test_links_lead_somewhere(link: str) -> None:
    """Every relative link of README names a file of the repository."""
    assert link.startswith("https://") or (CHECKOUT / link).exists()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_release_is_named_that_does_not_exist(path: Path) -> None:
    """No page pins a version, and none installs from PyPI without saying that it is for later."""
    text = path.read_text(encoding="utf-8")
    assert not PINNED.search(text)
    installed = [
        line for line in text.splitlines() if re.search(r"pip install .?attention-conf", line)
    ]
    assert all("ater" in line for line in installed), installed
