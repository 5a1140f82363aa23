from __future__ import annotations

import io
from typing import Any

from records import expected

from conformance.views.tool_texts import show_renewed


def shown(written: dict[str, Any] | None) -> str:
    """What is printed of a record."""
    file = io.StringIO()
    show_renewed({} if written is None else {"written_expectations": written}, file)
    return file.getvalue()


def test_nothing_is_said_of_a_run_that_renews_nothing() -> None:
    """Without --write-expected there is nothing to tell."""
    assert shown(None) == ""


def test_what_was_added_and_dropped_is_told() -> None:
    """Every entry that came or went has a line, and a TODO is asked for."""
    added = expected(candidate="mine", kind="value", diagnosis="a\x1b", dtype="float32").as_json()
    dropped = {**expected(kind="raised").as_json(), "dropped": "the clause passes"}
    written = {"file": "known.toml", "kept": 3, "added": [added], "dropped": [dropped]}
    assert shown(written).splitlines() == [
        "wrote known.toml: 1 added, 3 kept, 1 dropped",
        r"  added mask.golden of mine (value, a\x1b, float32)",
        "  dropped mask.golden of * (raised): the clause passes",
        "say in each new entry why the failure is accepted: its reason is a TODO",
    ]


def test_an_entry_that_says_no_more_has_no_brackets() -> None:
    """A clause and a reason are enough for an entry: nothing stands behind its name then."""
    dropped = {**expected().as_json(), "dropped": "the clause passes"}
    written = {"file": "k", "kept": 0, "added": [], "dropped": [dropped]}
    assert "  dropped mask.golden of *: the clause passes" in shown(written).splitlines()


def test_a_refusal_is_told() -> None:
    """Where nothing was written the sentence says why."""
    assert shown({"file": "k", "refused": "k is left as it was"}) == "k is left as it was\n"
