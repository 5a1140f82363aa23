from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from records import result
from view_records import EVERY, STALE, candidate, cut, of, record

from conformance.base.record import exit_code, read_record
from conformance.errors import UsageError
from conformance.session.comparing import ComparedRecord, joined, read_sources, split
from conformance.views.comparison import render_comparison as render_markdown
from conformance.views.comparison import show_comparison as show
from conformance.views.html import render_comparison as render_html


def test_records_are_distinguished_from_targets() -> None:
    """What ends in .json is a record, all else a target."""
    assert split(["a.py:b", "x.json", "m.onnx", "pkg"]) == (
        ("a.py:b", "m.onnx", "pkg"),
        (Path("x.json"),),
    )


def test_records_are_read(tmp_path: Path) -> None:
    """Each file is a source under its name on the command line."""
    path = tmp_path / "old.json"
    path.write_text(json.dumps(of(*EVERY)), encoding="utf-8")
    (source,) = read_sources([path])
    assert source.name == str(path)
    assert source.record["seed"] == 3


def test_a_record_named_twice_is_refused(tmp_path: Path) -> None:
    """Compared with itself nothing differs: it was another file that was meant."""
    path = tmp_path / "old.json"
    path.write_text(json.dumps(of()), encoding="utf-8")
    with pytest.raises(UsageError, match="named twice"):
        read_sources([path, tmp_path / "." / "old.json"])


def test_names_stay_unless_they_are_shared() -> None:
    """Candidates of one name are distinguished by where they are from."""
    first = record(candidate([result()], "a"), candidate([result()], "b"))
    joined_record = joined(
        [ComparedRecord(name="x", record=first), ComparedRecord(name="y", record=of(result()))]
    )
    assert [each["name"] for each in joined_record["candidates"]] == ["a", "b", "mine"]
    again = joined([ComparedRecord(name="x", record=first), ComparedRecord(name="y", record=first)])
    assert [each["name"] for each in again["candidates"]] == ["a (x)", "b (x)", "a (y)", "b (y)"]
    assert [each["source"] for each in again["candidates"]] == ["x", "x", "y", "y"]


def test_names_differ_even_within_a_source() -> None:
    """A record may have two candidates of one name."""
    twice = record(candidate([result()], "a"), candidate([result()], "a"))
    joined_record = joined([ComparedRecord(name="x", record=twice)])
    assert [each["name"] for each in joined_record["candidates"]] == ["a (x)", "a (x) 2"]


def test_what_differs_is_listed_and_what_is_the_same_stays() -> None:
    """One profile stays a word; two seeds are both shown, and so is each run's own."""
    other = {**of(result()), "seed": 9, "environment": {"torch": "2.7", "device": "cpu"}}
    joined_record = joined(
        [ComparedRecord(name="x", record=of(result())), ComparedRecord(name="y", record=other)]
    )
    assert (joined_record["profile"], joined_record["seed"]) == ("quick", "3 / 9")
    assert joined_record["environment"]["torch"] == "2.6 / 2.7"
    assert joined_record["environment"]["device"] == "cpu"
    assert [run["seed"] for run in joined_record["compared"]] == [3, 9]
    assert joined_record["seconds"] == 3.0


def test_a_comparison_is_a_record(tmp_path: Path) -> None:
    """Other commands read it, and its exit code is that of all candidates together."""
    red = ComparedRecord(name="x", record=record(candidate(EVERY), stale=[STALE]))
    green = ComparedRecord(name="y", record=of(result()))
    path = tmp_path / "both.json"
    path.write_text(json.dumps(joined([red, green])), encoding="utf-8")
    joined_record = read_record(path)
    assert len(joined_record["stale_expectations"]) == 1
    assert exit_code(joined_record) == exit_code(red.record)
    assert exit_code(joined([green])) == 0


def test_an_interrupted_source_interrupts_the_comparison() -> None:
    """Half a run is no verdict on all of it."""
    joined_record = joined(
        [
            ComparedRecord(name="x", record=of(result(), interrupted=True)),
            ComparedRecord(name="y", record=of(result())),
        ]
    )
    assert joined_record["interrupted"] is True


def test_old_records_are_joined() -> None:
    """The least that is a record has neither tool nor environment."""
    least = {"schema": 1, "candidates": []}
    joined_record = joined(
        [ComparedRecord(name="x", record=least), ComparedRecord(name="y", record=of(result()))]
    )
    assert joined_record["tool"]["name"] == "attention-conformance"
    assert len(joined_record["candidates"]) == 1


def test_what_a_source_lacks_is_shown() -> None:
    """A run that its limit cut, and a shard, are named with what they lack, in every view."""
    shard = {**of(result("untestable")), "shard": {"index": 1, "count": 4, "expected": []}}
    joined_record = joined(
        [ComparedRecord(name="x", record=cut(result())), ComparedRecord(name="y", record=shard)]
    )
    page = io.StringIO()
    show(joined_record, page)
    for text in (page.getvalue(), render_html(joined_record), render_markdown(joined_record)):
        assert "x: the limit of 60 s was reached: 7 clauses were not run" in text
        assert "y: shard 1 of 4" in text
