from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import record
from records import result
from view_records import candidate, of
from view_records import record as run_record
from workspaces import KERNEL, UNSCALED, write

from conformance.__main__ import run

pytestmark = pytest.mark.usefixtures("warm_workers")

ONE = ("--profile", "quick", "--only", "numerics.golden")


def records(folder: Path) -> None:
    """A green record and a red one."""
    write(
        folder,
        {
            "green.json": json.dumps(of(result(margin=0.25))),
            "red.json": json.dumps(run_record(candidate([result("failed", margin=4.0)], "wrong"))),
        },
    )


def test_targets_are_run_and_records_stand_beside_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A target is checked now, a record is taken as it is; pages, record and terminal agree."""
    write(folder, {"attn.py": KERNEL + UNSCALED})
    records(folder)
    arguments = ["compare", "attn.py", "green.json", *ONE, "--json", "out.json"]
    assert run([*arguments, "--html", "page.html", "--markdown", "page.md"]) == 1
    out, err = capsys.readouterr()
    assert not err
    assert "numerics.golden" in out
    assert "3 candidates compared: fails" in out
    report = record(folder)
    names = [entry["name"] for entry in report["candidates"]]
    assert sorted(names) == ["mine", "my_kernel", "unscaled"]
    assert [run["source"] for run in report["compared"]] == ["this run", "green.json"]
    page = (folder / "page.html").read_text(encoding="utf-8")
    markdown = (folder / "page.md").read_text(encoding="utf-8")
    assert all(name in page and name in markdown for name in names)


@pytest.mark.parametrize(
    ("files", "code"),
    [(["green.json"], 0), (["green.json", "red.json"], 1), (["red.json"], 1)],
)
def test_records_alone_are_compared(folder: Path, files: list[str], code: int) -> None:
    """The exit code is that of check for all candidates together."""
    records(folder)
    assert run(["compare", *files]) == code


def test_a_failed_should_is_red_on_demand(folder: Path) -> None:
    """--strict and --fail-on should mean what they mean for check."""
    write(folder, {"a.json": json.dumps(of(result("failed", "mask.no-leak", "SHOULD")))})
    assert run(["compare", "a.json"]) == 0
    assert run(["compare", "a.json", "--strict"]) == 1
    assert run(["compare", "a.json", "--fail-on", "should"]) == 1
    assert run(["compare", "a.json", "--fail-on", "must"]) == 0
    assert run(["compare", "a.json", "--fail-on", "must", "--strict"]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument"),
        (["gone.json"], "there is no report gone.json"),
        (["broken.json"], "is no JSON"),
        (["teeth.json"], "conformance teeth"),
        (["green.json", "green.json"], "named twice"),
        (["green.json", "--html", "gone/page.html"], "there is no folder"),
        (["green.json", "--html", "x", "--markdown", "x"], "same file"),
        (["green.json", "--html", "green.json"], "is one of the records"),
    ],
)
def test_bad_input_is_told_in_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """What cannot be compared or written exits with 2, before anything is run or overwritten."""
    records(folder)
    write(folder, {"broken.json": "{", "teeth.json": '{"schema": 1, "mistakes": []}'})
    before = (folder / "green.json").read_text(encoding="utf-8")
    assert run(["compare", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert (folder / "green.json").read_text(encoding="utf-8") == before


@pytest.mark.parametrize("limit", [{"seconds": "soon", "reached": True}, "soon"])
def test_a_record_whose_parts_do_not_fit_is_bad_input(
    folder: Path, capsys: pytest.CaptureFixture[str], limit: object
) -> None:
    """What no run writes is told in one sentence that names the file, and is no fault of ours."""
    write(folder, {"odd.json": json.dumps({**of(result()), "limit": limit})})
    assert run(["compare", "odd.json", "--html", "page.html"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("conformance: odd.json ")
    assert err.count("\n") == 1


def test_a_view_on_standard_output_is_alone_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is piped is the page and nothing else; what a person reads goes to standard error."""
    records(folder)
    assert run(["compare", "green.json", "red.json", "--markdown", "-"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("## ")
    assert "2 candidates compared" in err
    assert "2 candidates compared: fails, " not in out


def test_records_are_compared_without_torch(folder: Path) -> None:
    """Nothing is run, so nothing heavy is loaded."""
    records(folder)
    code = (
        "import sys; from conformance.__main__ import run; "
        "run(['compare', 'green.json', 'red.json', '--html', 'page.html']); "
        "sys.exit(bool({'torch', 'hypothesis', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-Ic", code], cwd=folder, check=False, capture_output=True
    )
    assert done.returncode == 0
    assert (folder / "page.html").exists()
