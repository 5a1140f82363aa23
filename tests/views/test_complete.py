from __future__ import annotations

import copy

import pytest
from view_records import NASTY, RECORDS, bare

from conformance.views import TERMINAL, VIEWS, View
from conformance.views.complete import complete


def test_an_old_record_is_completed() -> None:
    """A record with the least that the schema has gets what views look at."""
    report = complete(bare({"id": "mask.golden", "status": "passed"}))
    assert report["stale_expectations"] == []
    (entry,) = report["candidates"]
    assert entry["counts"] == {"passed": 1}
    assert entry["clauses"][0]["family"] == "mask"
    assert entry["clauses"][0]["level"] == "MUST"


def test_texts_become_printable() -> None:
    """Control characters of candidates reach no view."""
    name = complete(RECORDS["nasty"])["candidates"][0]["name"]
    assert "\x1b" not in name
    assert name.count("\\x1b") == NASTY.count("\x1b")


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
