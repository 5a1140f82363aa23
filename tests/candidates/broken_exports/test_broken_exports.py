"""Every broken export is caught by the clause that says what is wrong; the right step is blamed."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from candidates.broken_exports import BROKEN, BrokenExport
from conformance.adapters.graph import graph
from conformance.base.profile import PROFILES
from conformance.base.results import ClauseResult
from conformance.errors import UsageError
from conformance.running.runner import CandidateRun

BY_NAME = {made.name: made for made in BROKEN}
JUDGED = [made.name for made in BROKEN if not made.refused]
REFUSED = [made.name for made in BROKEN if made.refused]
# One for each step and manner, since making a failure small takes seconds.
BLAMED = [
    "bias_added_before_scaling",
    "branch_for_the_exporter",
    "heads_by_view_alone",
    "killed_by_optimisation",
    "mask_dropped_by_fusion",
    "scale_counted_while_tracing",
    "self_attention_traced",
    "softmax_over_queries",
    "square_matrix_transposed",
    "standard_node_scaled_by_width",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all graphs."""
    return tmp_path_factory.mktemp("broken")


def model_file(made: BrokenExport, folder: Path) -> Path:
    """The export, under its name, as a file that onnx can read."""
    path = made.make(folder)
    assert path.stem == made.name
    assert onnx.load(path, load_external_data=False).graph.node
    return path


def results(
    made: BrokenExport, folder: Path, *, with_source: bool, explain: bool = False
) -> list[ClauseResult]:
    """The named clauses under the quick profile."""
    source = made.source if with_source else None
    candidate = graph(model_file(made, folder), source=source, **made.promises)
    try:
        run = CandidateRun(candidate, profile=PROFILES["quick"], only=made.clauses, explain=explain)
        return [run.run(planned) for planned in run.planned()]
    finally:
        assert candidate.graph is not None
        candidate.graph.process.close()


def test_corpus_is_large_and_tells_its_exports_apart() -> None:
    """At least 25 exports, each with a name and a sentence of its own and clauses to fail."""
    assert len(BROKEN) >= 25
    assert len(BY_NAME) == len(BROKEN)
    assert len({made.sentence for made in BROKEN}) == len(BROKEN)
    for made in BROKEN:
        assert made.sentence.endswith(".")
        assert bool(made.clauses) != made.refused


@pytest.mark.one_in(18)
@pytest.mark.parametrize("name", JUDGED)
def test_broken_export_fails_the_clause_that_names_it(name: str, folder: Path) -> None:
    """The clauses fail, without a source wherever that can be."""
    made = BY_NAME[name]
    found = results(made, folder, with_source=not made.alone)
    assert {result.id: result.status for result in found} == dict.fromkeys(made.clauses, "failed")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", REFUSED)
def test_file_that_no_runtime_opens_is_refused_in_one_sentence(name: str, folder: Path) -> None:
    """It is bad input, and the sentence names the file."""
    with pytest.raises(UsageError, match=name):
        graph(model_file(BY_NAME[name], folder))


@pytest.mark.one_in(10)
@pytest.mark.parametrize("name", BLAMED)
def test_step_is_blamed(name: str, folder: Path) -> None:
    """The verdict says at which step the answer first leaves its bound."""
    made = BY_NAME[name]
    [found] = results(made, folder, with_source=True, explain=True)
    assert found.blame is not None
    assert found.blame["step"] == made.step
