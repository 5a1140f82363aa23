"""What README shows can be typed as it stands."""

from __future__ import annotations

import re
import tomllib

import pytest
from _paths import CHECKOUT

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of README in a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_expected_failures_are_valid_toml() -> None:
    """The file of expected failures has the keys that ExpectedFailure takes."""
    (text,) = blocks("toml")
    (entry,) = tomllib.loads(text)["expected"]
    assert set(entry) == {"clause", "reason", "kind", "candidate", "dtype"}


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", README))))
def test_links_lead_somewhere(link: str) -> None:
    """Every relative link of README names a file of the repository."""
    assert link.startswith("https://") or (CHECKOUT / link).exists()
