from __future__ import annotations

import math
from typing import Any

import pytest
from records import result
from view_records import NAMED, PICTURE, PICTURED, of

from conformance.base.results import ClauseResult
from conformance.views.complete import complete
from conformance.views.failure_picture import picture_of, read_picture


def pictured(*results: ClauseResult) -> list[str]:
    """Of each result the clause whose picture it shows, "" for none."""
    (candidate,) = complete(of(*results))["candidates"]
    found = [picture_of(candidate, clause) for clause in candidate["clauses"]]
    return ["" if one is None else str(one[1]["id"]) for one in found]


def diagnosed(slug: str, **more: Any) -> ClauseResult:
    """A failure with a diagnosis."""
    entry = {"confidence": 1.0, **NAMED, **more.pop("entry", {})}
    return result("failed", slug, diagnosis=[entry], **more)


def test_the_tables_are_those_of_the_record() -> None:
    """Weights, logits and the differences of both; what is no number stays none."""
    made = read_picture(PICTURE)
    assert made is not None
    expected, got, apart, *logits = made.tables
    assert expected.cells == PICTURE["expected"]
    assert got.cells[1] == [0.25, 0.75]
    assert math.isnan(got.cells[2][1] or 0.0)
    assert apart.cells[0] == [-0.5, 0.5]
    assert [table.scale for table in logits] == ["logit", "logit", "difference"]
    assert logits[2].cells[1] == [0.0, 0.0]
    assert logits[2].cells[0][1] is None
    assert (made.first, made.worst) == ((4, 7), (0, 1))


def test_the_title_says_which_weights() -> None:
    """Which head of how many, and which part of the tables; an item that is alone is not told."""
    made = read_picture(PICTURE)
    assert made is not None
    assert made.title == (
        "weights of head 1 of 2, where they differ most: query by key; "
        "queries 4 to 6 of 7; keys 7 to 8 of 9"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"got": [[0.5]]},
        {"got": None},
        {"got": [[], [], []]},
        {"hidden": [[False, True]]},
        {"worst": [0, 0]},
        {"worst": ["a", "b"]},
        {"first": None},
        {"expected": [], "got": [], "hidden": [], "wrong": []},
    ],
)
def test_tables_that_do_not_fit_are_no_picture(change: dict[str, Any]) -> None:
    """A record that somebody edited shows nothing instead of something wrong."""
    assert read_picture({**PICTURE, **change}) is None


def test_logits_that_do_not_fit_are_left_out() -> None:
    """The weights are shown without them."""
    made = read_picture({**PICTURE, "logits": {"expected": [[0.0]]}})
    assert made is not None
    assert len(made.tables) == 3


def test_a_failure_shows_the_picture_of_its_name() -> None:
    """Its own, else that of a failure with the same name in the same dtype, else none."""
    others = (
        diagnosed("mask.bias", entry={"name": "another"}),
        diagnosed("mask.window", dtype="bfloat16"),
        result("failed", "mask.leak"),
        diagnosed("numerics.golden", entry={"picture": PICTURE}),
    )
    assert pictured(*PICTURED, *others) == [
        "mask.causal", "mask.causal", "", "", "", "numerics.golden",
    ]  # fmt: skip


def test_facts_about_an_unknown_mistake_are_shared_by_nobody() -> None:
    """Two failures without a name need not be the same mistake."""
    unknown = {"name": "unknown-mistake", "confidence": 0.0}
    first = diagnosed("mask.causal", entry={**unknown, "picture": PICTURE})
    assert pictured(first, diagnosed("mask.golden", entry=unknown)) == ["mask.causal", ""]
