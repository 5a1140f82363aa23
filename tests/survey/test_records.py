"""Records that are kept: read, decided by a library's file, and compared with older ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from surveyed import candidate, clause, library_file, record

from survey import library, records


def test_a_record_comes_back(tmp_path: Path) -> None:
    """What is saved is read again, a line a candidate."""
    one = record("one", candidate("a"), candidate("b"))
    records.save("one", one, tmp_path)
    assert records.load(tmp_path) == {"one": one}
    lines = (tmp_path / "one.json").read_text(encoding="utf-8").splitlines()
    assert sum('"name": ' in line for line in lines) == 2
    records.save("none", record("none"), tmp_path)
    assert records.load(tmp_path)["none"]["candidates"] == []


@pytest.mark.parametrize("text", ["{", "[]", '{"survey": 2}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    """What is no record, or of another schema, is named."""
    (tmp_path / "one.json").write_text(text, encoding="utf-8")
    with pytest.raises(library.SurveyError, match=r"one\.json is no"):
        records.load(tmp_path)


def test_rows_of_other_candidates_are_kept() -> None:
    """What was not judged this time keeps its row, unless the version is another."""
    before = record("one", candidate("layer"), candidate("model/m"), candidate("model/m#0"))
    new = record("one", candidate("model", "fails"))
    made = records.completed(new, before, ["layer", "model"])
    assert [row["name"] for row in made["candidates"]] == ["layer", "model"]
    assert records.completed(new, before, ["model"])["candidates"] == new["candidates"]
    assert records.completed(new, {**before, "version": "0.9"}, ["layer", "model"]) == new


def test_failures_are_decided_by_the_file(tmp_path: Path) -> None:
    """A decision is written beside the failures that it covers; the rest is open, and listed."""
    decided = {"clause": "mask.*", "decided": "ours", "reason": "so", "candidates": "a"}
    promise = {"sentence": "It hides.", "link": "https://example.org", "clauses": ["mask.*"]}
    library_file(tmp_path, "one", decided=(decided,), promises=(promise,))
    one = library.read("one", tmp_path)
    failing = [clause("mask.golden"), clause("numerics.golden"), clause("a.b", level="SHOULD")]
    made = records.decided(record("one", candidate("a", clauses=failing)), one)
    first, second, _ = made["candidates"][0]["clauses"]
    assert (first["decided"], first["why"]) == ("ours", "so")
    assert "decided" not in second
    assert [entry["id"] for _, entry in records.undecided(made)] == ["numerics.golden"]
    assert made["promises"][0]["held"] == "broken"
    assert made["promises"][0]["by"] == ["a mask.golden"]
    assert records.decided(made, one) == made


@pytest.mark.parametrize(
    ("passed", "held"), [("mask.golden", "kept"), ("numerics.golden", "untested")]
)
def test_a_promise_is_kept_where_something_ran(tmp_path: Path, passed: str, held: str) -> None:
    """A promise whose clauses no candidate ran is untested, not kept."""
    promise = {"sentence": "It hides.", "link": "https://example.org", "clauses": ["mask.*"]}
    library_file(tmp_path, "one", promises=(promise,))
    one = library.read("one", tmp_path)
    made = records.decided(record("one", candidate("a", passed=passed)), one)
    assert made["promises"][0]["held"] == held


def test_changes_are_sentences() -> None:
    """Versions, verdicts, failures and libraries that changed are told, and nothing else."""
    old = {
        "one": record(
            "one", candidate("a"), candidate("b", "fails", clauses=[clause("mask.golden")])
        ),
        "two": record("two"),
        "same": record("same", candidate("a"), date="2026-11-17"),
    }
    new = {
        "one": record(
            "one",
            candidate("a", "fails", clauses=[clause("mask.padding")]),
            candidate("b"),
            version="2.0",
        ),
        "three": record("three"),
        "same": record("same", candidate("a")),
    }
    assert records.changes(old, new) == [
        "one: version 1.0, now 2.0",
        "one: a: conforms, now fails",
        "one: a fails mask.padding",
        "one: b: fails, now conforms",
        "one: b passes mask.golden",
        "three: surveyed for the first time",
        "two: no longer surveyed",
    ]
