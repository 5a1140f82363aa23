"""The page of the Python API is what the docstrings say today."""

from __future__ import annotations

import re

from _paths import CHECKOUT

import conformance
from conformance.tools.api_document import render

PAGE = (CHECKOUT / "docs" / "api.md").read_text(encoding="utf-8")


def test_page_is_not_stale() -> None:
    """The committed page is what the tool writes."""
    assert render() == PAGE, "run: python -m conformance.tools.api_document > docs/api.md"


def test_every_public_name_has_a_section() -> None:
    """Each public name stands there once, and each function and class has a sentence."""
    sections = re.split(r"^### `(\w+)`$", PAGE, flags=re.MULTILINE)
    assert sorted(sections[1::2]) == sorted(conformance.__all__)
    for name, text in zip(sections[1::2], sections[2::2], strict=True):
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        assert len(prose.split()) > 3, name


def test_markup_of_docstrings_is_markdown() -> None:
    """No markup of docstrings is left: roles, doubled backticks, addresses of objects."""
    assert re.findall(r":\w+:`| ``\w| at 0x", PAGE) == []
