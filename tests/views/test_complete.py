from __future__ import annotations

import copy

import pytest
from view_records import RECORDS

from conformance.views import TERMINAL, VIEWS, View


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("view", [*VIEWS, TERMINAL], ids=lambda view: view.name)
def test_views_are_pure(view: View, name: str) -> None:
    """Every view renders every record, alike twice, and leaves the record as it was."""
    report = copy.deepcopy(RECORDS[name])
    text = view.render(report)
    assert text
    assert view.render(report) == text
    assert report == RECORDS[name]
    assert "\x1b" not in text
    assert "\x00" not in text
