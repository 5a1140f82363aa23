from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import xmlschema
from command_line import COMMAND, FEW
from view_records import SCHEMAS, validator
from workspaces import KERNEL, UNSCALED, write

from conformance import views
from conformance.__main__ import run

pytestmark = pytest.mark.usefixtures("warm_workers")

EVIL = """

@conformance.core()
def evil(query, key, value):
    raise RuntimeError("boo | <b> @octocat \\x1b[2J \\x00 \\ud800 ::error::x")
"""
VIEWS = ("html", "markdown", "sarif", "junit", "ctrf", "badge")


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that one run of the command wrote, on GitHub."""
    folder = tmp_path_factory.mktemp("checked")
    write(folder, {"src/attn.py": KERNEL + UNSCALED + EVIL, ".git/HEAD": "ref: refs/heads/x\n"})
    files = [argument for view in VIEWS for argument in (f"--{view}", f"out.{view}")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GITHUB_ACTIONS": "true"}
    environment["GITHUB_STEP_SUMMARY"] = str(folder / "summary.md")
    environment.pop("COLUMNS", None)  # which tox sets
    done = subprocess.run(
        [*COMMAND, "check", "src/attn.py", *FEW, "--json", "out.json", *files],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    lines = [line for line in done.stderr.splitlines() if line and not line.startswith("::")]
    assert [line.partition(":")[0] for line in lines] == ["my_kernel", "unscaled", "evil"]
    (folder / "stdout").write_text(done.stdout, encoding="utf-8")
    return folder


def test_one_run_writes_every_view(checked: Path) -> None:
    """Every file is there and is what its format asks for."""
    xmlschema.validate(checked / "out.junit", SCHEMAS / "junit-10.xsd")
    for name, schema in (("sarif", "sarif-2.1.0-rtm.5.json"), ("ctrf", "ctrf-schema-0.0.json")):
        text = (checked / f"out.{name}").read_text(encoding="utf-8")
        validator(schema).validate(json.loads(text))
    assert json.loads((checked / "out.badge").read_text())["message"] == "2 of 3 fail"
    assert (checked / "out.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert "| evil | ❌ fails |" in (checked / "out.markdown").read_text(encoding="utf-8")


def test_findings_are_at_the_line_to_blame(checked: Path) -> None:
    """They are at the line that makes the mistake, or at the candidate where none is known."""
    (run_,) = json.loads((checked / "out.sarif").read_text(encoding="utf-8"))["runs"]
    lines = (checked / "src" / "attn.py").read_text(encoding="utf-8").splitlines()
    assert run_["results"]
    for result in run_["results"]:
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "src/attn.py"
        found = lines[place["region"]["startLine"] - 1 :]
        if result["properties"]["candidate"] == "unscaled":
            assert found[0] == "    return (query @ key.mT).softmax(-1) @ value"
        else:  # the decorator, where no line is known
            assert found[1].startswith(f"def {result['properties']['candidate']}(")
    rule = run_["tool"]["driver"]["rules"][run_["results"][0]["ruleIndex"]]
    assert re.search(r"^Source: \S", rule["help"]["text"], re.MULTILINE)


def test_the_record_holds_what_views_need(checked: Path) -> None:
    """When the run began, what its clauses say, and what counts as red."""
    record = json.loads((checked / "out.json").read_text(encoding="utf-8"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", record["started"])
    assert set(record["clauses"]) == {"shape.output", "numerics.golden"}
    assert record["clauses"]["numerics.golden"]["source"]
    assert record["fail_on"] == "must"
    assert record["candidates"][0]["location"]["file"] == "src/attn.py"


def test_github_is_told(checked: Path) -> None:
    """Annotations after a log that is no command, and the summary of the step."""
    lines = (checked / "stdout").read_text(encoding="utf-8").splitlines()
    token = re.fullmatch(r"::stop-commands::([0-9a-f]{32})", lines[0])
    assert token is not None
    end = lines.index(f"::{token[1]}::")
    assert "3 candidates: 1 conforms, 2 fails" in lines[end - 1]
    commands = lines[end + 1 :]
    assert commands
    assert all(re.match(r"::(error|warning) file=src/attn.py,line=\d+,", line) for line in commands)
    summary = (checked / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith("## ❌ Attention conformance: fails")


@pytest.mark.parametrize("view", VIEWS)
def test_render_is_what_the_run_wrote(
    checked: Path, view: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A view of the record later is the view of the run, in a file and on standard output."""
    wrote = (checked / f"out.{view}").read_text(encoding="utf-8")
    report = str(checked / "out.json")
    assert run(["render", report, f"--{view}", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again").read_text(encoding="utf-8") == wrote
    assert not capfd.readouterr().out
    assert run(["render", report, f"--{view}", "-"]) == 0
    assert capfd.readouterr().out == wrote


def test_render_shows_the_run(checked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a format it is shown as after the run."""
    assert run(["render", str(checked / "out.json")]) == 0
    lines = (checked / "stdout").read_text(encoding="utf-8").splitlines()
    shown = capsys.readouterr().out.splitlines()
    assert shown == lines[1 : 1 + len(shown)]
    assert len(shown) > 5


def test_render_shows_every_failure(checked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The format of terminals is what a terminal shows; with -vv it holds each failure in full."""
    shown = []
    for more in ((), ("-vv",)):
        assert run(["render", str(checked / "out.json"), *more]) == 0
        shown.append(capsys.readouterr().out)
        assert run(["render", str(checked / "out.json"), "--terminal", "-", *more]) == 0
        assert capsys.readouterr().out == shown[-1]
    in_full = shown[-1]
    assert "requires:" in in_full


def test_render_tells_github_when_asked(
    checked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """--github of a merged record, say: annotations, and the summary added to what is there."""
    summary = tmp_path / "summary.md"
    summary.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    report = str(checked / "out.json")
    assert run(["render", report, "--github", "--badge", str(tmp_path / "badge")]) == 0
    assert capsys.readouterr().out.startswith("::error file=src/attn.py,")
    assert summary.read_text(encoding="utf-8").startswith("before\n\n## ❌ Attention")
    summary.write_text("", encoding="utf-8")
    assert run(["render", report, "--badge", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["schemaVersion"] == 1
    assert not summary.read_text(encoding="utf-8")


def test_a_full_summary_changes_no_verdict(
    checked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A summary that is full, or cannot be written, is told in one sentence."""
    report = str(checked / "out.json")
    summary = tmp_path / "summary.md"
    summary.write_bytes(b"x" * (1024 * 1024 - 100))
    for path in (summary, tmp_path / "gone" / "summary.md"):
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
        assert run(["render", report, "--github"]) == 0
        err = capsys.readouterr().err
        assert "the step summary" in err
        assert err.count("\n") == 1
    assert summary.stat().st_size == 1024 * 1024 - 100


def test_render_imports_no_torch(checked: Path) -> None:
    """No view of a record needs the libraries that a run needs."""
    files = [argument for view in (*VIEWS, "terminal") for argument in (f"--{view}", os.devnull)]
    code = (
        "import sys; from conformance.__main__ import run\n"
        f"assert run({['render', str(checked / 'out.json'), *files]!r}) == 0\n"
        "print(sorted({'torch', 'hypothesis', 'onnx', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-Ic", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


USAGE: dict[str, tuple[list[str], str]] = {
    "no report": (["render"], "Missing argument 'REPORT.json'."),
    "no file": (["render", "gone.json"], "there is no report gone.json"),
    "no record": (["render", "list.json", "--html", "x"], "list.json is no report"),
    "no JSON": (["render", "text.json"], "text.json is no JSON"),
    "a newer one": (["render", "new.json", "--junit", "-"], "has schema 7"),
    "into a folder": (["render", "good.json", "--sarif", "."], "is a folder: name a file"),
    "nowhere": (["render", "good.json", "--ctrf", "a/b"], "cannot be written: there is no folder"),
    "one file twice": (
        ["render", "good.json", "--ctrf", "x", "--html", "x"],
        "--html and --ctrf name the same file x",
    ),
    "standard output twice": (
        ["render", "good.json", "--ctrf", "-", "--html", "-"],
        "--html and --ctrf name the same file -",
    ),
    "over itself": (
        ["render", "good.json", "--html", "good.json"],
        "--html good.json is the report itself",
    ),
    "check twice": (["check", "x.py", "--json", "a", "--html", "a"], "name the same file a"),
    "check nowhere": (["check", "x.py", "--junit", "a/b"], "cannot be written: there is no folder"),
}


@pytest.mark.parametrize(("arguments", "sentence"), USAGE.values(), ids=USAGE.keys())
def test_bad_usage(
    folder: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad input is answered in one line on standard error, with 2, and nothing is written."""
    good = json.dumps({"schema": 1, "candidates": []})
    texts = {"good.json": good, "new.json": '{"schema": 7}', "list.json": "[]", "text.json": "x"}
    write(folder, texts)
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert sentence in err
    assert err.count("\n") == 1
    assert not out
    assert {path.name: path.read_text() for path in folder.iterdir()} == texts


def test_views_to_standard_output(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where standard output gets a view, the person is told on standard error."""
    write(folder, {"attn.py": KERNEL})
    assert run(["check", "attn.py", *FEW, "--badge", "-"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["message"] == "conforms"
    assert "1 candidate: 1 conforms" in err


def test_standard_output_gets_the_bytes_of_a_file(checked: Path, tmp_path: Path) -> None:
    """The encoding of the terminal changes no view: an escape of Python's is no JSON."""
    record = json.loads((checked / "out.json").read_text(encoding="utf-8"))
    record["candidates"][0]["name"] = "é\U0001f600"
    report, file = tmp_path / "report.json", tmp_path / "out.ctrf"
    report.write_text(json.dumps(record), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "conformance", "render", report, "--ctrf", "-"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert run(["render", str(report), "--ctrf", str(file)]) == 0
    assert done.stdout == file.read_bytes()
    assert "é\U0001f600" in done.stdout.decode("utf-8")


@pytest.mark.parametrize("view", ["html", "markdown", "terminal"])
def test_a_damaged_record_is_bad_input(
    checked: Path, view: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a tensor of a record is none, one sentence says so, and nothing is written."""
    record = json.loads((checked / "out.json").read_text(encoding="utf-8"))
    for candidate in record["candidates"]:
        for clause in candidate["clauses"]:
            if clause["counterexample"]:
                clause["counterexample"]["calls"][0]["arguments"]["query"]["shape"] = True
    (tmp_path / "report.json").write_text(json.dumps(record), encoding="utf-8")
    file = tmp_path / "out"
    assert run(["render", str(tmp_path / "report.json"), f"--{view}", str(file)]) == 2
    err = capsys.readouterr().err
    assert "report.json cannot be used" in err
    assert err.count("\n") == 1
    assert not file.exists()


def test_texts_of_megabytes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a candidate raises is cut to some 4 KB before it enters anything that is written."""
    raising = """
import conformance
from conformance.errors import UsageError

Long = type("N" * 10**5, (Exception,), {})


@conformance.core()
def mine(query, key, value):
    if query.shape[-2] != 1:
        raise Long("x" * 10**5)
    return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
"""
    write(folder, {"attn.py": raising, "late.py": f"{raising}\nraise UsageError('y' * 10**5)\n"})
    options = [word for view in views.VIEWS for word in (view.option, view.name)]
    assert run(["check", "attn.py", *FEW, "-vv", "--json", "json", *options]) == 1
    assert len("".join(capsys.readouterr())) < 40_000
    assert max(path.stat().st_size for path in folder.iterdir() if path.is_file()) < 150_000
    assert run(["check", "late.py"]) == 2
    assert len(capsys.readouterr().err) < 4300
