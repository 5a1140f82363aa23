from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.__main__ import run

pytestmark = pytest.mark.usefixtures("warm_workers")


def record(status: str = "passed") -> dict[str, Any]:
    """A record of one clause."""
    clause = {"id": "mask.golden", "status": status, "dtype": "float32", "level": "MUST"}
    return {
        "schema": 1,
        "candidates": [{"name": "mine", "verdict": "conforms", "clauses": [clause]}],
    }


@pytest.fixture
def records(folder: Path) -> Path:
    """A folder with a good record, and one that is worse."""
    (folder / "good.json").write_text(json.dumps(record()), encoding="utf-8")
    (folder / "bad.json").write_text(json.dumps(record("failed")), encoding="utf-8")
    return folder


def test_exit_codes(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is 0 when nothing got worse, and 1 when something did."""
    assert records.is_dir()
    assert run(["diff", "good.json", "good.json"]) == 0
    assert run(["diff", "bad.json", "good.json"]) == 0
    assert run(["diff", "good.json", "bad.json"]) == 1
    assert "worse: 1 new failure" in capsys.readouterr().out


def test_an_edited_verdict(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``conforms`` above a failed MUST passes neither a comparison nor a difference."""
    fails = {**record("failed")["candidates"][0], "verdict": "fails"}
    true = {**record("failed"), "candidates": [fails]}
    (records / "true.json").write_text(json.dumps(true), encoding="utf-8")
    assert run(["diff", "true.json", "bad.json"]) == 0
    assert "verdict" not in capsys.readouterr().out
    assert run(["compare", "good.json", "bad.json"]) == 1
    assert "the record says conforms, but mask.golden failed" in capsys.readouterr().out


def test_files(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and markdown are written beside what is printed."""
    files = ["--json", "d.json", "--markdown", "d.md"]
    assert run(["diff", "good.json", "bad.json", *files]) == 1
    assert json.loads((records / "d.json").read_text(encoding="utf-8"))["worse"] is True
    assert "New failures" in (records / "d.md").read_text(encoding="utf-8")
    assert "new failures" in capsys.readouterr().out


def test_standard_output(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What goes to standard output is alone there."""
    assert records.is_dir()
    assert run(["diff", "good.json", "bad.json", "--json", "-"]) == 1
    out, err = capsys.readouterr()
    assert len(json.loads(out)["added"]) == 1
    assert "worse: " in err


def test_standard_input(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the records may come through a pipe."""
    pipe = io.TextIOWrapper(io.BytesIO((records / "bad.json").read_bytes()))
    monkeypatch.setattr(sys, "stdin", pipe)
    assert run(["diff", "good.json", "-"]) == 1


BAD: dict[str, tuple[list[str], str]] = {
    "missing": (["good.json", "absent.json"], "there is no report absent.json"),
    "no JSON": (["good.json", "empty.json"], "empty.json is no JSON"),
    "no record": (["list.json", "good.json"], "list.json is no report of conformance check"),
    "another schema": (["good.json", "newer.json"], "newer.json has schema 2"),
    "twice the pipe": (["-", "-"], "cannot both be standard input"),
    "over a record": (["good.json", "bad.json", "--json", "bad.json"], "is one of the records"),
    "two in one": (
        ["good.json", "bad.json", "--json", "x", "--markdown", "x"],
        "name the same file",
    ),
    "no ratio": (["good.json", "bad.json", "--margin-ratio", "1"], "Invalid value"),
    "ratio no number": (
        ["good.json", "bad.json", "--margin-ratio", "nan"],
        "Invalid value for '--margin-ratio': 'nan' is no number",
    ),
    "one record": (["good.json"], "Missing argument 'NEW.json'"),
}


@pytest.mark.parametrize(("arguments", "sentence"), BAD.values(), ids=BAD.keys())
def test_bad_input(
    records: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad input is one sentence and exit code 2, and writes nothing."""
    (records / "empty.json").write_text("", encoding="utf-8")
    (records / "list.json").write_text("[]", encoding="utf-8")
    (records / "newer.json").write_text('{"schema": 2}', encoding="utf-8")
    assert run(["diff", *arguments]) == 2
    out, err = capsys.readouterr()
    assert sentence in err
    assert err.count("\n") == 1
    assert not out
    assert not (records / "x").exists()


def test_it_imports_nothing_heavy(records: Path) -> None:
    """Two records are compared without torch."""
    code = (
        "import sys; from conformance.__main__ import run; run(['diff', 'good.json', 'bad.json']); "
        "heavy = {'torch', 'hypothesis', 'onnx', 'onnxruntime', 'numpy'} & set(sys.modules); "
        "sys.exit(','.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-Ic", code], cwd=records, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", [["diff", "odd.json"], ["compare"]])
def test_a_record_whose_options_are_odd(
    command: list[str], records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number in the place of a list is told in a sentence, with exit code 2."""
    odd = record() | {"options": {"devices": -1}}
    (records / "odd.json").write_text(json.dumps(odd), encoding="utf-8")
    assert run([*command, "odd.json"]) == 2
    assert "something in it is not as conformance check writes it" in capsys.readouterr().err
