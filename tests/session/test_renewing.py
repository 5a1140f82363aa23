from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from records import READY, loaded, result

from conformance.base.results import ClauseResult
from conformance.errors import UsageError
from conformance.running.workers.messages import RunOptions
from conformance.session.accepted_failures import UnjudgedRun
from conformance.session.checking import _renew, _Run
from conformance.session.expectations import Selection
from conformance.session.renewing import Gate, Renewed, renew

ENTRY = '[[expected]]\nclause = "mask.golden"\nreason = "{}"\n'


def outcome(*results: ClauseResult) -> UnjudgedRun:
    """A run of one candidate."""
    return UnjudgedRun(
        loaded=[loaded(declaration={"dtypes": ["float32"], "devices": ["cpu"]})],
        results={"mine": list(results)},
        selection=Selection(slugs=list(READY.sentences)),
        today=date(2030, 6, 15),
    )


def test_a_file_is_written_and_reported(tmp_path: Path) -> None:
    """The entries come with their lines, and the record tells what was added."""
    path = tmp_path / "known.toml"
    renewed = renew(Gate(write=path), outcome(result("failed")))
    assert isinstance(renewed, Renewed)
    (entry,) = renewed.entries
    assert entry.place is not None
    line = path.read_text(encoding="utf-8").splitlines().index("[[expected]]") + 1
    assert entry.place.line == line
    assert renewed.written["file"] == str(path)
    assert (renewed.written["kept"], len(renewed.written["added"]), renewed.written["dropped"]) == (
        0,
        1,
        [],
    )


def test_the_file_itself_is_what_is_known(tmp_path: Path) -> None:
    """A file that is renewed is read first: what it says is expected of the run, and is kept."""
    path = tmp_path / "known.toml"
    path.write_text(ENTRY.format("ours"), encoding="utf-8")
    gate = Gate(write=path)
    assert [entry.reason for entry in gate.entries(list(READY.sentences))] == ["ours"]
    renewed = renew(gate, outcome(result("failed")))
    assert isinstance(renewed, Renewed)
    assert [entry.reason for entry in renewed.entries] == ["ours"]


def test_another_file_is_taken_over(tmp_path: Path) -> None:
    """With --expected-failures the run is held against that file, and both are kept."""
    theirs, own = tmp_path / "theirs.toml", tmp_path / "ours.toml"
    theirs.write_text(ENTRY.format("theirs"), encoding="utf-8")
    own.write_text(ENTRY.format("ours"), encoding="utf-8")
    gate = Gate(expected=theirs, write=own)
    assert [entry.reason for entry in gate.entries(list(READY.sentences))] == ["theirs"]
    renewed = renew(gate, outcome(result("failed")))
    assert isinstance(renewed, Renewed)
    assert {entry.reason for entry in renewed.entries} == {"ours", "theirs"}
    assert theirs.read_text(encoding="utf-8") == ENTRY.format("theirs")


def test_one_file_under_two_names_is_read_once(tmp_path: Path) -> None:
    """``--expected-failures F --write-expected ./F`` is one file."""
    path = tmp_path / "known.toml"
    path.write_text(ENTRY.format("ours"), encoding="utf-8")
    assert Gate(expected=tmp_path / "x" / ".." / "known.toml", write=path).files[1:] == []


def test_a_failure_of_the_harness_is_not_written(tmp_path: Path) -> None:
    """Where the harness failed there is no result: the file stays, and the sentence says why."""
    path = tmp_path / "known.toml"
    refusal = renew(Gate(write=path), outcome(result("failed"), result("error", "shape.output")))
    assert refusal == f"{path} is left as it was: the harness failed in shape.output"
    assert not path.exists()


def test_a_file_that_cannot_be_written_loses_no_run(tmp_path: Path) -> None:
    """A folder that went away while the run went on is reported in a sentence."""
    refusal = renew(Gate(write=tmp_path / "gone" / "known.toml"), outcome(result("failed")))
    assert isinstance(refusal, str)
    assert "cannot be written" in refusal


def test_bad_files_are_refused_before_the_run(tmp_path: Path) -> None:
    """The file to renew is read before anything runs, and named when it is no TOML."""
    path = tmp_path / "known.toml"
    path.write_text("[[expected]", encoding="utf-8")
    with pytest.raises(UsageError, match=r"known\.toml cannot be read as TOML"):
        Gate(write=path).entries(list(READY.sentences))
    path.write_text(ENTRY.format("x").replace("golden", "goldn"), encoding="utf-8")
    with pytest.raises(UsageError, match=r"known\.toml, line 1, entry 1: .*did you mean"):
        Gate(write=path).entries(list(READY.sentences))


def test_an_interrupted_run_writes_nothing(tmp_path: Path) -> None:
    """An interrupted run has not run every clause: the file stays, and the record says so."""
    path = tmp_path / "known.toml"
    path.write_text(ENTRY.format("ours"), encoding="utf-8")
    interrupted = _Run(interrupted=True)
    _renew(interrupted, RunOptions(targets=()), Gate(write=path))
    assert interrupted.written == {
        "file": str(path),
        "refused": f"{path} is left as it was: the run was interrupted",
    }
    assert path.read_text(encoding="utf-8") == ENTRY.format("ours")
