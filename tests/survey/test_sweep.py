"""Libraries in turn: shards, going on where a sweep stopped, and what cannot be run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from surveyed import library_file

from survey import __main__ as command
from survey import environment, judging, library, records, sweep


def test_shards_part_the_names() -> None:
    """Each name is in one shard of three."""
    every = list("abcdefg")
    parts = [sweep.shard(every, f"{number}/3") for number in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == every
    assert sweep.shard(every, None) == every


@pytest.mark.parametrize("part", ["0/3", "4/3", "one", "1/0"])
def test_a_wrong_shard_is_refused(part: str) -> None:
    """The sentence says how a shard is written."""
    with pytest.raises(library.SurveyError, match="such as 2/3"):
        sweep.shard(["a"], part)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Three libraries in a folder, judged without environments; the names judged so far."""
    for name in ("one", "three", "two"):
        library_file(tmp_path, name)
    done: list[str] = []

    def survey(
        one: library.Library, *_: object, save: Callable[[records.Record], None], **__: object
    ) -> records.Record:
        done.append(one.name)
        if one.name == "three" and len(done) == 2:
            raise KeyboardInterrupt
        made = {"library": one.name, "status": "judged", "candidates": [], "reason": ""}
        record = {"survey": 1, "version": "1", "tool": "1", "requirements": [], **made}
        save(record)
        return record

    monkeypatch.setattr(sweep, "survey", survey)
    monkeypatch.setattr(library, "names", lambda: ["one", "three", "two"])
    read = library.read
    monkeypatch.setattr(library, "read", lambda name: read(name, tmp_path))
    return done


def test_a_sweep_goes_on_where_it_stopped(judged: list[str], tmp_path: Path) -> None:
    """After an interruption only the rest is done; after the end it begins anew."""
    arguments = ["all", "--work", str(tmp_path / "work"), "--records", str(tmp_path / "records")]
    with pytest.raises(KeyboardInterrupt):
        command.main(arguments)
    assert command.main(arguments) == 0
    assert judged == ["one", "three", "three", "two"]
    assert command.main(arguments) == 0
    assert judged[4:] == ["one", "three", "two"]
    assert sorted(records.load(tmp_path / "records")) == ["one", "three", "two"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name libraries, or all"),
        (["one", "--shard", "1/2"], "--shard goes with all"),
        (["one", "two", "--only", "layer"], "--only with the name of one library"),
        (["nowhere"], "there is no library 'nowhere'"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 2, and the error says what to do."""
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1


def test_what_cannot_be_installed_is_a_record(tmp_path: Path) -> None:
    """A requirement that no index has is a row with what pip says, and leaves no environment."""
    requirement = f"{tmp_path / 'nothing-1-py3-none-any.whl'}#==1"
    library_file(tmp_path, "one", requirements=[requirement])
    kept: list[records.Record] = []
    record = sweep.survey(library.read("one", tmp_path), tmp_path / "work", save=kept.append)
    assert kept == [record]
    assert record["status"] == "not installed"
    assert "nothing-1" in record["reason"]
    assert not (tmp_path / "work" / "one" / "environment").exists()


def test_what_cannot_be_imported_is_a_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file whose import fails is a row with the exception."""
    path = library_file(tmp_path, "one")
    path.write_text(path.read_text(encoding="utf-8") + "\nimport not_there\n", encoding="utf-8")

    @contextmanager
    def here(*_: object, **__: object) -> Iterator[Path]:
        yield Path(sys.executable)

    monkeypatch.setattr(environment, "environment", here)
    kept: list[records.Record] = []
    record = sweep.survey(library.read("one", tmp_path), tmp_path / "work", save=kept.append)
    assert kept == [record]
    assert record["status"] == "not imported"
    assert record["reason"] == "ModuleNotFoundError: No module named 'not_there'"


def test_a_declared_candidate_is_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The rows of a check hold its verdict, its failures with their causes, and what it passed."""
    source = (
        '"""one: a core."""\n\nimport conformance\n\nREQUIREMENTS = ["torch==2.13.0"]\n'
        'CANDIDATES = {"core": "check", "missing": "check"}\nmissing = None\n\n\n'
        '@conformance.core(masks=["keep"])\ndef core(query, key, value, *, keep=None):\n'
        '    """No scale."""\n    return (query @ key.mT).softmax(-1) @ value\n'
    )
    (tmp_path / "survey_one.py").write_text(source, encoding="utf-8")
    only = ("--only", "mask.golden", "--only", "shape.output")
    monkeypatch.setattr(judging, "CHECK", (*judging.CHECK, *only))
    one = library.read("one", tmp_path)
    python = Path(sys.executable)
    (row,) = judging.judge(python, one, "core", tmp_path)
    assert (row["name"], row["verdict"], row["kind"]) == ("core", "fails", "core")
    failed = {entry["id"]: entry for entry in row["clauses"] if entry["level"] == "MUST"}
    assert failed["mask.golden"]["cause"]
    assert "shape.output" in row["passed"].split()
    json.dumps(row, allow_nan=False)
    (row,) = judging.judge(python, one, "missing", tmp_path)
    assert row["verdict"] == "not judged"
    assert "missing" in row["reason"]


@pytest.mark.nightly
def test_a_library_from_the_index(tmp_path: Path) -> None:
    """An environment is made, the library installed, judged, kept, and the environment removed."""
    one = library.read("local_attention")
    kept: list[records.Record] = []
    record = sweep.survey(one, tmp_path, only=["both_sides"], save=kept.append)
    assert [len(each["candidates"]) for each in kept] == [1, 1]
    assert record["status"] == "judged"
    assert f"local-attention=={record['version']}" in record["requirements"]
    assert record["candidates"][0]["identified"]
    assert not (tmp_path / "local_attention" / "environment").exists()
