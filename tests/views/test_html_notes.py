from __future__ import annotations

from records import result
from view_records import candidate, record

from conformance.views.html_tables import groups
from conformance.views.html_words import complete


def test_clauses_of_one_reason_are_one_note() -> None:
    """A reason is told once, with its clauses and dtypes."""
    clauses = [
        result("not-applicable", "mask.bias", reason="no bias"),
        result("not-applicable", "mask.bias", reason="no bias", dtype="float16"),
        result("not-applicable", "mask.drop", reason="no bias"),
        result("not-applicable", "cache.golden", reason="no cache"),
    ]
    (group,) = groups(complete(record(candidate(clauses))))
    assert (group.title, group.count) == ("Not applicable", 3)
    assert [(note.reason, note.slugs) for note in group.notes] == [
        ("no bias", ["mask.bias", "mask.drop"]),
        ("no cache", ["cache.golden"]),
    ]
    assert group.notes[0].dtypes == ["float32", "float16"]


def test_candidates_of_one_reason_are_one_note() -> None:
    """Who shares a reason for the same clauses is named beside it."""
    clauses = [result("untestable", reason="no example bound")]
    entries = [candidate(clauses, name) for name in ("a", "b")]
    (group,) = groups(complete(record(*entries)))
    assert [note.candidates for note in group.notes] == [["a", "b"]]


def test_a_missing_reason_is_said_to_be_missing() -> None:
    """A note is never empty."""
    (group,) = groups(complete(record(candidate([result("untestable")]))))
    assert group.notes[0].reason == "no reason is given"


def test_nothing_to_tell_is_no_group() -> None:
    """What passed or failed has its own place."""
    assert groups(complete(record(candidate([result(), result("failed")])))) == []
