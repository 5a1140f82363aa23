from __future__ import annotations

import json
from typing import Any

import pytest
from records import result
from view_records import (
    EVERY,
    FAILED,
    LIMIT,
    RECORDS,
    SHOULD_FAILED,
    STALE,
    candidate,
    cut,
    of,
    record,
)

from conformance.views.github import render_badge

RAN = [result()]
GAUGE = {"gauge": "its weights are unknown"}
DEVIATES = {"deviations": ("scale",)}
BADGES: dict[str, tuple[dict[str, Any], str, str]] = {
    "conforms": (RECORDS["conforms"], "conforms", "brightgreen"),
    "deviations": (record(candidate(RAN, **DEVIATES)), "conforms with deviations", "green"),
    "gauge": (record(candidate(RAN, **GAUGE)), "conforms up to gauge", "yellowgreen"),
    "inconclusive": (of(result("untestable")), "inconclusive", "yellow"),
    "fails": (of(FAILED), "fails", "red"),
    "error": (of(result("error")), "error", "lightgrey"),
    "all conform": (record(candidate(RAN), candidate(RAN, "b")), "2 conform", "brightgreen"),
    "some deviate": (
        record(candidate(RAN), candidate(RAN, "b", **DEVIATES)),
        "2 conform, 1 with deviations",
        "green",
    ),
    "some fail": (record(candidate(RAN), candidate([FAILED], "b")), "1 of 2 fails", "red"),
    "more fail": (
        record(candidate(RAN), candidate([FAILED], "b"), candidate([FAILED], "c")),
        "2 of 3 fail",
        "red",
    ),
    "all fail": (record(candidate([FAILED]), candidate([FAILED], "b")), "2 of 2 fail", "red"),
    "some inconclusive": (
        record(candidate(RAN), candidate([], "b")),
        "1 of 2 inconclusive",
        "yellow",
    ),
    "error before failure": (
        record(candidate([FAILED]), candidate(EVERY, "b")),
        "1 of 2 in error",
        "lightgrey",
    ),
    "interrupted": (RECORDS["interrupted"], "interrupted", "yellow"),
    "interrupted after a failure": (of(FAILED, interrupted=True), "fails", "red"),
    "cut": (cut(result("untestable")), "time limit reached", "yellow"),
    "cut, all green": (cut(*RAN), "time limit reached", "yellow"),
    "cut after a failure": (cut(FAILED), "fails", "red"),
    "cut before anything": (record(more=LIMIT), "time limit reached", "yellow"),
    "nothing": (RECORDS["no candidates"], "nothing checked", "yellow"),
    "stale": (record(candidate(RAN), stale=[STALE]), "stale expectations", "red"),
    "strict": ({**of(*RAN, SHOULD_FAILED), "fail_on": "should"}, "fails", "red"),
    "not strict": (of(*RAN, SHOULD_FAILED), "conforms", "brightgreen"),
}


@pytest.mark.parametrize(("report", "message", "colour"), BADGES.values(), ids=BADGES.keys())
def test_badges(report: dict[str, Any], message: str, colour: str) -> None:
    """The worst verdict gives the colour, and nothing but green can be painted over by a URL."""
    badge = json.loads(render_badge(report))
    assert badge.pop("schemaVersion") == 1
    assert badge.pop("label") == "attention"
    assert badge.pop("isError", False) == (not colour.endswith("green"))
    assert badge == {"message": message, "color": colour}
