"""What a file calls dynamic runs at every size, and answers the same there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import CLAUSES, run_clause
from exported import Altered, Outputs, Plan, Run, opened

from conformance import Semantics
from conformance.clauses.export_dynamic import declared_axes, is_dynamic
from conformance.graphs.process import Feeds, Setting

BATCH, LENGTH = "export.dynamic-batch", "export.dynamic-length"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("slug", [BATCH, LENGTH])
@pytest.mark.parametrize("weights_known", [True, False])
def test_a_dynamic_graph_passes(tmp_path: Path, slug: str, *, weights_known: bool) -> None:
    """A graph that reads its sizes from its inputs passes, with weights and without."""
    weights = {} if weights_known else {"weights": None}
    result = run_clause(opened(tmp_path, Plan(), **weights), slug, examples=20)  # type: ignore[arg-type]
    assert result.status == "passed", result.reason
    assert result.binding >= result.examples // 2


def test_a_baked_batch_is_reported(tmp_path: Path) -> None:
    """A batch that is fixed though the file calls it dynamic fails, with the size it runs at."""
    result = run_clause(opened(tmp_path, Plan(batch=3)), BATCH)
    assert result.status == "failed"
    reason = "the file leaves the batch open, but the graph runs at 3 only: with 4 "
    assert result.reason.startswith(reason)


def test_baked_keys_are_reported(tmp_path: Path) -> None:
    """The number of keys is judged apart from that of the queries."""
    result = run_clause(opened(tmp_path, Plan(length=5)), LENGTH)
    assert result.status == "failed"
    reason = "the file leaves the number of keys open, but the graph runs at 5 only: with 6 "
    assert result.reason.startswith(reason)
    assert run_clause(opened(tmp_path, Plan(length=5)), BATCH).status == "passed"


@pytest.mark.parametrize(
    ("slug", "plan", "reason"),
    [
        (BATCH, Plan(batch=3, axes=(3, "queries", "keys")), "the file fixes the batch at 3"),
        (LENGTH, Plan(length=5, axes=("b", 4, 5)), "the file fixes the lengths"),
    ],
)
def test_what_the_file_fixes_is_not_judged(
    tmp_path: Path, slug: str, plan: Plan, reason: str
) -> None:
    """A size that the file itself says is no promise that is broken."""
    assert CLAUSES[slug].not_applicable(opened(tmp_path, plan)) == reason


def test_items_flattened_into_the_sequence(tmp_path: Path) -> None:
    """An answer of another shape at other sizes fails before any value is compared."""

    def alter(feeds: Feeds, _setting: Setting, run: Run) -> Outputs:
        return {"output": run(feeds)["output"].reshape(1, -1, 8)}

    result = run_clause(opened(tmp_path, Plan(), process=lambda path: Altered(path, alter)), BATCH)
    assert result.status == "failed"
    assert result.violation is not None
    assert result.violation.kind == "shape"


def test_an_answer_that_depends_on_the_batch(tmp_path: Path) -> None:
    """Items that are answered otherwise in a batch than alone fail."""

    def alter(feeds: Feeds, _setting: Setting, run: Run) -> Outputs:
        return {"output": run(feeds)["output"] * np.float32(1 + 0.001 * len(feeds["query"]))}

    result = run_clause(opened(tmp_path, Plan(), process=lambda path: Altered(path, alter)), BATCH)
    assert result.status == "failed"
    assert "an item answers differently alone and in its batch" in result.reason


@pytest.mark.parametrize("name", ["query", "key"])
def test_an_answer_that_depends_on_a_length(tmp_path: Path, name: str) -> None:
    """A size that was computed when the graph was traced shows at other lengths of either."""

    def alter(feeds: Feeds, _setting: Setting, run: Run) -> Outputs:
        return {"output": run(feeds)["output"] * np.float32(1 + 0.001 * feeds[name].shape[1])}

    result = run_clause(opened(tmp_path, Plan(), process=lambda path: Altered(path, alter)), LENGTH)
    assert result.status == "failed"
    assert "among another number of them" in result.reason


CAUSAL_AND_TURNED: dict[str, Any] = {
    "causal": "bottom-right",
    "always_causal": True,
    "semantics": Semantics(rotary="halves"),
}


@pytest.mark.parametrize("promises", [{"position": "relative"}, CAUSAL_AND_TURNED])
def test_positions_leave_no_graph_untested(tmp_path: Path, promises: dict[str, Any]) -> None:
    """One with positions runs at other lengths; a causal one answers first tokens the same."""

    def own(feeds: Feeds, _setting: Setting, _run: Run) -> Outputs:
        return {"output": np.repeat(feeds["query"][..., :1], 8, axis=-1)}

    def baked(feeds: Feeds, setting: Setting, run: Run) -> Outputs:
        length = feeds["query"].shape[1]
        return {"output": own(feeds, setting, run)["output"] * np.float32(1 + 0.001 * length)}

    right = opened(tmp_path, Plan(), process=lambda path: Altered(path, own), **promises)
    result = run_clause(right, LENGTH, examples=20)
    assert (result.status, result.binding > 0) == ("passed", True), result.reason
    if promises is CAUSAL_AND_TURNED:
        wrong = opened(tmp_path, Plan(), process=lambda path: Altered(path, baked), **promises)
        assert run_clause(wrong, LENGTH).status == "failed"


def test_lengths_that_must_be_equal(tmp_path: Path) -> None:
    """Two lengths that the file names apart but that must be equal are reported."""

    def alter(feeds: Feeds, _setting: Setting, run: Run) -> Outputs:
        if feeds["query"].shape[1] != feeds["key"].shape[1]:
            return {"output": np.zeros((1, 1, 8), np.float32)}
        return run(feeds)

    pins = {"key_length": "query_length"}
    candidate = opened(tmp_path, Plan(), process=lambda path: Altered(path, alter), pins=pins)
    result = run_clause(candidate, LENGTH)
    assert result.status == "failed"
    assert "open apart, but they must be equal: with one key more" in result.reason
    same = Plan(axes=("batch", "length", "length"))
    declared = opened(tmp_path, same, process=lambda path: Altered(path, alter), pins=pins)
    assert run_clause(declared, LENGTH).status == "passed"


def test_axes_are_read_off_the_file(tmp_path: Path) -> None:
    """Masks and tokens say what is dynamic; one number among them fixes it."""
    graph = opened(tmp_path, Plan(axes=("b", 4, None))).graph
    assert graph is not None
    assert declared_axes(graph, "batch") == ["b"] * 4
    assert declared_axes(graph, "query_length") == [4]
    assert declared_axes(graph, "key_length") == [None] * 3
    assert [is_dynamic(graph, name) for name in ("batch", "query_length", "key_length")] == [
        True,
        False,
        True,
    ]
