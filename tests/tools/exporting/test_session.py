"""``conformance export-check`` from the command line, and what becomes of each export."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from _paths import CHECKOUT

from conformance.__main__ import run as command
from conformance.tools.exporting.session import exit_code_of

pytestmark = pytest.mark.usefixtures("warm_workers")

FILE = CHECKOUT / "tests" / "support" / "modules_to_export.py"
FAST = (
    *("--profile", "quick", "--only", "export.dynamic-*", "--only", "export.matches-source"),
    *("--only", "numerics.scale"),
)


Capture = pytest.CaptureFixture[str]


def conformance(capsys: Capture, *arguments: str) -> tuple[int, str]:
    """The exit code of the command and everything that it says."""
    code = command([*arguments])
    said = capsys.readouterr()
    return code, said.out + said.err


def run(
    capsys: Capture, tmp_path: Path, name: str, *options: str
) -> tuple[int, str, dict[str, Any]]:
    path = tmp_path / "record.json"
    words = ("export-check", f"{FILE}:{name}", *FAST, *options, "--json", str(path))
    code, said = conformance(capsys, *words)
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return code, said, record


def test_a_right_module(tmp_path: Path, capsys: Capture) -> None:
    """Every export of a right module conforms, and can be checked again from what is kept.

    An opset that the exporter does not support is no failure of the module's. The seconds that
    are told are those of exporting and checking.
    """
    began = time.monotonic()
    kept = tmp_path / "kept"
    code, said, record = run(
        capsys, tmp_path, "Itself", "--exporter", "legacy", "--opset", "18,99", "--keep", str(kept)
    )
    assert code == 0, said
    took = time.monotonic() - began
    assert took / 2 < record["seconds"] < took
    verdicts = [row["verdict"] for row in record["exports"]]
    assert verdicts == ["conforms", "unsupported"]
    assert "2 exports: 1 conforms, 1 unsupported" in said
    graph, source = kept / "legacy-opset18.onnx", f"{kept / 'source.py'}:module"
    code, said = conformance(capsys, "check", str(graph), "--source", source, *FAST)
    assert code == 0, said


@pytest.mark.nightly  # both exporters take half a minute
def test_a_module_that_bakes_its_sizes(tmp_path: Path, capsys: Capture) -> None:
    """Tracing bakes them, torch.export does not: the table says which, and who is to blame."""
    code, said, record = run(capsys, tmp_path, "Baked", "--opset", "20")
    rows = {row["exporter"]: row for row in record["exports"]}
    assert code == 1
    assert rows["dynamo"]["verdict"] == "conforms", said
    assert rows["legacy"]["failed"] == ["export.dynamic-batch", "export.dynamic-length"]
    assert rows["legacy"]["blame"]["step"] == "graph at the lowest level"
    assert "the graph runs at 2 only" in said


def test_a_module_that_cannot_be_exported(tmp_path: Path, capsys: Capture) -> None:
    """What an exporter raises is the verdict on that export, in a sentence."""
    code, said, record = run(capsys, tmp_path, "Branching", "--exporter", "dynamo", "--opset", "18")
    assert code == 1
    (row,) = record["exports"]
    assert row["verdict"] == "not-exported"
    assert row["reason"].startswith("cannot be exported: ")
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("number",), "is 3: name a torch.nn.Module"),
        (("Itself", "--opset", "new"), "--opset new: give positive numbers"),
        (("Itself", "--exporter", "other"), "'other' is not one of"),
    ],
)
def test_bad_input(
    tmp_path: Path, capsys: Capture, arguments: tuple[str, ...], sentence: str
) -> None:
    """Bad input is one sentence and exit code 2."""
    code, said, _ = run(capsys, tmp_path, *arguments)
    assert code == 2
    assert sentence in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["not-exported", "not-exported"], 1),
        (["not-read", "unsupported"], 1),
        (["unsupported"], 1),
        (["error"], 1),
    ],
)
def test_exit_code_without_graphs(verdicts: list[str], code: int) -> None:
    """Without any graph nothing conforms."""
    report = {"candidates": [], "exports": [{"verdict": word} for word in verdicts]}
    assert exit_code_of(report) == code
