"""The step of an export that is to blame, and the stage inside the graph, are the right ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import CLAUSES, SMALL, run_clause
from exported import STAGES, WEIGHTS, Altered, Layer, Outputs, Plan, Run, opened

from conformance.base.results import result_from_json
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis.exports.blame import AT_HIGHEST, AT_LOWEST, SOURCE, Blamer
from conformance.graphs.opened import Stages
from conformance.graphs.process import Feeds, Setting
from conformance.graphs.protocol import GraphLost, GraphRefused
from conformance.graphs.sidecar import GraphDeclaration
from conformance.problems.pool import Pool
from conformance.running.shrinking.smallest import examine_recorded

GOLDEN, MASK, MATCHES = "numerics.golden", "mask.golden", "export.matches-source"


def edited(name: str) -> Plan:
    """A graph in which one projection was changed."""
    matrix = getattr(WEIGHTS, name)
    return Plan(weights=dataclasses.replace(WEIGHTS, **{name: matrix + 0.02}))


def blame(candidate: Candidate, slug: str) -> dict[str, Any]:
    """Who is to blame for the first failing example of a clause."""
    assert candidate.graph is not None
    subject = Subject(candidate, "float32")
    for problem in Pool(candidate, SMALL, 0).problems(CLAUSES[slug].space, "float32"):
        finding, recording = examine_recorded(CLAUSES[slug], subject, problem)
        if finding.violation is not None:
            blamer = Blamer(subject, candidate.graph)
            blamed = blamer.blame(slug, finding.violation, recording)
            assert blamed is not None
            return blamed
    pytest.fail("nothing failed")


def test_a_wrong_module_exported_faithfully(tmp_path: Path) -> None:
    """The source is to blame for what it does itself, and the scores for a missing scale."""
    blamed = blame(opened(tmp_path, Plan(scale=1.0), source=Layer(scale=1.0)), GOLDEN)
    assert (blamed["step"], blamed["stage"]) == (SOURCE, "scores")
    assert blamed["text"].startswith("the source itself is wrong: the export is faithful")
    assert [step["departs"] for step in blamed["steps"]] == [True, False, False, False]


def test_a_wrong_module_and_a_wrong_export(tmp_path: Path) -> None:
    """A graph that changes a wrong answer again is not called faithful."""
    blamed = blame(opened(tmp_path, Plan(scale=2.0), source=Layer(scale=1.0)), GOLDEN)
    assert blamed["step"] == SOURCE
    assert "the answer changes again in the graph at the lowest level" in blamed["text"]


@pytest.mark.one_in(2)  # each edit is among them, with a source or without
@pytest.mark.parametrize(
    ("plan", "slug", "stage"),
    [
        (edited("q"), GOLDEN, "query"),
        (edited("k"), GOLDEN, "key"),
        (edited("v"), GOLDEN, "value"),
        (edited("o"), GOLDEN, "output"),
        (edited("o"), MATCHES, "output"),
        (Plan(scale=0.4), GOLDEN, "scores"),
        (Plan(scale=0.4), MATCHES, "scores"),
        (Plan(masked=False), MASK, "scores"),
        (Plan(fill=-30.0), "mask.no-leak", "scores"),
    ],
    ids=["q", "k", "v", "o", "o-source", "scale", "scale-source", "mask", "fill"],
)
@pytest.mark.parametrize("source", [True, False])
def test_an_edited_graph(
    tmp_path: Path, plan: Plan, slug: str, stage: str, *, source: bool
) -> None:
    """The graph at the lowest level is to blame, and inside it the stage that was edited."""
    if not source and slug == MATCHES:
        return
    blamed = blame(opened(tmp_path, plan, source=Layer() if source else None), slug)
    assert (blamed["step"], blamed["stage"]) == (AT_LOWEST, stage)
    assert ("--source" in blamed["text"]) != source
    assert ("the export is to blame" in blamed["text"]) == source


def test_stages_that_nobody_found(tmp_path: Path) -> None:
    """Without names of tensors the step is blamed all the same."""
    candidate = opened(tmp_path, Plan(scale=0.4), source=Layer(), stages=Stages())
    assert (blame(candidate, GOLDEN)["step"], blame(candidate, GOLDEN)["stage"]) == (AT_LOWEST, "")


@pytest.mark.parametrize(("names", "stage"), [({"scores": ""}, "weights"), ({"key": ""}, "scores")])
def test_stages_that_were_found_in_part(tmp_path: Path, names: dict[str, str], stage: str) -> None:
    """The first of the stages that are known is named."""
    stages = dataclasses.replace(STAGES, **names)
    blamed = blame(opened(tmp_path, edited("k"), source=Layer(), stages=stages), GOLDEN)
    assert blamed["stage"] == ("key" if "key" not in names else stage)


@pytest.mark.parametrize(("level", "from_there"), [("basic", 1), ("extended", 2), ("all", 3)])
def test_a_level_of_optimisation(tmp_path: Path, level: str, from_there: int) -> None:
    """A fault of the optimiser is blamed on the runtime, with the first level that has it."""
    levels = ("disabled", "basic", "extended", "all")

    def alter(feeds: Feeds, setting: Setting, run: Run) -> Outputs:
        wrong = levels.index(setting.level) >= from_there
        return {**run(feeds), **({"output": run(feeds)["output"] * np.float32(2)} if wrong else {})}

    candidate = opened(tmp_path, Plan(), source=Layer(), process=lambda path: Altered(path, alter))
    for slug in (GOLDEN, MATCHES, "export.optimisation-levels"):
        blamed = blame(candidate, slug)
        assert (blamed["step"], blamed["level"]) == (AT_HIGHEST, level)


def test_a_refusal_of_the_highest_level(tmp_path: Path) -> None:
    """A graph that runs until it is optimised is blamed on the level, with what was raised."""

    def alter(feeds: Feeds, setting: Setting, run: Run) -> Outputs:
        if setting.level == "all":
            msg = "no kernel"
            raise GraphRefused(msg)
        return run(feeds)

    candidate = opened(tmp_path, Plan(), source=Layer(), process=lambda path: Altered(path, alter))
    blamed = blame(candidate, "shape.output")
    assert (blamed["step"], blamed["level"]) == (AT_HIGHEST, "all")
    assert "no kernel" in blamed["text"]


def test_a_provider(tmp_path: Path) -> None:
    """Another provider that departs from the CPU is to blame."""

    def alter(feeds: Feeds, setting: Setting, run: Run) -> Outputs:
        factor = np.float32(1.0 if setting.provider.startswith("CPU") else 1.001)
        return {**run(feeds), "output": run(feeds)["output"] * factor}

    providers = ["CPUExecutionProvider", "XnnpackExecutionProvider"]
    candidate = opened(tmp_path, Plan(), process=lambda path: Altered(path, alter, providers))
    blamed = blame(candidate, "export.providers")
    assert blamed["step"] == "graph on XnnpackExecutionProvider"


def test_a_baked_size(tmp_path: Path) -> None:
    """The module runs at another batch, the graph does not: the export is to blame."""
    blamed = blame(opened(tmp_path, Plan(batch=3), source=Layer()), "export.dynamic-batch")
    assert (blamed["step"], blamed["stage"]) == (AT_LOWEST, "")
    assert "the graph gives no answer at the lowest level" in blamed["text"]


def test_an_input_that_lost_its_influence(tmp_path: Path) -> None:
    """The step is named that no longer reads the mask."""
    slug = "export.inputs-matter"
    blamed = blame(opened(tmp_path, Plan(masked=False), source=Layer()), slug)
    assert blamed["step"] == AT_LOWEST
    assert "the graph at the lowest level does not" in blamed["text"]

    class Deaf(Layer):
        def forward(self, query: Any, key: Any, value: Any, mask: Any) -> torch.Tensor:
            return super().forward(query, key, value, torch.ones_like(mask))

    blamed = blame(opened(tmp_path, Plan(masked=False), source=Deaf()), slug)
    assert blamed["step"] == SOURCE


def test_a_refusal_that_is_lost(tmp_path: Path) -> None:
    """Where the module refuses a mask of another length and the graph does not, the export is."""
    candidate = opened(tmp_path, Plan(masked=False), source=Layer())
    blamed = blame(candidate, "shape.rejects-mismatch")
    assert blamed["step"] == AT_LOWEST
    assert "refuses this" in blamed["text"]


def test_an_empty_row_that_changes(tmp_path: Path) -> None:
    """NaN that becomes a mean is a fault of the export, though nothing is promised about it."""
    blamed = blame(opened(tmp_path, Plan(fill=-1e9), source=Layer()), MATCHES)
    assert (blamed["step"], blamed["stage"]) == (AT_LOWEST, "")


def test_a_lost_process_is_run_once(tmp_path: Path) -> None:
    """What kills its process is blamed once: the second failure of the kind costs no process."""
    lost = []

    def alter(feeds: Feeds, setting: Setting, run: Run) -> Outputs:
        if setting.level == "all":
            lost.append(setting)
            msg = "killed its process (SIGSEGV)"
            raise GraphLost(msg, kind="crashed")
        return run(feeds)

    candidate = opened(tmp_path, Plan(), source=Layer(), process=lambda path: Altered(path, alter))
    assert candidate.graph is not None
    subject = Subject(candidate, "float32")
    clause, blamer = CLAUSES["shape.output"], Blamer(subject, candidate.graph)
    problems = Pool(candidate, SMALL, 0).problems(clause.space, "float32")
    counts = []
    for problem in problems[:2]:
        finding, recording = examine_recorded(clause, subject, problem)
        assert finding.violation is not None
        before = len(lost)
        blamed = blamer.blame(clause.id, finding.violation, recording)
        counts.append(len(lost) - before)
        assert blamed is not None
        assert blamed["step"] == AT_HIGHEST
        assert "SIGSEGV" in blamed["text"]
    assert counts[1] == 0


def test_blame_is_data(tmp_path: Path) -> None:
    """The report holds the blame as plain data, and nothing where there is none."""
    failed = run_clause(opened(tmp_path, Plan(scale=1.0), source=Layer()), GOLDEN, explain=True)
    data = failed.as_json()
    assert data["blame"]["step"] == AT_LOWEST
    assert result_from_json(data).blame == failed.blame
    passed = run_clause(opened(tmp_path, Plan(), source=Layer()), GOLDEN)
    assert "blame" not in passed.as_json()


def test_a_mask_whose_meaning_was_read_off_a_wrong_graph(tmp_path: Path) -> None:
    """Where the source departs and the graph departs from it, a guessed reading proves nothing."""

    class Inverted(Layer):
        def forward(self, query: Any, key: Any, value: Any, mask: Any) -> torch.Tensor:
            return super().forward(query, key, value, ~mask)

    candidate = opened(tmp_path, Plan(masked=False), source=Inverted())
    assert blame(candidate, MASK)["step"] == AT_LOWEST
    assert candidate.graph is not None
    told = GraphDeclaration(inputs={"mask": {"role": "keep"}})
    graph = dataclasses.replace(candidate.graph, declaration=told)
    assert blame(dataclasses.replace(candidate, graph=graph), MASK)["step"] == SOURCE


def test_an_input_that_the_graph_lacks(tmp_path: Path) -> None:
    """An input of the source that was dropped altogether is the fault of the export."""
    candidate = opened(tmp_path, Plan(), source=Layer())
    assert candidate.graph is not None
    graph = dataclasses.replace(candidate.graph, lacking=("bias",))
    blamed = blame(dataclasses.replace(candidate, graph=graph), MATCHES)
    assert blamed["step"] == AT_LOWEST
    assert "no input for bias" in blamed["text"]
