"""A module's own cache is found by calls, and proposed as a line that can be pasted."""

from __future__ import annotations

import pytest
from _paths import CHECKOUT

from conformance.identification.implementation import implementation_at
from conformance.identification.job import identify

FILE = CHECKOUT / "candidates" / "module_caches.py"


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "ByObject",
            ["cache=conformance.Cache(parameter='past_key_values', make=DynamicCache)"],
        ),
        (
            "InBuffers",
            [
                "geometry={'batch': [1, 2, 3, 4, 5, 6, 7, 8]}",
                "cache=conformance.Cache(positions={'start_pos': 'start'})",
            ],
        ),
    ],
)
def test_the_line_of_a_cache(name: str, lines: list[str]) -> None:
    """An object of a class beside the module's is imported; buffers limit the batch."""
    found = identify(implementation_at(f"{FILE}:{name}"), None, lambda _step, _what: None)
    for line in lines:
        assert f"    {line},\n" in found["declaration"]
    if "DynamicCache" in lines[0]:
        assert "module_caches.py:DynamicCache')" in found["declaration"]
    assert "cache" in {fact["fact"] for fact in found["facts"]}
