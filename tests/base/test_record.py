from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from teeth_records import record as teeth_record
from view_records import PICTURE, RECORDS, bare

from conformance.base.record import read_record
from conformance.errors import UsageError

CLAUSE: dict[str, Any] = {"id": "mask.golden", "status": "failed"}


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_read_back(name: str, tmp_path: Path) -> None:
    """What a run wrote, an older version too, is read as it is."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps(RECORDS[name]), encoding="utf-8")
    assert read_record(path) == RECORDS[name]


def test_a_byte_order_mark_is_no_matter(tmp_path: Path) -> None:
    """Editors of Windows put one in front."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps(bare()), encoding="utf-8-sig")
    assert read_record(path) == bare()


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """``-`` reads what another command writes."""
    text = json.dumps(bare()).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert read_record(Path("-")) == bare()


def with_clause(**changes: Any) -> dict[str, Any]:
    """A record of one clause with these fields."""
    return bare({**CLAUSE, **changes})


def with_candidate(**changes: Any) -> dict[str, Any]:
    """A record of one candidate with these fields."""
    changed_record = bare(CLAUSE)
    changed_record["candidates"][0] |= changes
    return changed_record


def deep(levels: int) -> Any:
    """Lists in lists."""
    return [deep(levels - 1)] if levels else []


BAD: dict[str, tuple[Any, str]] = {
    "a list": ([], "it is no JSON object"),
    "a number": (3, "it is no JSON object"),
    "nothing": ({}, "its schema is None, not 1"),
    "another schema": ({**bare(), "schema": "1"}, "its schema is '1', not 1"),
    "a newer schema": ({**bare(), "schema": 2}, "has schema 2, this version reads schema 1"),
    "no candidates": ({"schema": 1}, "it has no 'candidates'"),
    "candidates of a kind": ({"schema": 1, "candidates": {}}, "candidates is {}"),
    "a candidate that is none": (
        {"schema": 1, "candidates": [3]},
        "candidates[0] is no object",
    ),
    "no verdict": (
        {"schema": 1, "candidates": [{"name": "x", "clauses": []}]},
        "candidates[0] has no 'verdict'",
    ),
    "warnings": (with_candidate(warnings="x"), 'candidates[0].warnings is "x"'),
    "no status": (bare({"id": "mask.golden"}), "candidates[0].clauses[0] has no 'status'"),
    "a status": (with_clause(status="green"), 'candidates[0].clauses[0].status is "green"'),
    "a dtype": (with_clause(dtype=None), "clauses[0].dtype is null"),
    "a number of 400 digits": (with_clause(seconds=10**400), "clauses[0].seconds is 1000"),
    "a seed": ({**bare(), "seed": [1]}, "seed is [1]"),
    "a blame": (with_clause(blame="abc"), 'clauses[0].blame is "abc"'),
    "a cause without clauses": (with_candidate(causes=[{"name": "x"}]), "has no 'clauses'"),
    "a stale problem": (
        {**bare(), "stale_expectations": [{"clause": "x", "problem": [1]}]},
        "stale_expectations[0].problem is [1]",
    ),
    "a flag for a number": (with_clause(seconds=True), "clauses[0].seconds is true"),
    "a margin": (with_clause(margin="much"), 'clauses[0].margin is "much"'),
    "a violation": (with_clause(violation="x"), "clauses[0].violation is no object"),
    "no message": (with_clause(violation={}), "clauses[0].violation has no 'message'"),
    "a diagnosis": (with_clause(diagnosis=["x"]), "clauses[0].diagnosis[0] is no object"),
    "a picture": (
        with_clause(diagnosis=[{"picture": {**PICTURE, "got": [["much"]]}}]),
        'clauses[0].diagnosis[0].picture.got[0][0] is "much"',
    ),
    "a line that is none": (
        with_clause(diagnosis=[{"line": "x.py:3"}]),
        "clauses[0].diagnosis[0].line is no object",
    ),
    "a line's number": (
        with_clause(diagnosis=[{"line": {"file": "x.py", "number": "3", "text": ""}}]),
        'clauses[0].diagnosis[0].line.number is "3"',
    ),
    "a line without a file": (
        with_candidate(causes=[{"name": "x", "clauses": [], "line": {"number": 3, "text": ""}}]),
        "causes[0].line has no 'file'",
    ),
    "a clause's facts": ({**bare(), "clauses": {"x.y": 3}}, "clauses.x.y is 3"),
    "a stale entry": (
        {**bare(), "stale_expectations": [[]]},
        "stale_expectations[0] is no object",
    ),
}


@pytest.mark.parametrize(("data", "sentence"), BAD.values(), ids=BAD.keys())
def test_what_is_no_record(data: Any, sentence: str, tmp_path: Path) -> None:
    """Anything else is refused in one sentence that says what is wrong, and where."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(UsageError) as raised:
        read_record(path)
    assert sentence in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("verdict", ["conforms", "conforms-with-deviations", "inconclusive"])
@pytest.mark.parametrize(
    ("status", "level", "word"),
    [
        ("failed", "MUST", "fails"),
        ("unexpected-pass", "SHOULD", "fails"),
        ("error", "SHOULD", "error"),
        ("failed", "SHOULD", ""),
        ("passed", "MUST", ""),
        ("untestable", "MUST", ""),
    ],
)
def test_a_verdict_is_no_better_than_its_clauses(
    verdict: str, status: str, level: str, word: str, tmp_path: Path
) -> None:
    """Above a failed MUST no edited verdict stands; others are as they were written."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps(bare({**CLAUSE, "status": status, "level": level}, verdict=verdict)))
    (candidate,) = read_record(path)["candidates"]
    assert candidate["verdict"] == (word or verdict)
    said = f"the record says {verdict}, but mask.golden {status}"
    assert candidate.get("verdict_reason", "") == (said if word else "")


def test_a_worse_verdict_stays(tmp_path: Path) -> None:
    """A verdict of more than its clauses, such as stale expected failures, is not made better."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps(bare(CLAUSE, verdict="error")), encoding="utf-8")
    assert read_record(path)["candidates"][0]["verdict"] == "error"


TEXTS = {
    "empty": b"",
    "no JSON": b"<html>",
    "cut off": b'{"schema": 1, "candid',
    "no text": b"\xff\xfe\x00",
    "nested": b"[" * 100_000,
    "nested deeply": json.dumps(with_clause(blame=deep(200))).encode(),
    "infinite": json.dumps(with_clause(seconds=float("inf"))).encode(),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_what_is_no_json(text: bytes, tmp_path: Path) -> None:
    """A file that cannot be parsed is refused in the same way."""
    path = tmp_path / "report.json"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=r"report\.json is no"):
        read_record(path)


def test_a_record_of_teeth(tmp_path: Path) -> None:
    """The record of another command is named as what it is."""
    path = tmp_path / "teeth.json"
    path.write_text(json.dumps(teeth_record()), encoding="utf-8")
    with pytest.raises(UsageError, match="it is the record of conformance teeth"):
        read_record(path)


def test_no_file(tmp_path: Path) -> None:
    """A file that is not there, and a folder."""
    with pytest.raises(UsageError, match=r"there is no report .*gone\.json"):
        read_record(tmp_path / "gone.json")
    with pytest.raises(UsageError, match="cannot be read"):
        read_record(tmp_path)


def test_a_candidate_twice_is_no_record(tmp_path: Path) -> None:
    """No run writes two of one name, of which nobody could say which is meant."""
    path, twice = tmp_path / "report.json", bare(CLAUSE)
    twice["candidates"] *= 2
    path.write_text(json.dumps(twice), encoding="utf-8")
    with pytest.raises(UsageError, match="it has two candidates called"):
        read_record(path)
