"""A graph answers the same wherever it runs, and as the module that it was exported from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from examples import CLAUSES, run_clause
from exported import Altered, Answers, Layer, Outputs, Plan, Run, opened

from candidates.eager import eager_core
from conformance.clauses.export_runs import CPU
from conformance.graphs.process import Feeds, Setting
from conformance.graphs.protocol import GraphRefused

LEVELS, SOURCE, PROVIDERS = (
    f"export.{word}" for word in ("optimisation-levels", "matches-source", "providers")
)
OTHER = "XnnpackExecutionProvider"


def at_level(level: str, factor: float) -> Answers:
    """Answers that are off by a factor at one optimisation level."""

    def alter(feeds: Feeds, setting: Setting, run: Run) -> Outputs:
        answer = run(feeds)
        return {"output": answer["output"] * np.float32(factor if setting.level == level else 1.0)}

    return alter


@pytest.mark.parametrize("slug", [LEVELS, SOURCE])
def test_a_faithful_graph_passes(tmp_path: Path, slug: str) -> None:
    """A right graph agrees with its source and with itself, rows without keys included."""
    result = run_clause(opened(tmp_path, Plan(), source=Layer()), slug)
    assert result.status == "passed"
    assert result.binding > 0.9 * result.examples  # all rows of a drawn mask may be without keys
    assert result.margin is not None
    assert result.margin < 0.1


@pytest.mark.parametrize("slug", [LEVELS, SOURCE, PROVIDERS])
def test_clauses_do_not_apply_without_a_graph(slug: str) -> None:
    """The clauses speak of graphs alone."""
    assert CLAUSES[slug].not_applicable(eager_core) == "it is no ONNX graph"


def test_a_faithful_graph_of_a_wrong_module_matches_it(tmp_path: Path) -> None:
    """What the module computes wrongly, too, is no fault of the export."""
    result = run_clause(opened(tmp_path, Plan(scale=1.0), source=Layer(scale=1.0)), SOURCE)
    assert result.status == "passed"


@pytest.mark.parametrize(
    "plan", [Plan(scale=0.499), Plan(masked=False), Plan(fill=-30.0)], ids=["scale", "mask", "fill"]
)
def test_another_computation_is_no_faithful_graph(tmp_path: Path, plan: Plan) -> None:
    """A scale that is off by 0.2 %, a mask that is dropped, a fill that hides nothing."""
    result = run_clause(opened(tmp_path, plan, source=Layer()), SOURCE)
    assert result.status == "failed"
    assert "otherwise than its source" in result.reason


def test_an_empty_row_that_becomes_finite(tmp_path: Path) -> None:
    """NaN in the source and a mean in the graph is a mismatch, with both numbers in the message."""
    result = run_clause(opened(tmp_path, Plan(fill=-1e9), source=Layer()), SOURCE)
    assert result.status == "failed"
    assert "the source gives nan, the graph " in result.reason


def test_no_source_is_no_failure(tmp_path: Path) -> None:
    """Without a source there is nothing to compare with."""
    assert (
        CLAUSES[SOURCE].not_applicable(opened(tmp_path, Plan())) == "no source is named (--source)"
    )


def test_a_source_that_refuses_everything_proves_nothing(tmp_path: Path) -> None:
    """Where the module itself gives no answer no example counts."""

    class Refusing(Layer):
        def forward(self, *_: torch.Tensor, **__: torch.Tensor) -> torch.Tensor:
            raise RuntimeError

    result = run_clause(opened(tmp_path, Plan(), source=Refusing()), SOURCE)
    assert result.status == "untestable"


def test_a_level_that_changes_the_answer(tmp_path: Path) -> None:
    """An answer that is off by a thousandth at the highest level fails the levels."""
    candidate = opened(tmp_path, Plan(), process=lambda path: Altered(path, at_level("all", 1.001)))
    result = run_clause(candidate, LEVELS)
    assert result.status == "failed"
    assert "optimisation changes the answer" in result.reason


@pytest.mark.parametrize("level", ["disabled", "all"])
def test_a_level_that_refuses(tmp_path: Path, level: str) -> None:
    """A level at which the runtime refuses the graph is named."""

    def alter(feeds: Feeds, setting: Setting, run: Run) -> Outputs:
        if setting.level == level:
            msg = "no kernel"
            raise GraphRefused(msg)
        return run(feeds)

    result = run_clause(opened(tmp_path, Plan(), process=lambda path: Altered(path, alter)), LEVELS)
    where = {"disabled": "with optimisation disabled", "all": "with every optimisation"}[level]
    assert result.status == "failed"
    assert result.reason.startswith(f"{where} it gives no answer")


def test_a_provider_of_its_own_mind(tmp_path: Path) -> None:
    """Another provider that is off by a thousandth is named; one that agrees passes."""

    def alter(feeds: Feeds, setting: Setting, run: Run) -> Outputs:
        factor = 1.0 if setting.provider == CPU else 1.001
        return {"output": run(feeds)["output"] * np.float32(factor)}

    def same(feeds: Feeds, _setting: Setting, run: Run) -> Outputs:
        return run(feeds)

    for alteration, status in ((alter, "failed"), (same, "passed")):
        candidate = opened(
            tmp_path, Plan(), process=lambda path, how=alteration: Altered(path, how, [CPU, OTHER])
        )
        result = run_clause(candidate, PROVIDERS)
        assert result.status == status
        assert (f"the {OTHER} answers otherwise than the CPU" in result.reason) == (
            status == "failed"
        )


def test_a_runtime_with_the_cpu_alone(tmp_path: Path) -> None:
    """There is nothing to compare with where the runtime has no other provider."""
    process = lambda path: Altered(path, at_level("", 1.0), [CPU])  # noqa: E731
    candidate = opened(tmp_path, Plan(), process=process)
    assert CLAUSES[PROVIDERS].not_applicable(candidate) == "the runtime computes on the CPU only"
