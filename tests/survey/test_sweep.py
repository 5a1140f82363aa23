"""Libraries in turn: shards, going on where a sweep stopped, and what cannot be run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from surveyed import candidate, library_file, record

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


def test_what_could_not_be_run_is_tried_again(
    judged: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A library that could not be installed is not done, and its earlier record stays."""
    before = record("one", candidate("layer", date="2026-11-17"))
    records.save("one", before, tmp_path / "records")
    surveyed = sweep.survey

    def offline(one: library.Library, *_: object, **more: Any) -> records.Record:
        if one.name != "one":
            return surveyed(one, tmp_path, **more)
        judged.append(one.name)
        failed = {"status": "not installed", "version": "", "reason": "no index"}
        made = {**before, **failed, "candidates": []}
        more["save"](made)
        return made

    monkeypatch.setattr(sweep, "survey", offline)
    arguments = ["all", "--work", str(tmp_path / "work"), "--records", str(tmp_path / "records")]
    with pytest.raises(KeyboardInterrupt):
        command.main(arguments)
    assert records.load(tmp_path / "records")["one"]["candidates"] == before["candidates"]
    assert command.main(arguments) == 0
    assert judged == ["one", "three", "one", "three", "two"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name libraries, or all"),
        (["one", "--shard", "1/2"], "--shard goes with all"),
        (["one", "two", "--only", "layer"], "--only with the name of one library"),
        (["nowhere"], "there is no library 'nowhere'"),
        (["torch", "--only", "layr"], "torch has no candidate 'layr': those are multihead,"),
        (["torch", "--html", "page.html"], "pass --pages"),
        (["torch", "--since", "."], "pass --pages"),
        (["--pages", "--records", "nowhere"], "--records nowhere: there is no record"),
        (["--pages", "--since", "nowhere"], "--since nowhere: there is no record"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 2, and the error says what to do; no page is written."""
    page = tmp_path / "survey.md"
    assert command.main([*arguments, "--markdown", str(page)]) == 2
    assert not page.exists()
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


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """This interpreter is the environment of every library."""

    @contextmanager
    def environment_of(*_: object, **__: object) -> Iterator[Path]:
        yield Path(sys.executable)

    monkeypatch.setattr(environment, "environment", environment_of)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("import not_there", "ModuleNotFoundError: No module named 'not_there'"),
        ("import os\nos._exit(3)", "its import ended with 3"),
    ],
)
def test_what_cannot_be_imported_is_a_record(tmp_path: Path, lines: str, reason: str) -> None:
    """A file whose import fails, or dies without a word, is a record with the reason."""
    path = library_file(tmp_path, "one")
    path.write_text(f"{path.read_text(encoding='utf-8')}\n{lines}\n", encoding="utf-8")
    kept: list[records.Record] = []
    made = sweep.survey(library.read("one", tmp_path), tmp_path / "work", save=kept.append)
    assert kept == [made]
    assert made["status"] == "not imported"
    assert made["reason"] == reason


@pytest.mark.usefixtures("here")
def test_a_library_without_a_version_is_a_record(tmp_path: Path) -> None:
    """Requirements that do not install the library itself do not end a sweep."""
    library_file(tmp_path, "one", requirements=["no-such-library==1"])
    made = sweep.survey(library.read("one", tmp_path), tmp_path / "work", save=lambda _: None)
    assert made["status"] == "not installed"
    assert "no-such-library is not installed by the requirements" in made["reason"]


@pytest.mark.usefixtures("here")
def test_each_row_is_printed_when_it_is_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every row of a whole model is a line of progress, once."""
    library_file(tmp_path, "one")
    rows = [candidate("layer/model"), candidate("layer/model#0", "fails")]
    monkeypatch.setattr(judging, "judge", lambda *_: rows)
    made = sweep.survey(library.read("one", tmp_path), tmp_path / "work", save=lambda _: None)
    assert [row["name"] for row in made["candidates"]] == ["layer/model", "layer/model#0"]
    assert {row["date"] for row in made["candidates"]} == {made["date"]}
    assert {row["digest"] for row in made["candidates"]} == {library.read("one", tmp_path).digest}
    assert all("commit" in row for row in made["candidates"])
    lines = ["one layer/model: conforms", "one layer/model#0: fails"]
    assert capsys.readouterr().out.splitlines() == lines


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
    assert "survey_one.py:missing" in row["reason"]
    assert str(tmp_path) not in row["reason"]


REFUSED = {
    ("--per-worker", "num_cpus=1"): "give --cluster, too",
    ("--cluster", "garbage"): "is no address of Ray",
    ("--cluster", "auto"): "sends the working folder",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
@pytest.mark.usefixtures("judged")
def test_what_cannot_be_spread_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
) -> None:
    """One sentence and exit code 2, before anything is started."""
    pytest.importorskip("ray", reason="ray is not installed")
    elsewhere = "auto" in arguments
    monkeypatch.chdir(tmp_path if elsewhere else Path(library.__file__).parent.parent)
    folders = ("--work", str(tmp_path / "work"), "--records", str(tmp_path / "records"))
    assert command.main(["one", *folders, *arguments]) == 2
    error = capsys.readouterr().err
    assert REFUSED[arguments] in error
    assert len(error.splitlines()) == 1
