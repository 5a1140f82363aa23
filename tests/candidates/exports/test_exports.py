"""The exports that are made at test time: what they are, and what the harness says of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from candidates.exports import EXPORTS, Export, Source, export_all
from candidates.exports import sources as modules
from candidates.exports.described import VARIANTS
from conformance.adapters.graph import graph
from conformance.base.profile import PROFILES
from conformance.base.results import ClauseResult
from conformance.graphs.process import GraphProcess
from conformance.graphs.validation import read_header
from conformance.running.runner import CandidateRun

BY_NAME = {export.name: export for export in EXPORTS}
TRACED = [name for name in BY_NAME if name.endswith("_traced_18")]
# The newer exporter takes seconds a graph.
EXPORTED = [
    "token_attention_exported_18",
    "valid_length_attention_exported_20",
    "cross_exported_23",
]
CONVERTED = [name for name, export in BY_NAME.items() if export.precision != "float32"]
# Each distinct, and none that was traced with.
OTHER_SIZES = {"batch": 3, "queries": 4, "keys": 2, "tokens": 7}
TELLING = (
    "numerics.golden",
    "mask.golden",
    "export.valid",
    "export.dynamic-batch",
    "export.dynamic-length",
    "export.inputs-matter",
    "export.matches-source",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all graphs, so that a conversion finds what it converts."""
    return tmp_path_factory.mktemp("exports")


def run(path: Path, source: Source) -> list[np.ndarray]:
    """What a graph answers to the source's example at other sizes than the traced ones."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = zip(session.get_inputs(), source.example(OTHER_SIZES), strict=True)
    answers: list[np.ndarray] = session.run(None, {at.name: value.numpy() for at, value in given})
    return answers


def assert_faithful(path: Path, source: Source) -> None:
    """Require the source's answers at other sizes than the traced ones."""
    expected = source.module(*source.example(OTHER_SIZES))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for answer, wanted in zip(run(path, source), expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(answer), wanted)


def judged(
    path: Path, source: Source | None, clauses: tuple[str, ...] = TELLING
) -> dict[str, ClauseResult]:
    """The results of some clauses for a graph under the quick profile."""
    candidate = graph(path, source=None if source is None else source.module)
    try:
        run = CandidateRun(candidate, profile=PROFILES["quick"], only=clauses, explain=False)
        return {result.id: result for result in map(run.run, run.planned())}
    finally:
        assert candidate.graph is not None
        candidate.graph.process.close()


def test_exports_have_names_and_stories_of_their_own() -> None:
    """No two exports share a name or a description, and every source is a public module."""
    assert len(BY_NAME) == len(EXPORTS)
    assert len({export.description for export in EXPORTS}) == len(EXPORTS)
    assert all(getattr(modules, export.source.name) is export.source.module for export in EXPORTS)


def test_every_variant_is_exported_every_way() -> None:
    """All five documents, both exporters, three opsets."""
    for source in VARIANTS:
        for exporter in ("traced", "exported"):
            for opset in (18, 20, 23):
                assert f"{source.name}_{exporter}_{opset}" in BY_NAME


def test_importing_needs_no_exporter() -> None:
    """The modules and their descriptions are there without onnxscript."""
    code = "import sys; sys.modules['onnxscript'] = None; import candidates.exports"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", TRACED)
def test_export_answers_as_its_source_at_other_sizes(name: str, made: Path) -> None:
    """A correct export gives the module's answer at sizes that were not traced."""
    export = BY_NAME[name]
    path = export.make(made)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    if export.source.name.startswith("own"):
        with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail):
            run(path, export.source)
    else:
        assert_faithful(path, export.source)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CONVERTED)
def test_conversion_stays_near_its_source(name: str, made: Path) -> None:
    """float16 and int8 graphs load, and answer to about their precision."""
    export = BY_NAME[name]
    path = export.make(made)
    header = read_header(path)
    half = header.inputs[0].dtype == "float16"
    feeds = {
        at.name: value.half().numpy() if half and value.is_floating_point() else value.numpy()
        for at, value in zip(header.inputs, export.source.example(OTHER_SIZES), strict=True)
    }
    with GraphProcess(path) as process:  # on every machine without products that are cut off
        answer = torch.from_numpy(process.run(feeds)[header.outputs[0].name]).float()
    expected = export.source.module(*export.source.example(OTHER_SIZES))
    expected = expected[0] if isinstance(expected, tuple) else expected
    difference = (answer - expected).abs().max().item()
    assert 0 < difference < (0.05 if export.precision == "int8-dynamic" else 0.005)


def test_export_all_makes_a_graph_once(tmp_path: Path) -> None:
    """Graphs that are in the folder already are not made again."""
    some = [BY_NAME["token_attention_traced_18"]]
    [(path, source, description)] = export_all(tmp_path, some)
    before = path.stat().st_mtime_ns
    assert export_all(tmp_path, some) == [(path, source, description)]
    assert path.stat().st_mtime_ns == before


def check(export: Export, path: Path, *, with_source: bool) -> None:
    """Hold a verdict against what is known of the export."""
    found = judged(path, export.source if with_source else None)
    assert not [result.reason for result in found.values() if result.status == "error"]
    failed = {name for name, result in found.items() if result.status == "failed"}
    assert failed == set(export.clauses)
    assert found["export.dynamic-length"].status in ("passed", "failed")
    expected = "not-applicable" if not with_source else "passed"
    assert found["export.matches-source"].status == expected


RIGHT = [source.name for source in VARIANTS if source.name != "per_head_matrices"]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", [f"{variant}_traced_18" for variant in RIGHT])
def test_variant_is_judged_with_its_source(name: str, made: Path) -> None:
    """The five documents' exports conform and answer as their modules, B1 excepted."""
    check(BY_NAME[name], BY_NAME[name].make(made), with_source=True)


def test_heads_put_together_along_the_tokens_are_named(made: Path) -> None:
    """B1's export is as wrong as B1: it fails by its shape, with two rows a token."""
    export = BY_NAME["per_head_matrices_traced_18"]
    found = judged(export.make(made), export.source, ("shape.output", "numerics.golden"))
    assert {result.status for result in found.values()} == {"failed"}
    violation = found["shape.output"].violation
    assert violation is not None
    assert violation.message == "the output has shape [10, 2] where [5, 2] is expected"


@pytest.mark.parametrize("name", ["masked_attention_traced_18", "own_traced_18"])
def test_export_is_judged_without_a_source(name: str, made: Path) -> None:
    """The same from the graph alone; what tracing broke is named."""
    check(BY_NAME[name], BY_NAME[name].make(made), with_source=False)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", EXPORTED)
def test_newer_exporters_graph_is_right_and_conforms(name: str, made: Path) -> None:
    """Exported anew, without a source: the answers are the module's, and the verdict says so."""
    export = BY_NAME[name]
    path = export.make(made)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    assert_faithful(path, export.source)
    check(export, path, with_source=False)
