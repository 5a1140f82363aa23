from __future__ import annotations

import io

import pytest

from conformance.tools.specification import clause_entries
from conformance.views.tool_texts import show_list


@pytest.mark.parametrize("width", [40, 80, 200])
def test_slugs_and_levels_stay_whole(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """At any width the list names every clause in one piece, and keeps to the width."""
    monkeypatch.setenv("COLUMNS", str(width))
    entries = clause_entries()
    file = io.StringIO()
    show_list(entries, file)
    lines = file.getvalue().splitlines()
    assert {entry["id"] for entry in entries} <= {line.split()[0] for line in lines}
    assert max(map(len, lines)) <= width
    assert "…" not in file.getvalue()
