from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from bundled import failing, report, write_candidate
from fresh_environment import fresh_environment
from onnx import TensorProto, helper, numpy_helper

from conformance.__main__ import run
from conformance.base.record import read_record
from conformance.errors import UsageError
from conformance.tools.bundles.writing import bundle
from conformance.tools.replay import cases

pytestmark = pytest.mark.usefixtures("warm_workers")

UNSCALED = """
@conformance.core()
def mine(query, key, value):
    return (query @ key.mT).softmax(-1) @ value
"""
DIES = """
import os


@conformance.core()
def mine(query, key, value):
    if query.shape[-2] == 3:
        os._exit(3)
    return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
"""


@pytest.fixture(scope="module")
def unscaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a candidate that lacks the scale, the report that says so, and its bundle."""
    folder = tmp_path_factory.mktemp("unscaled")
    target = write_candidate(folder / "attn.py", UNSCALED)
    path = report(folder / "out.json", failing(target, "numerics.scale"))
    assert (
        run(["bundle", "--trust", f"{path}#numerics.scale", "--output", str(folder / "shown")]) == 0
    )
    return folder


def shown(python: Path, script: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a script in an environment of its own."""
    done = subprocess.run(
        [str(python), "-I", str(script), *arguments],
        cwd=script.parent,
        env={"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def has(python: Path, module: str) -> bool:
    """Whether an environment has a module."""
    return (
        subprocess.run(
            [str(python), "-Ic", f"import {module}"], check=False, capture_output=True
        ).returncode
        == 0
    )


def test_bundle_shows_itself_with_torch_and_numpy_alone(unscaled: Path, tmp_path: Path) -> None:
    """In a new environment without this project it fails; test_showing has the mended ones."""
    python = fresh_environment(tmp_path / "environment", "torch", "numpy")
    assert not has(python, "conformance")
    assert not has(python, "hypothesis")
    code, output = shown(python, unscaled / "shown" / "show.py")
    assert (code, "IT STILL FAILS" in output) == (1, True), output


def test_bundle_holds_what_shows_the_failure(unscaled: Path) -> None:
    """Arrays without pickle, a page with requirement and input, and the sums of all files."""
    folder = unscaled / "shown"
    manifest = json.loads((folder / "manifest.json").read_text())
    names = {path.name for path in folder.iterdir()}
    assert names == {*manifest["files"], "manifest.json"}
    for name, entry in manifest["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"]
    with np.load(folder / "inputs.npz", allow_pickle=False) as inputs:
        assert set(inputs) == {"query", "key", "value"}
    with np.load(folder / "compared.npz", allow_pickle=False) as compared:
        assert np.abs(compared["got"] - compared["expected"]).max() > compared["bound"].max()
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert "It holds." in page
    assert "python show.py" in page
    assert "| 1 | query |" in page


def graph(path: Path, scale: float) -> None:
    """Attention as a graph whose constants lie in a file of their own."""
    tokens = {
        name: ["B", 2, length, 4]
        for name, length in zip(("query", "key", "value"), "QKK", strict=True)
    }
    nodes = [
        helper.make_node("Transpose", ["key"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["query", "turned"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "value"], ["output"]),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in {**tokens, "output": tokens["query"]}.items()
    ]
    constant = numpy_helper.from_array(np.array([scale], np.float32), "scale")
    made = helper.make_graph(nodes, "attention", ports[:3], ports[3:], [constant])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path, save_as_external_data=True, location="graph.data", size_threshold=0)


def test_graph_shows_itself_with_onnxruntime_and_numpy_alone(tmp_path: Path) -> None:
    """The bundle brings the graph and its data; where torch is not there it fails, and passes."""
    graph(tmp_path / "graph.onnx", 1.0)
    path = report(tmp_path / "out.json", failing(str(tmp_path / "graph.onnx"), "numerics.golden"))
    folder = tmp_path / "shown"
    assert run(["bundle", "--trust", f"{path}#numerics.golden", "--output", str(folder)]) == 0
    assert {"graph.onnx", "graph.data"} <= {each.name for each in folder.iterdir()}
    python = fresh_environment(tmp_path / "environment", "onnxruntime", "numpy")
    assert not has(python, "torch")
    assert not has(python, "conformance")
    (tmp_path / "graph.onnx").unlink()
    code, output = shown(python, folder / "show.py")
    assert (code, "IT STILL FAILS" in output) == (1, True), output
    graph(folder / "graph.onnx", 0.5)
    code, output = shown(python, folder / "show.py")
    assert (code, "it does not fail any more" in output) == (0, True), output


def test_call_that_kills_its_process_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last call is in the bundle, whose script sees a process of its own die."""
    target = write_candidate(tmp_path / "attn.py", UNSCALED)
    entry = failing(target, "numerics.scale")
    (tmp_path / "attn.py").write_text("")
    target = write_candidate(tmp_path / "attn.py", DIES)
    (failed,) = entry["clauses"]
    problem = failed["counterexample"]["problem"]
    problem["geometry"]["query_length"] = 3
    failed["violation"] = {"kind": "crashed", "message": "the candidate ended its process"}
    failed["counterexample"] = {"problem": problem}
    path = report(tmp_path / "out.json", {**entry, "target": target})
    assert (
        run(["bundle", "--trust", f"{path}#numerics.scale", "--output", str(tmp_path / "shown")])
        == 0
    )
    assert f"python {tmp_path / 'shown'}/show.py" in "".join(capsys.readouterr().out.split("\n"))
    script = (tmp_path / "shown" / "show.py").read_text(encoding="utf-8")
    assert "survives()" in script
    assert (tmp_path / "shown" / "calls.npz").is_file()


def recorded(path: str, folder: Path, **more: Any) -> str:
    """The script of a bundle that is made of the report alone."""
    (case,) = cases(path)
    bundle(case, read_record(Path(path)), folder, recorded=True, **more)
    return (folder / "show.py").read_text(encoding="utf-8")


def test_report_alone_makes_a_bundle(unscaled: Path, tmp_path: Path) -> None:
    """With --recorded the candidate is not called: the files show what the report holds."""
    text = recorded(str(unscaled / "out.json"), tmp_path / "shown")
    assert "this bundle was made of the report alone" in text
    assert "import torch" not in text
    with np.load(tmp_path / "shown" / "compared.npz", allow_pickle=False) as compared:
        assert set(compared) == {"expected", "got", "bound"}


def test_bundle_of_nothing_is_refused(unscaled: Path, tmp_path: Path) -> None:
    """A report that holds neither numbers nor calls is told in one sentence; nothing is written."""
    record = json.loads((unscaled / "out.json").read_text())
    (failed,) = record["candidates"][0]["clauses"]
    failed["counterexample"] = {"problem": failed["counterexample"]["problem"]}
    path = report(tmp_path / "out.json", record["candidates"][0])
    with pytest.raises(UsageError, match=r"no bundle can be written for numerics\.scale"):
        recorded(path, tmp_path / "shown")
    assert [each.name for each in tmp_path.iterdir()] == ["out.json"]


def test_candidate_s_words_stay_text(unscaled: Path, tmp_path: Path) -> None:
    """What a candidate said becomes neither code nor markup of the bundle."""
    record = json.loads((unscaled / "out.json").read_text())
    (failed,) = record["candidates"][0]["clauses"]
    failed["violation"]["message"] = 'raised """\nimport os\n# <script>\x1b[31m'
    failed["diagnosis"] = [{"name": "<b>|", "text": "](http://x)"}]
    path = report(tmp_path / "out.json", record["candidates"][0])
    text = recorded(path, tmp_path / "shown")
    compile(text, "show.py", "exec")
    assert "\nimport os" not in text
    page = (tmp_path / "shown" / "README.md").read_text(encoding="utf-8")
    assert "\x1b" not in page
    assert "\n# <script>" not in page
    assert "\\<b\\>\\|" in page


def test_places_that_are_taken_are_bad_input(
    unscaled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with files in it, a file, and several failures at once: exit code 2."""
    path = str(unscaled / "out.json")
    (tmp_path / "mine").write_text("")
    for place in (tmp_path, tmp_path / "mine", tmp_path / "no" / "where"):
        assert run(["bundle", path, "--output", str(place)]) == 2
        assert f"--output {place} " in capsys.readouterr().err
    entry = json.loads(Path(path).read_text())["candidates"][0]
    two = report(tmp_path / "two.json", entry, {**entry, "name": "other"})
    assert run(["bundle", two]) == 2
    assert "conformance bundle writes one failure, not 2" in capsys.readouterr().err
    assert run(["bundle", f"{two}#shape.output"]) == 2
    assert [each.name for each in sorted(tmp_path.iterdir())] == ["mine", "two.json"]


@pytest.mark.parametrize(
    "change",
    [
        {"calls": 3},
        {"calls": [{"arguments": []}]},
        {"calls": [{"arguments": {"print()": {}}, "keywords": {}}]},
        {"calls": [{"arguments": {}, "keywords": {}, "layer": "print()"}]},
        {"calls": [{"arguments": {}, "keywords": {}, "recorded": {"leaves": "print()"}}]},
        {"calls": [{"arguments": {"a": {"same_as": [0, "print()"]}}, "keywords": {}}]},
        {"got_of": {"call": "print()", "what": "output"}},
        {"layers": ["a"]},
        {"inputs": {"query": {"shape": [1], "dtype": "float31", "values": [1.0]}}},
        {"expected": {"shape": [2], "dtype": "float64", "values": [1.0]}},
        {"expected": {"shape": "x", "dtype": "float64", "values": [1.0]}},
        {"got": {"shape": [1], "dtype": "float64", "values": ["many"]}},
    ],
)
def test_what_no_report_holds_is_one_sentence(
    unscaled: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    """A counterexample that somebody has edited is bad input, and nothing is written."""
    record = json.loads((unscaled / "out.json").read_text())
    (failed,) = record["candidates"][0]["clauses"]
    failed["counterexample"] |= change
    path = report(tmp_path / "out.json", record["candidates"][0])
    with pytest.raises(UsageError, match=r"the counterexample of numerics\.scale cannot be read"):
        recorded(path, tmp_path / "shown")
    assert [each.name for each in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize(
    "names",
    [
        *(["../out.json"], ["/etc/hostname"], ["show.py"], "out.json", [3]),
        *(["./show.py"], [""], ["."], ["calls.npz"], ["under-way.json"], ["inputs.npz/a"]),
    ],
)
def test_a_report_names_no_file_elsewhere(unscaled: Path, tmp_path: Path, names: object) -> None:
    """The files of a graph lie beside it, and none takes the place of one of the bundle's own."""
    record = json.loads((unscaled / "out.json").read_text())
    (failed,) = record["candidates"][0]["clauses"]
    failed["counterexample"]["access"] = {"external": names}
    record["candidates"][0]["target"] = str(unscaled / "attn.py")
    path = report(tmp_path / "out.json", record["candidates"][0])
    with pytest.raises(UsageError, match="cannot be copied into a bundle under their names"):
        recorded(path, tmp_path / "shown")
    assert [each.name for each in tmp_path.iterdir()] == ["out.json"]


def test_a_missing_file_of_a_graph_is_named(unscaled: Path, tmp_path: Path) -> None:
    """What cannot be read is said to be that, and not the folder to write."""
    record = json.loads((unscaled / "out.json").read_text())
    (failed,) = record["candidates"][0]["clauses"]
    failed["counterexample"]["access"] = {"external": ["gone.bin"]}
    record["candidates"][0]["target"] = str(unscaled / "attn.py")
    path = report(tmp_path / "out.json", record["candidates"][0])
    with pytest.raises(UsageError, match=r"gone\.bin cannot be copied into the bundle: No such"):
        recorded(path, tmp_path / "shown")


def test_failure_without_its_violation_is_refused(unscaled: Path, tmp_path: Path) -> None:
    """A report that does not say how a clause failed is bad input."""
    record = json.loads((unscaled / "out.json").read_text())
    record["candidates"][0]["clauses"][0]["violation"] = None
    path = report(tmp_path / "out.json", record["candidates"][0])
    with pytest.raises(UsageError, match=r"does not say how numerics\.scale of mine failed"):
        recorded(path, tmp_path / "shown")
